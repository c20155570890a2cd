"""Which tensors a decoder has, their shapes, and the order of their rows: what its files are held against before any of
them is read."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from models.decoder.config import DecoderConfig
from models.decoder.families.layout import Part, TensorKey
from models.errors import ModelLoadError

Shape = tuple[int, ...]
Order = NDArray[np.int64]


def tensor_shapes(config: DecoderConfig) -> Iterator[tuple[TensorKey, Shape]]:
    """A matrix is [outputs, inputs]."""
    hidden, intermediate, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield TensorKey(Part.EMBEDDING), (vocab, hidden)
    yield TensorKey(Part.NORM), (hidden,)
    if not config.tie_word_embeddings:
        yield TensorKey(Part.HEAD), (vocab, hidden)
    outputs = {Part.Q: query, Part.K: key, Part.V: key, Part.QKV: query + 2 * key}
    outputs |= {Part.GATE: intermediate, Part.UP: intermediate, Part.GATE_UP: 2 * intermediate}
    linears = [(part, (outputs[part], hidden), config.qkv_bias) for part in config.layout.qkv]
    linears += [(part, (outputs[part], hidden), config.mlp_bias) for part in config.layout.gate_up]
    linears += [(Part.OUTPUT, (hidden, query), config.output_bias)]
    linears += [(Part.DOWN, (hidden, intermediate), config.mlp_bias)]
    vectors = [(Part.ATTENTION_NORM, hidden), (Part.MLP_NORM, hidden)]
    if config.branch_norms:
        vectors += [(Part.OUTPUT_NORM, hidden), (Part.DOWN_NORM, hidden)]
    if config.qk_norm:
        vectors += [(Part.Q_NORM, config.head_dim), (Part.K_NORM, config.head_dim)]
    for layer in range(config.num_layers):
        for part, shape, biased in linears:
            yield TensorKey(part, layer), shape
            if biased:
                yield TensorKey(part, layer, bias=True), shape[:1]
        for part, length in vectors:
            yield TensorKey(part, layer), (length,)


def row_order(config: DecoderConfig, key: TensorKey) -> Order | None:
    """Which stored row of a tensor each of ours is; None: they are in our order.

    In ours, a head's components that the rope turns against each other are half a head apart.
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    turned = {Part.Q: heads, Part.K: kv_heads, Part.QKV: heads + kv_heads}.get(key.part)
    if turned is None or key.layer is None:
        return None
    interleaved, order = config.layout.interleaved, component_order(config, key.layer)
    if not interleaved and order is None:
        return None
    if order is None:
        order = np.arange(config.head_dim)
    if interleaved:
        order = np.arange(config.head_dim).reshape(-1, 2).T.reshape(-1)[order]
    others = kv_heads if key.part is Part.QKV else 0  # v's
    rows = np.arange((turned + others) * config.head_dim).reshape(-1, config.head_dim)
    return np.concatenate((rows[:turned, order], rows[turned:])).reshape(-1)


def component_order(config: DecoderConfig, layer: int) -> Order | None:
    """[head_dim]: which component each of ours is of a query or key of the model's; None: they are the same.

    A rope that turns the first 2n components only, i against i + n, has these split between the halves: as the order is
    that of queries and keys alike, their products stay what they are.
    """
    pairs, head_dim = len(config.layers[layer].rope.inv_freq), config.head_dim
    if 2 * pairs in (0, head_dim):
        return None
    middle = pairs + head_dim // 2
    parts = (0, pairs), (2 * pairs, middle), (pairs, 2 * pairs), (middle, head_dim)
    return np.concatenate([np.arange(*part) for part in parts])


def require_tensors(config: DecoderConfig, shape_of: Callable[[str, Shape], Shape | None], where: str) -> None:
    """Raises ModelLoadError naming the first tensor that is missing, or of another shape than the config says.

    `shape_of`: of a tensor in the files, given its name and the shape it should have; None: it is not there. `where`:
    whose they are, for messages.
    """
    for key, expected in tensor_shapes(config):
        name = config.layout.name(key)
        found = shape_of(name, expected)
        if found is None:
            raise ModelLoadError(f"{where} lacks the tensor {name}")
        if found != expected:
            raise ModelLoadError(f"{where}: {name} is {found}, where the model's description says {expected}")


def not_finite(name: str) -> ModelLoadError:
    return ModelLoadError(f"{name} has values that are not finite: it holds no weights")


def one_row(name: str) -> ModelLoadError:
    return ModelLoadError(f"{name} has one and the same row everywhere: no trained model has that")
