"""Networks with channels last, which convolutions want on a CPU, and norms, which do not."""

from typing import Any

import torch
import torch.nn.functional as F


class ContiguousGroupNorm(torch.nn.GroupNorm):
    """torch's group norm takes ten times as long backwards over channels last as two copies and a contiguous one."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        normed = F.group_norm(input.contiguous(), self.num_groups, self.weight, self.bias, self.eps)
        return normed.contiguous(memory_format=torch.channels_last) if normed.dim() == 4 else normed


def channels_last(network: Any) -> Any:
    """The same network, laid out for training on a CPU."""
    for module in network.modules():
        if type(module) is torch.nn.GroupNorm:
            module.__class__ = ContiguousGroupNorm
    return network.to(memory_format=torch.channels_last)
