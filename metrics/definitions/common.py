"""What is measured of every model: its requests, its engine and its workers."""

from metrics.metric import counter, gauge, interval, metrics_of, span, worker_gauge

STATES = ("loading", "ready", "restarting", "failed", "draining", "stopped")  # of a replica

# --- a request's life ------------------------------------------------------------------------------------------------

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

# --- engines and workers ---------------------------------------------------------------------------------------------

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
DEVICE_MEMORY = worker_gauge("device_bytes", "bytes", "Accelerator memory that the model's workers hold")

METRICS = metrics_of(globals())
