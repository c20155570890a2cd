"""What is measured of image generation."""

from metrics.metric import ROWS, counter, interval, metrics_of, span, worker_gauge

FIRST_PREVIEW = interval(
    "first_preview",
    "Time to first preview",
    "arrival",
    "first preview in hand in the gateway",
    span(2e-2, 200),
    note="Requests that asked for previews and got one.",
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
    steps="denoise",
)
IMAGES = counter("images", "images", "Images finished, of closed requests")
IMAGE_STEPS = counter(
    "image_steps",
    "steps",
    "Denoising steps of closed requests, each image's counted on its own",
)
IMAGES_CANCELLED = counter("images_cancelled", "images", "Images not finished when their caller left")
IMAGE_BATCH_ROWS = worker_gauge("image_batch_rows", "rows", "Rows that one denoiser call takes at most")

METRICS = metrics_of(globals())
