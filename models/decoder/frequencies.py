"""How far heads are turned by their positions, as a model's rope parameters say it."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelLoadError, require
from models.files.fields import Fields


@dataclass(frozen=True, slots=True)
class Rope:
    """Position p turns components i and i + n of a head by p · inv_freq[i] radians, n being the length of `inv_freq`.

    Components from 2n on stay as they are: all of them where there are no frequencies. Where the rope has several axes
    (M-RoPE, https://arxiv.org/abs/2409.12191), a row has a position on each; p is the one on the frequency's axis.
    """

    inv_freq: tuple[float, ...]  # [rotated / 2], after any scaling
    scale: float = 1.0  # of the cosines and sines
    context: int | None = None  # positions that these frequencies are for; None: any number
    axes: tuple[int, ...] = ()  # [rotated / 2], of each frequency; empty: there is one axis


NO_ROPE = Rope(())


def rotations(rope: Rope, head_dim: int, length: int) -> NDArray[np.float64]:
    """[length, 3 · head_dim / 2]: of each position its cosines twice, for both halves of a head, and its sines once.

    Pairs that the rope leaves alone have a cosine of one and a sine of zero.
    """
    angles = np.outer(np.arange(length, dtype=np.float64), np.array(rope.inv_freq, dtype=np.float64))
    padding = ((0, 0), (0, head_dim // 2 - angles.shape[1]))
    cos = np.pad(np.cos(angles) * rope.scale, padding, constant_values=1)
    sin = np.pad(np.sin(angles) * rope.scale, padding)
    return np.concatenate((cos, cos, sin), 1)


def column_axes(rope: Rope, head_dim: int) -> NDArray[np.int64]:
    """[3 · head_dim / 2]: on which axis the position of each column of `rotations` is."""
    axes = np.zeros(head_dim // 2, np.int64)
    axes[: len(rope.axes)] = rope.axes
    return np.tile(axes, 3)


FIRST_POSITIONS = 2048  # that a table of rotations begins with; it grows by doubling, up to the model's context


def grown(length: int, wanted: int, limit: int) -> int:
    """The next length of a table of `length` positions that has to have `wanted`, of at most `limit`."""
    return max(wanted, min(2 * length, limit))


def default_frequencies(theta: float, dim: int) -> tuple[float, ...]:
    """RoFormer (https://arxiv.org/abs/2104.09864), section 3.4.3. `dim`: components that are turned."""
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))


def llama3_frequencies(
    base: tuple[float, ...], factor: float, low: float, high: float, original_context: int
) -> tuple[float, ...]:
    """Llama 3.1's rope scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended.

    `low` and `high` are the model's `low_freq_factor` and `high_freq_factor`.
    """

    def scale(frequency: float) -> float:
        turns = original_context * frequency / (2 * math.pi)  # in the original context
        if turns < low:
            return frequency / factor
        if turns > high:
            return frequency
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    return tuple(scale(frequency) for frequency in base)


