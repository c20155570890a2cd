"""From a request to its inputs, on a thread of the prepare pool."""

from time import monotonic

import numpy as np

from models.embedder.embedder_config import EmbedderConfig
from pipelines.base import InvalidRequest, Ticket
from pipelines.embedding.batching import Input
from pipelines.embedding.images import load_pixels
from pipelines.embedding.input_tokens import UNCUT, InputTokenizer, Limit, Tokens, cutting
from pipelines.embedding.job import Job
from pipelines.embedding.prompts import UnknownKind, prompt_of, search_prompts
from pipelines.media.decoder import MediaDecoder
from pipelines.messages.embedding import EmbeddingInput, EmbeddingRequest, ImageBytes, RerankRequest, Truncate
from pipelines.messages.text import StringPrompt, TokenPrompt


class Preparer:
    """Shared by the threads of the pool."""

    def __init__(self, tokenizer: InputTokenizer, config: EmbedderConfig, multiple: int) -> None:
        """`multiple`: of what the length of a text is rounded up to."""
        self._tokenizer = tokenizer
        self._config = config
        self._multiple = multiple
        self._media = MediaDecoder()

    def prepare(self, ticket: Ticket, request: EmbeddingRequest | RerankRequest) -> Job:
        """Raises InvalidRequest."""
        match request:
            case EmbeddingRequest():
                job = self._embedding(ticket, request)
            case RerankRequest():
                job = self._rerank(ticket, request)
        job.left = len(job.inputs)
        job.prompt_tokens = sum(each.prompt_tokens for each in job.inputs)
        job.prepared = monotonic()
        return job

    def _embedding(self, ticket: Ticket, request: EmbeddingRequest) -> Job:
        config = self._config
        if config.family == "cross_encoder":
            raise InvalidRequest("this model scores pairs of texts and has no vectors; use /v1/rerank", "model")
        if request.dimensions is not None and request.dimensions > config.dimensions:
            param = request.called("dimensions")
            raise InvalidRequest(f"{param!r} may be 1 to {config.dimensions} for this model", param)
        limit = self._limit(request)
        texts = {i: each.text for i, each in enumerate(request.inputs) if isinstance(each, StringPrompt)}
        params = [f"input[{i}]" for i in texts]
        made = self._tokenizer.texts(
            [*texts.values()], request.truncate, params, prompt=self._prompt(request), limit=limit
        )
        tokens = dict(zip(texts, made, strict=True))
        job = Job(ticket, dimensions=request.dimensions)
        for index, each in enumerate(request.inputs):
            job.inputs.append(self._input(job, index, tokens.get(index) or each, request.truncate, limit))
        return job

    def _prompt(self, request: EmbeddingRequest) -> str:
        kind, param = request.kind, request.called("input_type")
        if kind is not None and not all(isinstance(each, StringPrompt) for each in request.inputs):
            raise InvalidRequest(f"{param!r} is for texts; token ids and images are taken as they are", param)
        try:
            return prompt_of(self._config, kind)
        except UnknownKind as error:
            raise InvalidRequest(f"{param!r} can't be {kind!r}: {error}", param) from None

    def _limit(self, request: EmbeddingRequest) -> Limit:
        least, most = self._tokenizer.special + 1, self._config.max_tokens
        advice = cutting(request.called("truncate"))
        if request.max_tokens is None:
            return Limit(most, advice=advice)
        if not least <= request.max_tokens <= most:
            param = request.called("truncate_prompt_tokens")
            raise InvalidRequest(f"{param!r} may be {least} to {most} for this model, or -1 for {most}", param)
        return Limit(request.max_tokens, advice=advice)

    def _input(self, job: Job, index: int, given: Tokens | EmbeddingInput, truncate: Truncate, limit: Limit) -> Input:
        param = f"input[{index}]"
        match given:
            case ImageBytes(data=data):
                image = self._config.image
                if image is None:
                    raise InvalidRequest(f"{param!r} is an image, but this model embeds text alone", param)
                return Input(job, index, "image", image.tokens, load_pixels(self._media.picture, data, image, param), 0)
            case TokenPrompt(ids=ids):
                return self._text(job, index, self._tokenizer.ids(ids, truncate, param, limit=limit))
            case Tokens():
                return self._text(job, index, given)
            case StringPrompt():
                raise AssertionError("strings are tokenised together")

    def _rerank(self, ticket: Ticket, request: RerankRequest) -> Job:
        tokenizer, limit = self._tokenizer, request.max_tokens_per_document
        of, advice = request.called("documents"), cutting(request.called("truncate"))
        params = [f"{of}[{index}]" for index in range(len(request.documents))]
        cosine = self._config.family != "cross_encoder"
        if cosine:
            before_query, before_document = search_prompts(self._config)
            most = Limit(self._config.max_tokens, advice=UNCUT)
            tokens = tokenizer.texts([request.query], "none", ["query"], prompt=before_query, limit=most)
            tokens += tokenizer.documents(
                request.documents, request.truncate, params, limit, prompt=before_document, advice=advice
            )
        else:
            tokens = tokenizer.pairs(request.query, request.documents, request.truncate, params, limit, advice=advice)
        # What reads the same is run once: equal documents have equal scores, wherever they stand.
        inputs: dict[bytes, Input] = {}
        places: list[int] = []
        job = Job(ticket, cosine=cosine)
        for each in tokens:
            key = each.ids.tobytes()
            if key in inputs:
                inputs[key].prompt_tokens += each.count
            else:
                inputs[key] = self._text(job, len(inputs), each)
            places.append(inputs[key].index)
        job.inputs = [*inputs.values()]
        job.places = np.array(places)
        job.rows = np.zeros((len(inputs), self._config.dimensions), np.float32)
        return job

    def _text(self, job: Job, index: int, tokens: Tokens) -> Input:
        length = len(tokens.ids)
        return Input(job, index, "text", length + -length % self._multiple, tokens, tokens.count)
