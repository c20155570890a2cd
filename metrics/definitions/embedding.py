"""What is measured of text encoders and rerankers."""

from metrics.metric import interval, metrics_of, span, worker_counter

BATCH_WAIT = interval(
    "batch_wait",
    "Wait for a batch",
    "prepared",
    "first engine step that has an input of the request",
    span(1e-4, 100),
    note="Finished requests. Tokenising is prepare_seconds, a batch's inference step_seconds.",
)
EMBEDDING_INPUTS = worker_counter("embedding_inputs", "inputs", "Texts, text pairs and images run")
EMBEDDING_TOKENS = worker_counter(
    "embedding_tokens",
    "tokens",
    "Their tokens, an image's patches among them, without padding",
    note="Divided by the count of step_seconds: the mean tokens of a batch.",
)
EMBEDDING_PADDED_TOKENS = worker_counter(
    "embedding_padded_tokens",
    "tokens",
    "The same with padding",
    note="1 − embedding_tokens / embedding_padded_tokens: the share that is padding.",
)
EMBEDDING_TRUNCATED = worker_counter(
    "embedding_truncated_inputs", "inputs", "Inputs that were cut to what the model takes"
)

METRICS = metrics_of(globals())
