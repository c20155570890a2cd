"""What a text pipeline is made of, from its models, its options and the machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from models.decoder.batch import CausalDecoder
from models.decoder.loading import LoadedModel, load_decoder
from models.decoder.native.library import library
from models.device import multiplies_bf16
from models.errors import ModelLoadError
from models.files.source import resolve
from models.vision.vision import Vision
from pipelines.base import ModelError
from pipelines.media.decoder import MediaDecoder
from pipelines.messages.frames import ModelSpec
from pipelines.messages.text import ProposerKind, TextOptions
from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.cache.memory import (
    CacheSize,
    available_bytes,
    dense_prefill_fits,
    gpu_memory,
    size_cache,
)
from pipelines.text.drafts.draft_model import DraftModel, require_same_vocabulary
from pipelines.text.drafts.ngram import NgramProposer
from pipelines.text.runner import try_largest
from pipelines.text.scheduler import Scheduler
from pipelines.text.sequence import Sequence
from pipelines.text.speculative import Proposer, Speculation
from pipelines.text.vision.encoder import ImageEncoder
from pipelines.text.vision.prepare import ImagePreparer


def load_model(source: str, spec: ModelSpec[TextOptions], vision: str | None = None) -> LoadedModel:
    """`vision`: source of the half that sees. Raises ModelLoadError."""
    path = resolve(source)
    dense = spec.options.dense_prefill
    # The native library multiplies quantised weights faster than torch multiplies dense ones.
    if dense is None and (library() or not dense_prefill_fits(path, available_bytes(), multiplies_bf16())):
        dense = False
    return load_decoder(
        path,
        device=spec.device,
        dtype=spec.dtype,
        quantization=spec.quantization,
        dense_prefill=dense,
        threads=spec.threads,
        vision=resolve(vision) if vision else None,
    )


def require_sight(vision: Vision | None, options: TextOptions) -> None:
    """Raises ModelError where options ask for what the model's files do not have."""
    if vision is None and options.preload_vision:
        raise ModelError("text.preload_vision: nothing in this model's files sees")


def image_preparer(vision: Vision, placeholder: str, options: TextOptions) -> ImagePreparer:
    """`placeholder`: as it is spelled. Raises ModelError where the processor is wanted at once and can't be loaded."""
    media = MediaDecoder()
    preparer = ImagePreparer(
        vision, placeholder, media.picture, max_images=options.max_images, max_pixels=options.max_image_pixels
    )
    if options.preload_vision:
        media.warm()
        with _preloading():
            preparer.load()
    return preparer


def image_encoder(vision: Vision, decoder: CausalDecoder, options: TextOptions) -> ImageEncoder[Sequence]:
    """Raises ModelError where the tower is wanted at once and can't be loaded."""
    encoder: ImageEncoder[Sequence] = ImageEncoder(
        vision.load_tower,
        row_bytes=decoder.config.hidden_size * np.dtype(np.float32).itemsize,
        cache_bytes=options.encoder_cache_bytes,
        max_pixels=options.max_encoder_pixels,
    )
    if options.preload_vision or decoder.gpu is not None:  # on a GPU the KV cache is as large as what is left
        with _preloading():
            encoder.load()
    return encoder


@contextmanager
def _preloading() -> Iterator[None]:
    try:
        yield
    except ModelLoadError as error:
        raise ModelError(f"the half that sees: {error}") from error


def cache_size(decoder: CausalDecoder, options: TextOptions, draft: LoadedModel | None) -> CacheSize:
    probe = decoder.new_cache(1)
    gpu = gpu_memory(decoder.gpu, lambda: try_largest(decoder, options)) if decoder.gpu is not None else None
    return size_cache(
        options,
        context=decoder.config.max_position_embeddings,
        block_size=probe.block_size,
        # A draft model reads what the model reads: it has as many blocks, of the same size.
        bytes_per_block=probe.bytes_per_block + (draft.decoder.new_cache(1).bytes_per_block if draft else 0),
        available=available_bytes(),
        gpu=gpu,
    )


def find_proposers(
    model: LoadedModel, options: TextOptions, draft: LoadedModel | None, size: CacheSize
) -> dict[ProposerKind, Proposer]:
    """Raises ModelError where the draft model is missing, or can't be one for the model."""
    proposers: dict[ProposerKind, Proposer] = {"ngram": NgramProposer()}
    if draft is not None:
        require_same_vocabulary(model.tokenizer, draft.tokenizer)
        proposers["draft"] = DraftModel(
            draft.decoder,
            size.num_blocks,
            vocab_size=model.decoder.config.vocab_size,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
    elif options.speculation == "draft":
        raise ModelError('text.draft: speculation = "draft" needs the source of a draft model')
    return proposers


def make_scheduler(
    blocks: BlockManager, tile: int, options: TextOptions, size: CacheSize, speculation: Speculation
) -> Scheduler:
    try:
        return Scheduler(
            blocks,
            tile=tile,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=size.max_model_len,
            released=speculation.release,
        )
    except ValueError as error:
        raise ModelError(f"text.max_num_batched_tokens, text.max_num_seqs: {error}") from error
