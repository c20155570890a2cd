"""Whether a transcript can be believed, and what to try where it can't.

The thresholds and the temperatures are those of the Whisper paper (section 4.5). Before the temperatures comes the
whole window of 30 s: a shorter one is cheaper, but is what makes most of those that loop.
"""

from enum import Enum, auto

from models.whisper.model import MAX_NEW_TOKENS, Hypothesis
from pipelines.audio.features import MAX_FRAMES
from pipelines.audio.windows import Stage, Window

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION_RATIO = 2.4
MIN_AVG_LOGPROB = -1.0
MAX_NO_SPEECH_PROB = 0.6
MAX_TOKENS_PER_SECOND = 25.0  # quick speech has 5 in English, 15 in scripts that take several a letter
SLACK_TOKENS = 15
TIME_TOKENS = 2  # of a text that is one segment


class Verdict(Enum):
    ACCEPTED = auto()
    SILENCE = auto()
    RETRIED = auto()


def judge(window: Window, hypothesis: Hypothesis) -> Verdict:
    """Settle a window's result, or set it up for its next try."""
    window.tried.append(hypothesis)
    degenerate = is_degenerate(hypothesis, window.seconds)
    if degenerate and window.frames < MAX_FRAMES and hypothesis.temperature == 0:
        window.full = True
        window.stage, window.encoded = Stage.ENCODE, None
        return Verdict.RETRIED
    if is_silent(hypothesis):
        return Verdict.SILENCE
    if degenerate and window.rung + 1 < len(window.temperatures):
        window.rung += 1
        return Verdict.RETRIED
    window.result = best(window) if degenerate else hypothesis
    return Verdict.ACCEPTED


def is_silent(hypothesis: Hypothesis) -> bool:
    return hypothesis.no_speech_prob > MAX_NO_SPEECH_PROB and hypothesis.avg_logprob < MIN_AVG_LOGPROB


def is_degenerate(hypothesis: Hypothesis, seconds: float) -> bool:
    """Repeated, improbable, or more text than anyone can say in the time, or than fits without a whole segment."""
    tokens = len(hypothesis.tokens)
    return (
        hypothesis.compression_ratio > MAX_COMPRESSION_RATIO
        or hypothesis.avg_logprob < MIN_AVG_LOGPROB
        or tokens > SLACK_TOKENS + MAX_TOKENS_PER_SECOND * seconds
        or tokens >= MAX_NEW_TOKENS - TIME_TOKENS
    )


def best(window: Window) -> Hypothesis:
    """Of tries that all failed: the most probable of those that do not repeat themselves, if there is one."""
    varied = [
        each
        for each in window.tried
        if each.compression_ratio <= MAX_COMPRESSION_RATIO
        and len(each.tokens) <= SLACK_TOKENS + MAX_TOKENS_PER_SECOND * window.seconds
    ]
    return max(varied or window.tried, key=lambda each: each.avg_logprob)
