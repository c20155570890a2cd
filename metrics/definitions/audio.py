"""What is measured of transcription."""

from metrics.metric import PREFIX, Histogram, interval, metrics_of, span, worker_counter, worker_gauge

RTF = Histogram(
    name=f"{PREFIX}rtf",
    unit="ratio",
    help="Real-time factor: processing time of a file, divided by its length",
    start="worker received the file",
    end="its last window is done",
    note="Without the time in the engine's queue. Finished transcriptions of files. Windows are in step_seconds, by "
    "kind (encode, decode, align); step_rows by their count: the mean batch.",
    buckets=span(1e-3, 10),
)
FIRST_PARTIAL = interval(
    "first_partial",
    "First partial of a turn",
    "arrival of its first speech",
    "first partial transcript sent by the engine",
    span(5e-2, 10),
    note="Live streams. The speech that has to be there before it is worth decoding is in it.",
)
FINAL_LATENCY = interval(
    "final_latency",
    "Final transcript of a turn",
    "arrival of its last speech",
    "final transcript sent by the engine",
    span(5e-2, 10),
    note="Live streams. The silence that ends a turn is in it.",
)
AUDIO_SECONDS = worker_counter("audio_seconds", "seconds", "Audio taken in, of files and live streams")
WINDOWS = worker_counter("audio_windows", "windows", "Windows transcribed, partials of live streams too")
FALLBACKS = worker_counter(
    "audio_fallbacks",
    "windows",
    "Windows decoded again, by what was tried next: 30s, or a temperature",
    label="temperature",
)
DECODED_AGAIN = worker_counter(
    "audio_decoded_again",
    "stretches",
    "Stretches of speech decoded again: behind what the model took for the end (continued); alone, behind the last "
    "whole segment of a window (seek), or without a word, and some were found then (recovered) or none (empty)",
    label="reason",
)
SILENCES = worker_counter("audio_silences", "windows", "Windows that turned out to be without speech")
DROPPED_PARTIALS = worker_counter(
    "audio_dropped_partials",
    "partials",
    "Partials given up before they were done: their turn ended, or a newer one took their place",
)
OPEN_STREAMS = worker_gauge("audio_open_streams", "streams", "Live streams that are open")

METRICS = metrics_of(globals())
