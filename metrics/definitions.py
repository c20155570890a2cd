"""Every metric, once. `python -m metrics.definitions` prints the docs page.

A later pipeline adds its definitions here, and its intervals to `metrics.timeline`; the registry, the percentiles,
both endpoints and the page follow.
"""

from metrics.metric import PREFIX, Kind, Metric, counter, gauge, interval, span

TEXT = ("text",)
EMBEDDING = ("embedding",)
AUDIO = ("audio",)
IMAGE = ("image",)
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
    "preemptions",
    "preemptions",
    "Sequences put back to the queue for lack of KV blocks, or for one that goes before them",
    pipelines=TEXT,
)
DRAFTS = counter("drafts", "drafts", "Drafts verified, by proposer", label="proposer", pipelines=TEXT)
DRAFTED = counter("drafted_tokens", "tokens", "Tokens drafted, by proposer", label="proposer", pipelines=TEXT)
ACCEPTED = counter(
    "accepted_tokens",
    "tokens",
    "Drafted tokens accepted, by proposer",
    note="Divided by drafted_tokens: the acceptance rate; by drafts: the mean accepted length, to which the token that "
    "ends a draft comes.",
    label="proposer",
    pipelines=TEXT,
)
ACCEPTED_AT = counter(
    "accepted_at",
    "tokens",
    "Drafted tokens accepted, by proposer and position in the draft",
    label="proposer:position",
    pipelines=TEXT,
)
DRAFT_SECONDS = counter(
    "draft_seconds", "seconds", "Time spent on proposals, by proposer", label="proposer", pipelines=TEXT
)
DRAFT_KV_BLOCKS = gauge("draft_kv_blocks", "blocks", "Blocks of the draft model's KV pool", pipelines=TEXT)
DRAFT_KV_BLOCKS_USED = gauge("draft_kv_blocks_used", "blocks", "Its blocks that sequences hold", pipelines=TEXT)

# --- embeddings -------------------------------------------------------------------------------------------------------

BATCH_WAIT = interval(
    "batch_wait",
    "Wait for a batch",
    "prepared",
    "first engine step that has an input of the request",
    span(1e-4, 100),
    note="Finished requests. Tokenising is prepare_seconds, a batch's inference step_seconds.",
    pipelines=EMBEDDING,
)
EMBEDDING_INPUTS = counter("embedding_inputs", "inputs", "Texts, text pairs and images run", pipelines=EMBEDDING)
EMBEDDING_TOKENS = counter(
    "embedding_tokens",
    "tokens",
    "Their tokens, an image's patches among them, without padding",
    note="Divided by the count of step_seconds: the mean tokens of a batch.",
    pipelines=EMBEDDING,
)
EMBEDDING_PADDED_TOKENS = counter(
    "embedding_padded_tokens",
    "tokens",
    "The same with padding",
    note="1 − embedding_tokens / embedding_padded_tokens: the share that is padding.",
    pipelines=EMBEDDING,
)
EMBEDDING_TRUNCATED = counter(
    "embedding_truncated_inputs", "inputs", "Inputs that were cut to what the model takes", pipelines=EMBEDDING
)

# --- audio ------------------------------------------------------------------------------------------------------------

