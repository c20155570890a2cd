"""Every metric, once. `python -m metrics.definitions` prints the docs page.

A later pipeline adds its definitions here, and its intervals to `metrics.timeline`; the registry, the percentiles,
both endpoints and the page follow.
"""

from metrics.metric import Metric, counter, gauge, interval, span

TEXT = ("text",)
STATES = ("loading", "ready", "restarting", "failed", "draining", "stopped")  # of a replica

# --- every pipeline: a request's life ---------------------------------------------------------------------------------

REQUESTS = counter(
    "requests",
    "requests",
    "Requests that reached a model's route and are closed, by finish reason or error code",
    label="outcome",
)
ADMITTED = counter(
    "requests_admitted",
    "requests",
    "Closed requests that had been granted a slot",
    note="No histogram of a request's life has more samples than this, but ITL and TPOT (several a request).",
)
REJECTIONS = counter("rejections", "requests", "Requests refused before they had a slot, by reason", label="reason")
SLO_REQUESTS = counter(
    "slo_requests",
    "requests",
    "Requests that goodput is measured on",
    note="Finished, failed and rejected ones; not those that their caller cancelled or that were invalid.",
)
SLO_MET = counter(
    "slo_met_requests",
    "requests",
    "Requests that finished and met every SLO of their model",
    note="Divided by slo_requests: goodput.",
)
ADMISSION_WAIT = interval(
    "admission_wait",
    "Wait for a slot",
    "asked for a slot",
    "slot granted",
    span(1e-4, 500),
    note="Admitted requests.",
)
QUEUE = interval(
    "queue",
    "Queue time",
    "arrival",
    "first engine step that has the request",
    span(1e-3, 500),
    note="Admission wait, prepare time and the engine's own queue are in it. Finished requests.",
)
PREPARE = interval(
    "prepare",
    "Prepare time",
    "worker received the request",
    "validated, templated and tokenised",
    span(1e-4, 10),
    note="The wait for a thread of the prepare pool is in it. Finished requests.",
)
E2E = interval(
    "e2e",
    "End-to-end latency",
    "arrival",
    "last byte written",
    span(1e-2, 1000),
    note="Admitted requests, failed ones too; not those whose client left or that were invalid.",
)
OVERHEAD = interval(
    "overhead",
    "Gateway overhead",
    "arrival",
    "last byte written",
    span(5e-5, 1),
    note="Less the admission wait, the worker's span (received → ended), and the time after it spent waiting for the "
    "client to take bytes. Finished requests.",
)

# --- every pipeline: engines and workers ------------------------------------------------------------------------------

STEP = interval(
    "step",
    "Engine step time, by kind of step",
    "step begins",
    "its results are on the host",
    span(1e-4, 10),
    label="kind",
)
STEP_ROWS = counter(
    "step_rows",
    "rows",
    "Rows of all steps, by kind of step",
    note="Divided by the count of step_seconds: the mean batch.",
    label="kind",
)
STEP_TOKENS = counter("step_tokens", "tokens", "Tokens run through the model, by kind of step", label="kind")
RUNNING = gauge("running", "units", "Units (sequences, images, inputs) in the engine's batch")
WAITING = gauge("waiting", "units", "Units prepared and waiting in the engine")
QUEUED = gauge("queued", "requests", "Requests waiting for a slot in the gateway's queue")
SLOTS = gauge("slots", "units", "Slots that ready workers announced")
SLOTS_USED = gauge("slots_used", "units", "Slots held by open requests")
WORKERS = gauge("workers", "workers", "Replicas, by state", label="state", values=STATES)
RESTARTS = counter("worker_restarts", "restarts", "Times that a worker was started again after it was lost")
LOAD = gauge("load_seconds", "seconds", "Time that the last load of the model took (process start → ready)")
RESIDENT = gauge("resident_bytes", "bytes", "Resident memory of the model's worker processes")
DEVICE_MEMORY = gauge("device_bytes", "bytes", "Accelerator memory that the model's workers hold")