def yarn_frequencies(
    theta: float, dim: int, factor: float, original_context: int, fast: float, slow: float, *, truncate: bool
) -> tuple[float, ...]:
    """YaRN (https://arxiv.org/abs/2309.00071): frequencies that turn more than `fast` times in the original context are
    kept, those that turn less than `slow` times are divided by `factor`, those between blended by their place."""

    def place(turns: float) -> float:
        return dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(fast), place(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001

    def blended(index: int, frequency: float) -> float:
        stretched = min(1.0, max(0.0, (index - low) / width))
        return frequency / factor * stretched + frequency * (1 - stretched)

    return tuple(blended(index, frequency) for index, frequency in enumerate(default_frequencies(theta, dim)))


def rope_from_hf(rope: Fields, config: Fields, *, theta: float, head_dim: int, named: str) -> Rope:
    """The rope that `rope_parameters` (transformers 5; before it `rope_scaling`) describe. Raises ModelLoadError.

    `theta`: where they don't name one. What some checkpoints have beside them is looked up in `config`.
    """
    theta = rope.number("rope_theta", theta)
    kind = rope.text("rope_type", "") or rope.text("type", "") or "default"
    if kind in ("su", "yarn") and rope.get("short_factor") is not None:
        kind = "longrope"  # by its earlier names
    rotary = rope.maybe_number("partial_rotary_factor") or config.number("partial_rotary_factor", 1.0)
    dim = int(min(head_dim * rotary, 2.0 * head_dim))
    require(0 < dim <= head_dim and dim % 2 == 0, named, f"partial_rotary_factor={rotary} of {head_dim} components")
    try:
        found = _scaled(kind, rope, config, theta, dim, named)
    except (ArithmeticError, ValueError) as error:
        raise ModelLoadError(f"the rope parameters of {named} give no frequencies: {error}") from error
    if not all(map(math.isfinite, (*found.inv_freq, found.scale))):
        raise ModelLoadError(f"the rope parameters of {named} give frequencies that are not finite")
    return found


def _scaled(kind: str, rope: Fields, config: Fields, theta: float, dim: int, named: str) -> Rope:
    base = default_frequencies(theta, dim)
    match kind:
        case "default":
            return Rope(base)
        case "linear":  # https://arxiv.org/abs/2306.15595
            return Rope(stretched(base, rope.number("factor")))
        case "yarn":
            return _yarn(config, rope, theta, dim, named)
        case "longrope":
            return _longrope(config, rope, base, named)
    require(kind == "llama3", named, f"rope type {kind}")
    factor, low, high = (rope.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    return Rope(llama3_frequencies(base, factor, low, high, _original_context(config, rope)))


def stretched(frequencies: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(frequency / factor for frequency in frequencies)


def divided(rope: Rope, factors: tuple[float, ...], where: str) -> Rope:
    """With each frequency divided by its factor. `where`: whose they are. Raises ModelLoadError."""
    if len(factors) != len(rope.inv_freq) or not all(0 < factor < math.inf for factor in factors):
        raise ModelLoadError(f"{where} is not {len(rope.inv_freq)} finite numbers above 0")
    return replace(rope, inv_freq=tuple(each / factor for each, factor in zip(rope.inv_freq, factors, strict=True)))


def _original_context(config: Fields, rope: Fields) -> int:
    """Positions that the model was trained on before its context was stretched."""
    key = "original_max_position_embeddings"
    return config.maybe_integer(key) or rope.maybe_integer(key) or config.integer("max_position_embeddings")


def _yarn(config: Fields, rope: Fields, theta: float, dim: int, named: str) -> Rope:
    require(not (rope.get("mscale") or rope.get("mscale_all_dim")), named, "YaRN's mscale")
    factor = rope.number("factor")
    frequencies = yarn_frequencies(
        theta,
        dim,
        factor,
        _original_context(config, rope),
        rope.number("beta_fast", 32.0),
        rope.number("beta_slow", 1.0),
        truncate=rope.boolean("truncate", True),
    )
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return Rope(frequencies, rope.number("attention_factor", usual))


def _longrope(config: Fields, rope: Fields, base: tuple[float, ...], named: str) -> Rope:
    """LongRoPE (https://arxiv.org/abs/2402.13753) within the original context.

    A sequence that grows beyond it has other frequencies, for all of its positions: its keys would have to be computed
    again. So the original context is what is served.
    """
    require(not (rope.get("short_mscale") or rope.get("long_mscale")), named, "LongRoPE's mscale")
    short = rope.items("short_factor", int | float, "numbers") or ()
    require(len(short) == len(base), named, f"{len(short)} values in short_factor, not {len(base)}")
    original = _original_context(config, rope)
    factor = rope.maybe_number("factor") or config.integer("max_position_embeddings") / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(
        tuple(frequency / stretch for frequency, stretch in zip(base, short, strict=True)),
        rope.number("attention_factor", usual),
        original,
    )
