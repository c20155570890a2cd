"""What the options for a GPU do where there is none, and how the largest step is tried."""

import pytest

from pipelines.base import ModelError
from pipelines.messages.text import TextOptions
from pipelines.text.runner import try_largest
from pipelines.text.scheduler import LOGPROB_ROWS
from tests.pipelines.text.fakes import FakeDecoder, create_pipeline


def test_graphs_that_are_demanded_need_a_gpu():
    with pytest.raises(ModelError, match=r"text\.cuda_graphs: there is no CUDA device"):
        create_pipeline(cuda_graphs=True)


@pytest.mark.parametrize("wanted", [None, False])
def test_graphs_are_off_without_one(wanted):
    assert create_pipeline(cuda_graphs=wanted).ready().details["cuda_graphs"] == "off"


def test_a_share_of_a_gpu_needs_one():
    with pytest.raises(ModelError, match=r"text\.gpu_memory_fraction"):
        create_pipeline(gpu_memory_fraction=0.5, kv_cache_tokens=None)


@pytest.mark.parametrize(("tokens", "lengths"), [(300, [128, 128, 44]), (100, [100])])
def test_the_largest_step_has_all_its_tokens_in_sequences_that_fit_the_context(tokens, lengths):
    decoder = FakeDecoder(context=128)
    try_largest(decoder, TextOptions(max_num_batched_tokens=tokens))
    (batch,) = decoder.forwards
    assert batch.kind == "prefill"
    assert [segment.length for segment in batch.segments] == lengths
    assert len(batch.ids) == tokens
    assert batch.logit_rows.tolist() == list(range(max(0, tokens - LOGPROB_ROWS), tokens))