# --- text -------------------------------------------------------------------------------------------------------------

TTFT = interval(
    "ttft",
    "Time to first token",
    "arrival",
    "first token in hand in the gateway",
    span(5e-3, 200),
    note="One sample a request, however many choices; requests that got a token.",
    pipelines=TEXT,
)
ITL = interval(
    "itl",
    "Inter-token latency",
    "token in hand in the gateway",
    "next token of the same choice in hand",
    span(5e-4, 5),
    note="k tokens of one step count as k gaps of 1/k each; those of a first step have no gap between them.",
    pipelines=TEXT,
)
TPOT = interval(
    "tpot",
    "Time per output token",
    "first token of a choice",
    "its last token, divided by its number of tokens − 1",
    span(5e-4, 5),
    note="One sample a choice of at least two tokens, of finished requests. The first token is not in it.",
    pipelines=TEXT,
)
PREFILL = interval(
    "prefill",
    "Prefill time",
    "first engine step that has the request",
    "first token",
    span(1e-3, 200),
    note="Finished requests.",
    pipelines=TEXT,
)
DECODE = interval(
    "decode",
    "Decode time",
    "first token",
    "last token, in the worker",
    span(1e-3, 1000),
    note="Finished requests that have a choice of at least two tokens.",
    pipelines=TEXT,
)
PROMPT_TOKENS = counter(
    "prompt_tokens", "tokens", "Prompt tokens of closed requests that were accepted", pipelines=TEXT
)
CACHED_TOKENS = counter(
    "cached_tokens", "tokens", "Those of prompt_tokens that came from the prefix cache", pipelines=TEXT
)
GENERATED_TOKENS = counter("generated_tokens", "tokens", "Tokens generated for closed requests", pipelines=TEXT)
KV_BLOCKS = gauge("kv_blocks", "blocks", "Blocks of the KV pool", pipelines=TEXT)
KV_BLOCKS_USED = gauge("kv_blocks_used", "blocks", "KV blocks that sequences hold", pipelines=TEXT)
KV_BLOCKS_CACHED = gauge(
    "kv_blocks_cached", "blocks", "KV blocks that no sequence holds, kept for prefix hits", pipelines=TEXT
)
PREFIX_QUERY_TOKENS = counter(
    "prefix_query_tokens", "tokens", "Prompt tokens looked up in the prefix cache", pipelines=TEXT
)
PREFIX_HIT_TOKENS = counter("prefix_hit_tokens", "tokens", "Prompt tokens found in the prefix cache", pipelines=TEXT)
PREEMPTIONS = counter(
    "preemptions", "preemptions", "Sequences put back to the queue for lack of KV blocks", pipelines=TEXT
)
DRAFTS = counter("drafts", "drafts", "Drafts verified", pipelines=TEXT)
DRAFTED = counter("drafted_tokens", "tokens", "Tokens drafted", pipelines=TEXT)
ACCEPTED = counter(
    "accepted_tokens",
    "tokens",
    "Drafted tokens accepted",
    note="Divided by drafted_tokens: the acceptance rate.",
    pipelines=TEXT,
)
ACCEPTED_AT = counter(
    "accepted_at", "tokens", "Drafted tokens accepted, by position in the draft", label="position", pipelines=TEXT
)


METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))  # in the order above
INTERVALS = {metric.key.removesuffix("_seconds"): metric for metric in METRICS if metric.start}  # by field of Intervals

# What a worker may report in `Stats`, by key.
WORKER_COUNTERS = {
    metric.key: metric
    for metric in (PREFIX_QUERY_TOKENS, PREFIX_HIT_TOKENS, PREEMPTIONS, DRAFTS, DRAFTED, ACCEPTED, ACCEPTED_AT)
}
WORKER_GAUGES = {metric.key: metric for metric in (DEVICE_MEMORY, KV_BLOCKS, KV_BLOCKS_USED, KV_BLOCKS_CACHED)}

if __name__ == "__main__":
    from metrics.page import page

    print(page(METRICS), end="")
