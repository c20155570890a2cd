"""One run each of what is not text."""

import numpy as np

from scripts.gpu_checks.context import Context, Result, difference, seconds


def image(context: Context) -> Result:
    """Two pictures of a tiny random Stable Diffusion checkpoint, side by side."""
    from pipelines.base import Ticket
    from pipelines.image.pipeline import ImagePipeline
    from pipelines.messages.frames import Failed, ModelSpec
    from pipelines.messages.image import ImageOptions, ImageRequest, Picture
    from tests.pipelines.image.checkpoints import stable_diffusion

    folder = stable_diffusion(context.folder / "sd")
    spec = ModelSpec(
        name="tiny",
        kind="image",
        pipeline="",
        source=str(folder),
        options=ImageOptions(),
        device=str(context.device),
    )
    pipeline, ready = ImagePipeline.load(spec)
    for id, seed in (("first", 1), ("second", 2)):
        request = ImageRequest(prompt="a red cat", seed=seed, steps=2, guidance_scale=4.0)
        pipeline.admit(pipeline.prepare(Ticket(id, "interactive", 0.0), request))
    events = []
    while pipeline.busy:
        events += pipeline.step().events
    failed = [event.message for event in events if isinstance(event, Failed)]
    pictures = [event for event in events if isinstance(event, Picture)]
    return {"ok": len(pictures) == 2 and not failed, "failed": failed, **(ready.details or {})}


def embedding(context: Context) -> Result:
    """A tiny random BERT through ONNX Runtime against transformers."""
    import torch
    import transformers

    from models.embedder.embedder import EmbedderOptions, load_embedder
    from tests.models.checkpoints import bert

    (context.folder / "bert").mkdir()
    folder = bert(context.folder / "bert")
    embedder = load_embedder(folder, EmbedderOptions(device=str(context.device)))
    ids = np.arange(4, 52, dtype=np.int64).reshape(4, 12)
    found = embedder.texts(ids, np.ones_like(ids))
    with torch.inference_mode():
        states = transformers.BertModel.from_pretrained(folder).eval()(torch.from_numpy(ids)).last_hidden_state
        wanted = torch.nn.functional.normalize(states.mean(1), dim=1)
    error = difference(torch.from_numpy(np.asarray(found, dtype=np.float32)), wanted)
    return {"ok": error <= 0.02, "error": error, **embedder.details}


def whisper(context: Context) -> Result:
    """What CTranslate2 finds, and half a minute of silence through the embedded model's encoder, if it is there."""
    import ctranslate2

    from models.errors import SourceError
    from models.files.source import resolve
    from models.whisper.model import load_whisper

    devices = ctranslate2.get_cuda_device_count()
    found: Result = {"ok": context.device.type != "cuda" or devices > 0, "cuda_devices": devices}
    if devices:
        found["compute_types"] = sorted(ctranslate2.get_supported_compute_types("cuda"))
    try:
        folder = resolve("embedded:whisper-tiny.en")
    except SourceError as error:
        return {**found, "skipped": str(error)}
    model = load_whisper(folder, device=str(context.device))
    mels = [np.zeros((model.n_mels, 3000), dtype=np.float32)]
    encoded = model.encode(mels)[0]
    found["ok"] &= bool(np.isfinite(encoded).all())
    found["encode_ms"] = 1e3 * seconds(lambda: model.encode(mels), context.pick(5, 1), context.device)
    return {**found, **model.details}
