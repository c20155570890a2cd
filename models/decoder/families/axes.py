"""Which axis of a rope each frequency belongs to: time, height or width."""

from collections.abc import Sequence


def in_sections(sections: Sequence[int]) -> tuple[int, ...]:
    """One axis after the other: https://arxiv.org/abs/2502.13923"""
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def interleaved(sections: Sequence[int]) -> tuple[int, ...]:
    """In turn, as long as height and width have some left; time has the others: https://arxiv.org/abs/2511.21631"""
    axes = [0] * sum(sections)
    for axis, count in enumerate(sections[1:], 1):
        for index in range(axis, min(len(sections) * count, len(axes)), len(sections)):
            axes[index] = axis
    return tuple(axes)
