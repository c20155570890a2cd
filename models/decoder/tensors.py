"""Which tensors a decoder has, and their shapes: what its files are held against before any of them is read."""

from collections.abc import Callable, Iterator

from models.decoder.config import DecoderConfig
from models.errors import ModelLoadError

Shape = tuple[int, ...]

EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"


def tensor_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """By their Hugging Face names, without the config's prefix; a matrix is [outputs, inputs]."""
    hidden, intermediate, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield f"{EMBEDDING}.weight", (vocab, hidden)
    yield f"{NORM}.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield f"{HEAD}.weight", (vocab, hidden)
    linears: list[tuple[str, Shape, bool]] = []
    if config.fused_weights:
        linears += [("self_attn.qkv_proj", (query + 2 * key, hidden), config.qkv_bias)]
        linears += [("mlp.gate_up_proj", (2 * intermediate, hidden), config.mlp_bias)]
    else:
        of_qkv = {"q_proj": query, "k_proj": key, "v_proj": key}
        linears += [(f"self_attn.{name}", (rows, hidden), config.qkv_bias) for name, rows in of_qkv.items()]
        linears += [(f"mlp.{name}", (intermediate, hidden), config.mlp_bias) for name in ("gate_proj", "up_proj")]
    linears += [("self_attn.o_proj", (hidden, query), config.output_bias)]
    linears += [("mlp.down_proj", (hidden, intermediate), config.mlp_bias)]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.branch_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    heads = ["self_attn.q_norm", "self_attn.k_norm"] if config.qk_norm else []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        for name, shape, biased in linears:
            yield f"{prefix}.{name}.weight", shape
            if biased:
                yield f"{prefix}.{name}.bias", shape[:1]
        for name in norms:
            yield f"{prefix}.{name}.weight", (hidden,)
        for name in heads:
            yield f"{prefix}.{name}.weight", (config.head_dim,)


def require_tensors(
    config: DecoderConfig,
    shape_of: Callable[[str, Shape], Shape | None],
    where: str,
    *,
    stored_as: Callable[[str], str] = str,
) -> None:
    """Raises ModelLoadError naming the first tensor that is missing, or of another shape than the config says.

    `shape_of`: of a tensor in the files, given its stored name and the shape it should have; None: it is not there.
    `where`: whose they are, for messages. `stored_as`: what the files call a tensor.
    """
    for name, expected in tensor_shapes(config):
        stored = stored_as(f"{config.weights_prefix}{name}")
        found = shape_of(stored, expected)
        if found is None:
            raise ModelLoadError(f"{where} lacks the tensor {stored}")
        if found != expected:
            raise ModelLoadError(f"{where}: {stored} is {found}, where the model's description says {expected}")


def not_finite(name: str) -> ModelLoadError:
    return ModelLoadError(f"{name} has values that are not finite: it holds no weights")


def one_row(name: str) -> ModelLoadError:
    return ModelLoadError(f"{name} has one and the same row everywhere: no trained model has that")
