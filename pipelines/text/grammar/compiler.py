"""From a request's grammar to an automaton over the model's tokens, by llguidance."""

import json
import os
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from functools import cached_property
from threading import Lock

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from models.tokenizer.tokenizer import Tokenizer
from pipelines.base import InvalidRequest
from pipelines.messages.grammar import Grammar
from pipelines.text.grammar.schema import read_schema
from pipelines.text.grammar.tokens import read_tokens

Masks = npt.NDArray[np.int32]  # a bit a token, 32 in a word

MAX_KEPT = 128  # compiled grammars of a model
MAX_KEPT_CHARACTERS = 2**21  # of all of them together; what is compiled takes some ten times as much
MAX_OWN = 2**15  # characters of a regular expression or a grammar
MAX_THREADS = 8


def _limits(*, row: int, step: int) -> LLParserLimits:
    """What a grammar may take: some 100 ms to build; then 20 ms a token, and 64 MiB. `row`, `step`: things that the
    parser may keep apart, at one place and in one step."""
    return LLParserLimits(
        max_items_in_row=row,
        step_max_items=step,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class Automaton:
    """A grammar over the tokens of a model, at the beginning of a text."""

    def __init__(self, matcher: LLMatcher, tokens: "ModelTokens") -> None:
        self.tokens = tokens
        self._matcher = matcher
        self._lock = Lock()

    def start(self) -> LLMatcher:
        """For one text. On any thread."""
        with self._lock:
            return self._matcher.deep_copy()


class ModelTokens:
    """What the automata of a model share."""

    def __init__(self, tokenizer: Tokenizer, size: int, eos_ids: AbstractSet[int]) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self.eos_ids = frozenset(id for id in eos_ids if id < size)
        self.special_ids = tokenizer.special_ids | self.eos_ids
        self._lock = Lock()
        self._reader: LLTokenizer | None = None

    @property
    def reader(self) -> LLTokenizer:
        """Made when it is wanted for the first time: it takes some tenths of a second."""
        with self._lock:
            if self._reader is None:
                self._reader = read_tokens(self._tokenizer, self._size, self.eos_ids)
            return self._reader

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(min(MAX_THREADS, os.cpu_count() or 1))

    def masks(self, matchers: list[LLMatcher]) -> Masks:
        """What may come next, of each: [matchers, words]. Nothing may where its limits are reached."""
        found = np.zeros((len(matchers), (self.reader.vocab_size + 31) // 32), dtype=np.int32)
        if len(matchers) == 1:
            fill_next_token_bitmask(matchers[0], found)
        else:
            fill_next_token_bitmask_par(self._executor, [(each, row) for row, each in enumerate(matchers)], found)
        for row, matcher in enumerate(matchers):
            if matcher.is_error():
                found[row] = 0
        return found


class Grammars:
    """Compiles, and keeps what was compiled last. On pool threads, concurrently."""

    def __init__(self, tokenizer: Tokenizer, size: int, eos_ids: AbstractSet[int]) -> None:
        """`size`: of the model's vocabulary."""
        self._tokens = ModelTokens(tokenizer, size, eos_ids)
        # Objects keep four a property that may be left out, and take little time for each; in grammars of one's own few
        # can be made to take much.
        self._of_json = _limits(row=2_000, step=4_000)
        self._of_others = _limits(row=500, step=1_000)
        self._kept: OrderedDict[Grammar, Automaton] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def keeps(self, grammar: Grammar) -> bool:
        """Whether it takes no time."""
        return grammar in self._kept

    def compile(self, grammar: Grammar, field: str) -> Automaton:
        """`field`: what the caller calls it. Raises InvalidRequest where it can't be kept to, or takes too much."""
        with self._lock:
            if (found := self._kept.get(grammar)) is not None:
                self._kept.move_to_end(grammar)
                return found
        limits = self._of_json if grammar.kind.startswith("json") else self._of_others
        matcher = LLMatcher(self._tokens.reader, _translate(grammar, field), log_level=0, limits=limits)
        if not matcher.is_error():
            self._tokens.masks([matcher])  # a grammar may turn out to be too much with its first token
        if matcher.is_error():
            raise InvalidRequest(f"the grammar can't be kept to: {reason(matcher)}", field)
        made = Automaton(matcher, self._tokens)
        with self._lock:
            if grammar not in self._kept:
                self._kept[grammar] = made
                self._characters += len(grammar.text)
            while len(self._kept) > MAX_KEPT or self._characters > MAX_KEPT_CHARACTERS:
                oldest, _ = self._kept.popitem(last=False)
                self._characters -= len(oldest.text)
        return made


def reason(matcher: LLMatcher) -> str:
    """What is wrong with one, in a line."""
    text = matcher.get_error().replace("<non-verbose/>", "").strip()
    return " ".join(text.split())[:500]


def _translate(grammar: Grammar, field: str) -> str:
    """As the library takes it. Raises InvalidRequest."""
    try:
        match grammar.kind:
            case "json_schema":
                return _from_schema(read_schema(grammar.text, field, strict=grammar.strict))
            case "json_object":
                return _from_schema({"type": "object"})
            case "regex" | "gbnf" | "lark" if len(grammar.text) > MAX_OWN:
                raise InvalidRequest(f"it may have {MAX_OWN} characters", field)
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "choice":
                return LLMatcher.grammar_from_regex(_one_of(grammar.text))
            case "gbnf":
                return _from_lark(any_to_lark(grammar.text), field)
            case "lark":
                return _from_lark(grammar.text, field)
    except InvalidRequest:
        raise
    except (Exception, RecursionError) as error:  # noqa: BLE001  the library's own have no type of their own
        raise InvalidRequest(f"the grammar can't be read: {' '.join(str(error).split())[:500]}", field) from None


def _from_schema(schema: dict[str, object]) -> str:
    # Small models that may write blanks between two things write them for ever.
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def _from_lark(text: str, field: str) -> str:
    """In an envelope: by itself, a text in braces would be read as one."""
    if "%json" in text:
        raise InvalidRequest("'%json' is not taken in a grammar: send the schema as such", field)
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _one_of(text: str) -> str:
    return "|".join("(" + "".join(map(_literal, choice)) + ")" for choice in json.loads(text))


def _literal(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):X}}}"
