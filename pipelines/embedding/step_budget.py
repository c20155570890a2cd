"""How many padded tokens a step takes, and how that follows the machine's speed."""

from time import perf_counter

import numpy as np

from models.embedder.embedder import Embedder
from pipelines.embedding.batching import Budget
from pipelines.rate import Rate

# Larger steps are no faster on a CPU: the activations of so many tokens, over all steps at once, still fit its caches.
# A GPU wants more.
CPU_TOKENS = 1024
GPU_TOKENS = 16384

# Tokens of padding that are cheaper than a step of their own: what a step costs before its first token, less what it is
# shared by.
CPU_SLACK = 8
GPU_SLACK = 512
# In bfloat16 lengths are rounded up to a few, and a batch is of one of them: what a text is beside changes nothing in
# what is computed of it.
BF16_SLACK = 0

# Beside small requests, a step of a large one lasts about so long: they wait for half of it in the mean.
SHARED_STEP_S = 0.008
LEAST_SHARED = 64  # tokens: a shorter step is mostly the reading of the weights
SMOOTHING = 0.05  # weight of the last step in the rate

WARM_UP_LENGTH = 32  # tokens of a text
WARM_UP_RUNS = 3


class StepBudget:
    """Keeps the steps that small requests wait for at their time, while other pipelines come and go on the machine."""

    def __init__(self, tokens: int, slack: int, rate: float, *, waited_for: bool = True) -> None:
        """`tokens`: of a full step. `rate`: padded tokens a second. `waited_for`: by small requests; False where the
        encoder runs these beside it."""
        self._tokens = tokens
        self._slack = slack
        self._rate = Rate(SMOOTHING, rate)
        self._waited_for = waited_for

    @property
    def budget(self) -> Budget:
        shared = max(LEAST_SHARED, int(SHARED_STEP_S * self._rate.value))
        return Budget(self._tokens, min(self._tokens, shared) if self._waited_for else self._tokens, self._slack)

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many padded tokens has been run."""
        if tokens >= LEAST_SHARED:
            self._rate.observe(tokens, seconds)


def warm_up(embedder: Embedder, tokens: int | None) -> StepBudget:
    """Run full steps, of `tokens` where the operator says so: memory is allocated now, and the fastest of them is the
    first guess at the speed."""
    config = embedder.config
    gpu = embedder.details["device"] != "cpu"
    tokens = tokens or (GPU_TOKENS if gpu else CPU_TOKENS // embedder.streams)
    slack = GPU_SLACK if gpu else BF16_SLACK if embedder.details["dtype"] == "bfloat16" else CPU_SLACK
    length = config.max_tokens if config.fixed_length else min(WARM_UP_LENGTH, config.max_tokens)
    rows = max(1, tokens // length)
    ids = np.full((rows, length), min(5, config.vocab_size - 1), dtype=np.int64)
    fastest = float("inf")
    for _ in range(WARM_UP_RUNS):
        began = perf_counter()
        embedder.texts(ids, np.ones_like(ids))
        fastest = min(fastest, perf_counter() - began)
    if (image := config.image) is not None:
        embedder.images(np.zeros((1, 3, image.height, image.width), np.float32))
    return StepBudget(tokens, slack, ids.size / fastest, waited_for=embedder.concurrency == 1)
