import torch
from torch import nn

from scripts.training.vision.muon import ITERATIONS, Muon, orthogonalised


def test_it_steps_as_torch_s_own() -> None:
    torch.manual_seed(0)
    shapes = [(32, 32), (64, 32), (32, 64), (32, 32)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(each.detach().clone()) for each in ours]
    stepped = Muon(ours, lr=0.1)
    reference = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw", ns_steps=ITERATIONS)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        stepped.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 0.02


def test_singular_values_come_near_1() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(3, 48, 32)).float())
    assert 0.3 < values.min() <= values.max() < 1.5
