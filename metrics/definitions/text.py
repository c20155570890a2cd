"""What is measured of text models."""

from metrics.metric import ROWS, counter, interval, metrics_of, span, worker_counter, worker_gauge

TTFT = interval(
    "ttft",
    "Time to first token",
    "arrival",
    "first token in hand in the gateway",
    span(5e-3, 200),
    note="One sample a request, however many choices; requests that got a token.",
)
ITL = interval(
    "itl",
    "Inter-token latency",
    "token in hand in the gateway",
    "next token of the same choice in hand",
    span(5e-4, 5),
    note="k tokens of one step count as k gaps of 1/k each; those of a first step have no gap between them.",
)
TPOT = interval(
    "tpot",
    "Time per output token",
    "first token of a choice",
    "its last token, divided by its number of tokens − 1",
    span(5e-4, 5),
    note="One sample a choice of at least two tokens, of finished requests. The first token is not in it.",
)
PREFILL = interval(
    "prefill",
    "Prefill time",
    "first engine step that has the request",
    "first token",
    span(1e-3, 200),
    note="Finished requests.",
)
DECODE = interval(
    "decode",
    "Decode time",
    "first token",
    "last token, in the worker",
    span(1e-3, 1000),
    note="Finished requests that have a choice of at least two tokens.",
)
PROMPT_TOKENS = counter("prompt_tokens", "tokens", "Prompt tokens of closed requests that were accepted")
CACHED_TOKENS = counter("cached_tokens", "tokens", "Those of prompt_tokens that came from the prefix cache")
GENERATED_TOKENS = counter("generated_tokens", "tokens", "Tokens generated for closed requests")
KV_BLOCKS = worker_gauge("kv_blocks", "blocks", "Blocks of the KV pool")
KV_BLOCKS_USED = worker_gauge("kv_blocks_used", "blocks", "KV blocks that sequences hold")
KV_BLOCKS_CACHED = worker_gauge("kv_blocks_cached", "blocks", "KV blocks that no sequence holds, kept for prefix hits")
PREFIX_QUERY_TOKENS = worker_counter("prefix_query_tokens", "tokens", "Prompt tokens looked up in the prefix cache")
PREFIX_HIT_TOKENS = worker_counter("prefix_hit_tokens", "tokens", "Prompt tokens found in the prefix cache")
PREEMPTIONS = worker_counter(
    "preemptions",
    "preemptions",
    "Sequences put back to the queue for lack of KV blocks, or for one that goes before them",
)
DRAFTS = worker_counter("drafts", "drafts", "Drafts verified, by proposer", label="proposer")
DRAFTED = worker_counter("drafted_tokens", "tokens", "Tokens drafted, by proposer", label="proposer")
ACCEPTED = worker_counter(
    "accepted_tokens",
    "tokens",
    "Drafted tokens accepted, by proposer",
    note="Divided by drafted_tokens: the acceptance rate; by drafts: the mean accepted length, to which the token that "
    "ends a draft comes.",
    label="proposer",
)
ACCEPTED_AT = worker_counter(
    "accepted_at",
    "tokens",
    "Drafted tokens accepted, by proposer and position in the draft",
    label="proposer:position",
)
DRAFT_SECONDS = worker_counter("draft_seconds", "seconds", "Time spent on proposals, by proposer", label="proposer")
DRAFT_KV_BLOCKS = worker_gauge("draft_kv_blocks", "blocks", "Blocks of the draft model's KV pool")
DRAFT_KV_BLOCKS_USED = worker_gauge("draft_kv_blocks_used", "blocks", "Its blocks that sequences hold")

# --- images in chats --------------------------------------------------------------------------------------------------

ENCODE = interval(
    "encode",
    "Encoding of a chat's images, with the wait for it",
    "prepared",
    "all of its images are encoded, or found in the encoder cache",
    span(1e-4, 100),
    note="Finished requests that show images. Decoding and resizing them is in prepare_seconds.",
)
ENCODER_STEP = interval(
    "encoder_step",
    "Encoder step time, by images",
    "step begins",
    "its results are on the host",
    span(1e-3, 100),
    note="Those of step_seconds of the kind encode.",
    label="rows",
    values=ROWS,
    steps="encode",
)
VISION_IMAGES = worker_counter(
    "vision_images", "images", "Images of prepared chats", note="One that a request shows twice is one."
)
VISION_TOKENS = worker_counter("vision_tokens", "tokens", "Prompt tokens that stand for images, separators among them")
VISION_PREPARE_SECONDS = worker_counter(
    "vision_prepare_seconds",
    "seconds",
    "Time spent on decoding, resizing and normalising images",
    note="Divided by vision_images: the mean of one.",
)
ENCODER_CACHE_QUERIES = worker_counter(
    "encoder_cache_queries", "images", "Images looked up among those that are encoded"
)
ENCODER_CACHE_HITS = worker_counter(
    "encoder_cache_hits", "images", "Those of them that were there, or about to be for another request"
)
ENCODER_CACHE_BYTES = worker_gauge("encoder_cache_bytes", "bytes", "Encoded images that are kept or held by requests")

METRICS = metrics_of(globals())
