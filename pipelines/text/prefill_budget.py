"""How many tokens of long prompts a step takes, while brief ones come and go beside them."""

from math import inf

from pipelines.rate import Rate
from pipelines.text.plan import Plan

BRIEF_WINDOW_S = 2.0  # after a brief prompt the next one is likely for so many seconds
SHARED_STEP_S = 0.03  # what a step of long prompts should take then: a brief one waits for half of it in the mean
STEP_S = 0.5  # what it should take at any other time, on a machine that is busy with other things, too
SMOOTHING = 0.1  # weight of the last step in the rate


class PrefillBudget:
    def __init__(self, tile: int) -> None:
        """`tile`: tokens of the least chunk of a prompt."""
        self._tile = tile
        self._brief_until = -inf  # until then
        self._rate = Rate(SMOOTHING)  # prompt tokens a second

    def brief(self, now: float) -> None:
        """A brief prompt came, or is still to be answered, at `now` monotonic seconds."""
        self._brief_until = max(self._brief_until, now + BRIEF_WINDOW_S)

    def tokens(self, budget: int, now: float) -> int:
        """Of long prompts in one step that has room for `budget`."""
        seconds = STEP_S if now >= self._brief_until else SHARED_STEP_S
        if not self._rate.value and seconds == STEP_S:
            return budget
        return min(budget, max(self._tile, int(seconds * self._rate.value) // self._tile * self._tile))

    def observe(self, plan: Plan, seconds: float) -> None:
        """The step has been run in so many seconds."""
        tokens = sum(chunk.length for chunk in plan.prefill)
        if tokens >= self._tile:
            self._rate.observe(tokens, seconds)
