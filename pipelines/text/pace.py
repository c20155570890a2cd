"""How many tokens of long prompts a step takes, while brief ones come and go beside them."""

from math import inf

from pipelines.text.plan import Plan

COMPANY_S = 2.0  # after a brief prompt the next one is likely for so many seconds
SHARED_STEP_S = 0.03  # what a step of long prompts should take then: a brief one waits for half of it in the mean
SMOOTHING = 0.1  # weight of the last step in the rate


class Pace:
    def __init__(self, tile: int) -> None:
        """`tile`: tokens of the least chunk of a prompt."""
        self._tile = tile
        self._company = -inf  # until then
        self._rate = 0.0  # prompt tokens a second; 0: not known

    def brief(self, received: float) -> None:
        """A brief prompt came, at `received` monotonic seconds."""
        self._company = max(self._company, received + COMPANY_S)

    def tokens(self, budget: int, now: float) -> int:
        """Of long prompts in one step that has room for `budget`."""
        if now >= self._company:
            return budget
        return min(budget, max(self._tile, int(SHARED_STEP_S * self._rate) // self._tile * self._tile))

    def observe(self, plan: Plan, seconds: float) -> None:
        """The step has been run in so many seconds."""
        if not plan.decode and plan.tokens >= self._tile and seconds > 0:
            rate = plan.tokens / seconds
            self._rate = self._rate + SMOOTHING * (rate - self._rate) if self._rate else rate
