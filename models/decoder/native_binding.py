"""The weights of torch's decoder, as the native forward takes them."""

from models.decoder.assembly import DecoderWeights, LayerWeights
from models.decoder.config import DecoderConfig
from models.decoder.native.forward import NativeForward, NativeLayer, has_code_for
from models.decoder.native.library import Engine
from models.decoder.native.linear import NativeLinear, floats
from models.decoder.native.packing import PackedLinear
from models.decoder.weights.linear import Linear


def bind(engine: Engine, config: DecoderConfig, weights: DecoderWeights) -> NativeForward | None:
    """None where the model has a shape, a part or a weight that the library has no code for.

    A head that is not native (a checkpoint's dense one) is left to the caller.
    """
    layers = [bound for layer in weights.layers if (bound := _layer(layer)) is not None]
    if len(layers) < len(weights.layers) or not has_code_for(engine, config):
        return None
    return NativeForward(engine, config, layers, floats(weights.norm), _packed(weights.head))


def _layer(layer: LayerWeights) -> NativeLayer | None:
    qkv, output, gate_up, down = map(_packed, (layer.qkv, layer.output, layer.gate_up, layer.down))
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return NativeLayer(
        attention_norm=floats(layer.attention_norm),
        qkv=qkv,
        qk_norm=None if layer.qk_norm is None else floats(layer.qk_norm),
        output=output,
        mlp_norm=floats(layer.mlp_norm),
        gate_up=gate_up,
        down=down,
    )


def _packed(linear: Linear) -> PackedLinear | None:
    return linear.packed if isinstance(linear, NativeLinear) else None
