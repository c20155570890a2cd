import pytest

from pipelines.base import ModelError
from pipelines.messages.text import TextOptions
from pipelines.text.cache.memory import CacheSize, GpuMemory, available_bytes, dense_prefill_fits, size_cache

GIB = 1 << 30


def size(context=8192, available=16 * GIB, bytes_per_block=16 * 23040, gpu=None, **options) -> CacheSize:
    return size_cache(
        TextOptions(**options),
        context=context,
        block_size=16,
        bytes_per_block=bytes_per_block,
        available=available,
        gpu=gpu,
    )


def test_by_default_a_quarter_of_the_context_of_a_full_batch():
    assert size() == CacheSize(16 * 8192 // 4 // 16, 8192)


def test_one_whole_context_at_least():
    assert size(max_num_seqs=2) == CacheSize(512, 8192)


def test_memory_bounds_the_cache_and_the_cache_the_context():
    assert size(available=4 * 16 * 23040 * 100) == CacheSize(100, 1600)


def test_what_is_asked_holds():
    assert size(kv_cache_tokens=1000, max_model_len=992) == CacheSize(62, 992)
    assert size(max_model_len=4096, max_num_seqs=8) == CacheSize(512, 4096)


@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 8193},
        {"max_model_len": 0},
        {"kv_cache_tokens": 1000, "max_model_len": 1000},
        {"kv_cache_tokens": 15},
        {"available": 1000},
        {"available": 4 * 16 * 23040 * 100, "max_model_len": 1601},
    ],
)
def test_what_can_not_hold_is_refused(options):
    with pytest.raises(ModelError):
        size(**options)


# 3 GiB of weights, 1 GiB more at the peak; another process has 10 GiB, this one's driver context 1 GiB.
GPU = GpuMemory(total=80 * GIB, free=65 * GIB, reserved=4 * GIB, peak=4 * GIB)


def test_the_cache_fills_its_share_of_a_gpu_beside_what_is_used():
    assert GPU.cache_bytes(0.9) == 57 * GIB
    assert GPU.cache_bytes(0.1) < 0
    block = GIB // 256
    assert size(gpu=GPU, bytes_per_block=block) == CacheSize(57 * 256, 8192)
    assert size(gpu=GPU, bytes_per_block=block, gpu_memory_fraction=0.5) == CacheSize(25 * 256, 8192)
    assert size(gpu=GPU, bytes_per_block=GIB) == CacheSize(57, 57 * 16)  # it bounds the context, where that is open
    assert size(gpu=GPU, bytes_per_block=block, kv_cache_tokens=1600) == CacheSize(100, 1600)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gpu": GPU, "gpu_memory_fraction": 0.1}, "text.gpu_memory_fraction"),
        ({"gpu": GPU, "bytes_per_block": GIB, "max_model_len": 1000}, "text.gpu_memory_fraction"),
        ({"gpu_memory_fraction": 0.5}, "doesn't run on a GPU"),
    ],
)
def test_what_a_gpu_can_not_hold_is_refused(options, named):
    with pytest.raises(ModelError, match=named):
        size(**options)


def test_a_dense_copy_takes_at_most_half_of_the_memory(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(1000))
    for path in (tmp_path, tmp_path / "weights"):
        assert dense_prefill_fits(path, 8000, True)
        assert not dense_prefill_fits(path, 7998, True)
        assert dense_prefill_fits(path, 16000, False)
        assert not dense_prefill_fits(path, 15998, False)


def test_memory_of_the_host():
    assert 0 < available_bytes() < 1 << 50