RTF = Metric(
    name=f"{PREFIX}rtf",
    kind=Kind.HISTOGRAM,
    unit="ratio",
    help="Real-time factor: processing time of a file, divided by its length",
    start="worker received the file",
    end="its last window is done",
    note="Without the time in the engine's queue. Finished transcriptions of files. Windows are in step_seconds, by "
    "kind (encode, decode, align); step_rows by their count: the mean batch.",
    buckets=span(1e-3, 10),
    pipelines=AUDIO,
)
FIRST_PARTIAL = interval(
    "first_partial",
    "First partial of a turn",
    "arrival of its first speech",
    "first partial transcript sent by the engine",
    span(5e-2, 10),
    note="Live streams. The speech that has to be there before it is worth decoding is in it.",
    pipelines=AUDIO,
)
FINAL_LATENCY = interval(
    "final_latency",
    "Final transcript of a turn",
    "arrival of its last speech",
    "final transcript sent by the engine",
    span(5e-2, 10),
    note="Live streams. The silence that ends a turn is in it.",
    pipelines=AUDIO,
)
AUDIO_SECONDS = counter("audio_seconds", "seconds", "Audio taken in, of files and live streams", pipelines=AUDIO)
WINDOWS = counter("audio_windows", "windows", "Windows transcribed, partials of live streams too", pipelines=AUDIO)
FALLBACKS = counter(
    "audio_fallbacks",
    "windows",
    "Windows decoded again, by what was tried next: 30s, or a temperature",
    label="temperature",
    pipelines=AUDIO,
)
DECODED_AGAIN = counter(
    "audio_decoded_again",
    "stretches",
    "Stretches of speech decoded again: behind what the model took for the end (continued); alone, behind the last "
    "whole segment of a window (seek), or without a word, and some were found then (recovered) or none (empty)",
    label="reason",
    pipelines=AUDIO,
)
SILENCES = counter("audio_silences", "windows", "Windows that turned out to be without speech", pipelines=AUDIO)
DROPPED_PARTIALS = counter(
    "audio_dropped_partials",
    "partials",
    "Partials given up before they were done: their turn ended, or a newer one took their place",
    pipelines=AUDIO,
)
OPEN_STREAMS = gauge("audio_open_streams", "streams", "Live streams that are open", pipelines=AUDIO)

# --- images -----------------------------------------------------------------------------------------------------------

ROWS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33+")  # of one denoiser call

FIRST_PREVIEW = interval(
    "first_preview",
    "Time to first preview",
    "arrival",
    "first preview in hand in the gateway",
    span(2e-2, 200),
    note="Requests that asked for previews and got one.",
    pipelines=IMAGE,
)
IMAGE_STEP = interval(
    "image_step",
    "Denoising step time, by rows",
    "step begins",
    "its results are on the host",
    span(1e-3, 100),
    note="Those of step_seconds of the kind denoise; texts are encoded in steps of the kind encode, pictures made in "
    "such of the kind decode. step_rows by the count of step_seconds: the mean rows.",
    label="rows",
    values=ROWS,
    pipelines=IMAGE,
)
IMAGES = counter("images", "images", "Images finished, of closed requests", pipelines=IMAGE)
IMAGE_STEPS = counter(
    "image_steps",
    "steps",
    "Denoising steps of closed requests, each image's counted on its own",
    pipelines=IMAGE,
)
IMAGES_CANCELLED = counter("images_cancelled", "images", "Images not finished when their caller left", pipelines=IMAGE)
IMAGE_BATCH_ROWS = gauge("image_batch_rows", "rows", "Rows that one denoiser call takes at most", pipelines=IMAGE)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))  # in the order above
INTERVALS = {metric.key.removesuffix("_seconds"): metric for metric in METRICS if metric.start}  # by field of Intervals

# What a worker may report in `Stats`, by key.
WORKER_COUNTERS = {
    metric.key: metric
    for metric in (
        PREFIX_QUERY_TOKENS,
        PREFIX_HIT_TOKENS,
        PREEMPTIONS,
        DRAFTS,
        DRAFTED,
        ACCEPTED,
        ACCEPTED_AT,
        DRAFT_SECONDS,
        EMBEDDING_INPUTS,
        EMBEDDING_TOKENS,
        EMBEDDING_PADDED_TOKENS,
        EMBEDDING_TRUNCATED,
        AUDIO_SECONDS,
        WINDOWS,
        FALLBACKS,
        SILENCES,
        DROPPED_PARTIALS,
    )
}
WORKER_GAUGES = {
    metric.key: metric
    for metric in (
        DEVICE_MEMORY,
        KV_BLOCKS,
        KV_BLOCKS_USED,
        KV_BLOCKS_CACHED,
        DRAFT_KV_BLOCKS,
        DRAFT_KV_BLOCKS_USED,
        OPEN_STREAMS,
        IMAGE_BATCH_ROWS,
    )
}

if __name__ == "__main__":
    from metrics.page import page

    print(page(METRICS), end="")
