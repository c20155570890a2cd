"""From a request to sequences: validated, templated, tokenised."""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from models.tokenizer.tokenizer import NONE, Tokenizer
from pipelines.base import InvalidRequest, Ticket
from pipelines.messages.sampling import SamplingDefaults
from pipelines.messages.text import (
    ChatPrompt,
    Message,
    Prompt,
    ProposerKind,
    StringPrompt,
    TextOptions,
    TextRequest,
    TokenPrompt,
)
from pipelines.text.cache.prefix import PrefixKey, prefix_keys
from pipelines.text.drafting import Drafting
from pipelines.text.grammar.compiler import Automaton, Grammars
from pipelines.text.output.choice_text import Output
from pipelines.text.output.detokenizer import incomplete_tail
from pipelines.text.prompt.chat_template import ChatTemplate
from pipelines.text.prompt.effort import effort
from pipelines.text.prompt.image_turns import image_parts, misplaced
from pipelines.text.prompt.vocabulary import Vocabulary
from pipelines.text.sample.rules import Rules
from pipelines.text.sample.sampling import SamplingParams, resolve
from pipelines.text.sequence import Group, Sequence
from pipelines.text.vision.prepare import ImagePreparer
from pipelines.text.vision.prompt_images import PromptImages

BRIEF = 1000  # of effort: preparing more takes longer than waking a thread


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A prompt as the model reads it, and as it is echoed."""

    ids: list[int]
    text: str
    tail: bytes = b""  # of the text: the beginning of a character that only the output can complete
    images: PromptImages | None = None


class Preparer:
    """Runs on pool threads, concurrently: nothing here changes but each thread's own tokenizer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        defaults: SamplingDefaults,
        eos_ids: frozenset[int],
        template: ChatTemplate | None,
        *,
        max_model_len: int,
        block_size: int,
        options: TextOptions,
        proposers: Collection[ProposerKind],
        images: ImagePreparer | None = None,
    ) -> None:
        """`defaults` and `options`: what holds for requests that don't say. `eos_ids`: the model's own, beside the
        tokenizer's. `proposers`: those that the model has. `images`: of a model that takes some."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._defaults = defaults
        self._template = template
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._prefix_cache = options.prefix_cache
        self._proposer: ProposerKind = options.speculation or "ngram"
        self._max_draft = options.max_draft if options.speculation else 0
        self._proposers = proposers
        self._images = images
        self._eos_ids = tokenizer.eos_ids | eos_ids
        self._grammars = Grammars(tokenizer, vocabulary.size, self._eos_ids)
        self._idle = [tokenizer]  # of those made, whichever nobody uses

    def brief(self, request: TextRequest) -> bool:
        grammar = request.sampling.grammar
        return effort(request) <= BRIEF and (grammar is None or self._grammars.keeps(grammar))

    def prepare(self, ticket: Ticket, request: TextRequest) -> list[Sequence]:
        """`n` sequences for each prompt, in the order of the choices. Raises InvalidRequest."""
        for field, ids in (
            ("logit_bias", request.sampling.logit_bias),
            ("stop_token_ids", request.sampling.stop_token_ids),
        ):
            self._require_known(request.called(field), ids or ())
        proposer = request.proposer or self._proposer
        if proposer not in self._proposers:
            raise InvalidRequest("this model has no draft model, only 'ngram'", request.called("speculation.kind"))
        group = Group(ticket, request.echo, proposer=proposer)
        asked = request.sampling.grammar
        grammar = None if asked is None else self._grammars.compile(asked, request.called("grammar"))
        sequences: list[Sequence] = []
        for prompt in request.prompts:
            field = request.called("messages" if isinstance(prompt, ChatPrompt) else "prompt")
            tokens = self._read(prompt, field, request.salt)
            params = self._resolve(request, tokens, field, grammar)
            keys = self._keys(tokens, request.salt) if self._prefix_cache else []
            sequences.extend(self._choices(group, request, tokens, params, keys, len(sequences)))
        group.unfinished = len(sequences)
        group.prompt_tokens = sum(sequence.prompt_tokens for sequence in sequences)
        return sequences

    def _choices(
        self,
        group: Group,
        request: TextRequest,
        tokens: _Tokens,
        params: SamplingParams,
        keys: list[PrefixKey],
        first: int,
    ) -> list[Sequence]:
        choices: list[Sequence] = []
        rules = Rules.of(params, tokens.ids)
        for number in range(request.n):
            own = replace(params, seed=(params.seed + number) % 2**64)
            wanted = request.echo and params.logprobs is not None
            choices.append(
                Sequence(
                    group,
                    first + number,
                    list(tokens.ids),
                    own,
                    Output(own.stop, tokens.tail),
                    prompt_text=tokens.text if request.echo else "",
                    keys=keys,
                    leader=choices[0] if choices else None,
                    rules=rules.fork() if choices else rules,
                    drafting=self._drafting(request, group.proposer),
                    images=tokens.images,
                    prompt_logprobs=[self._vocabulary.logprob(tokens.ids[0], None)] if wanted else None,
                )
            )
        return choices

    def _keys(self, tokens: _Tokens, salt: str) -> list[PrefixKey]:
        extras = tokens.images.block_extras(self._block_size) if tokens.images else None
        return prefix_keys(tokens.ids, self._block_size, salt, extras)

    def _drafting(self, request: TextRequest, kind: ProposerKind) -> Drafting | None:
        """What a grammar leaves no choice about is drafted unless the request wants no drafts."""
        most = self._max_draft if request.max_draft is None else request.max_draft
        if most == 0 and (request.sampling.grammar is None or request.max_draft == 0):
            return None
        return Drafting(kind if most else None, most)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _read(self, prompt: Prompt, field: str, salt: str) -> _Tokens:
        """`field`: what the caller calls the prompt. Raises InvalidRequest."""
        if self._images is not None and isinstance(prompt, ChatPrompt) and image_parts(prompt.messages):
            return self._read_with_images(self._images, prompt, field, salt)
        with self._lent() as tokenizer:
            return self._tokenise(prompt, tokenizer, field)

    def _read_with_images(self, images: ImagePreparer, prompt: ChatPrompt, field: str, salt: str) -> _Tokens:
        parts = image_parts(prompt.messages)
        images.require_few(parts)
        with self._lent() as tokenizer:  # not while pictures are decoded
            ids = self._tokenise_places(prompt, tokenizer, field, images.placeholder)
        ids, shown = images.show(ids, parts, salt, limit=self._max_model_len, param=field)
        self._require_known(field, ids)
        return _Tokens(ids, "", images=shown)

    def _tokenise_places(self, prompt: ChatPrompt, tokenizer: Tokenizer, field: str, placeholder: int) -> list[int]:
        """With a placeholder for each of the conversation's images. Raises InvalidRequest where the template does not
        write so many."""

        def places(messages: Rows[Message]) -> int:
            return self._tokenise(ChatPrompt([*messages]), tokenizer, field).ids.count(placeholder)

        try:
            ids = self._tokenise(prompt, tokenizer, field).ids
        except InvalidRequest as refusal:
            if refusal.code != "invalid_request":
                raise
            raise misplaced(prompt.messages, places) or refusal from None
        if ids.count(placeholder) != len(image_parts(prompt.messages)):
            several = InvalidRequest("the model's chat template has no place for each of these images", field)
            raise misplaced(prompt.messages, places) or several
        return ids

    def _tokenise(self, prompt: Prompt, tokenizer: Tokenizer, field: str) -> _Tokens:
        """`field`: what the caller calls the prompt. Raises InvalidRequest."""
        match prompt:
            case ChatPrompt(messages=messages):
                if self._template is None:
                    raise InvalidRequest("this model has no chat template: it only completes prompts", field)
                rendered = self._template.render(messages)
                prompt_text = self._images.spaced(rendered.text) if self._images else rendered.text
                self._require_fit(tokenizer, field, prompt_text, rendered.literals)
                ids = tokenizer.encode(prompt_text, add_special=False, literals=rendered.literals)
                self._require_known(field, ids)
                return _Tokens(ids, "")  # a chat is not echoed
            case StringPrompt(text=text):
                self._require_fit(tokenizer, field, text)
                ids = tokenizer.encode(text, add_special=True)
                if not ids and tokenizer.bos_id is not None:
                    ids = [tokenizer.bos_id]  # an empty prompt: a text of the model's own
                if not ids:
                    raise InvalidRequest("the prompt is empty, and the model has no token that begins a text", field)
                self._require_known(field, ids)
                return _Tokens(ids, text)
            case TokenPrompt(ids=ids):
                if len(ids) > self._max_model_len:
                    raise self._too_long(field, str(len(ids)))
                self._require_known(field, ids)
                data = b"".join(map(self._vocabulary.bytes_of, ids))
                tail = incomplete_tail(data)
                return _Tokens(ids, data[: len(data) - len(tail)].decode("utf-8", errors="replace"), tail)

    def _require_fit(self, tokenizer: Tokenizer, field: str, text: str, literals: Mapping[str, str] = NONE) -> None:
        """Raises InvalidRequest for a text that is too long by far: it is not worth the seconds to count its tokens."""
        if tokenizer.exceeds(text, self._max_model_len, literals=literals):
            raise self._too_long(field, f"more than {self._max_model_len}")

    def _too_long(self, field: str, count: str) -> InvalidRequest:
        return InvalidRequest(
            f"the context holds {self._max_model_len} tokens, the prompt alone has {count}",
            field,
            "context_length_exceeded",
        )

    def _require_known(self, field: str, ids: Collection[int]) -> None:
        """Raises InvalidRequest for an id that the model has no row for. A tokenizer may have such tokens too: added
        ones, behind a vocabulary that was not made larger for them."""
        size, highest = self._vocabulary.size, max(ids, default=0)
        if highest >= size:
            raise InvalidRequest(f"token id {highest} is out of range: the vocabulary has {size}", field)

    @contextmanager
    def _lent(self) -> Iterator[Tokenizer]:
        """A tokenizer that no other thread uses meanwhile. There are as many as were ever in use at once: making one
        takes longer than most prompts."""
        try:
            tokenizer = self._idle.pop()
        except IndexError:
            tokenizer = self._tokenizer.clone()
        try:
            yield tokenizer
        finally:
            self._idle.append(tokenizer)

    # --- settings -----------------------------------------------------------------------------------------------------

    def _resolve(self, request: TextRequest, tokens: _Tokens, field: str, grammar: Automaton | None) -> SamplingParams:
        """Settings with the model's defaults. Raises InvalidRequest where prompt and output can never fit."""
        sampling, limit = request.sampling, self._max_model_len
        prompt_length, images = len(tokens.ids), tokens.images
        of_images = f", {images.tokens} of them of images" if images else ""
        room = limit - prompt_length
        if room < (0 if sampling.max_tokens == 0 else 1):
            raise self._too_long(field, f"{prompt_length}{of_images}")
        if sampling.max_tokens is not None and sampling.max_tokens > room:
            name = request.called("max_tokens")
            raise InvalidRequest(
                f"the context holds {limit} tokens: {prompt_length} of the prompt{of_images} and {name} "
                f"{sampling.max_tokens} are {prompt_length + sampling.max_tokens}",
                name,
                "context_length_exceeded",
            )
        return resolve(sampling, self._defaults, room=room, eos_ids=self._eos_ids, grammar=grammar)
