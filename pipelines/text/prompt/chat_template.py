"""Chat messages to the text that a model was trained on."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.errors import ModelLoadError
from pipelines.base import InvalidRequest
from pipelines.messages.text import ImagePart, Message, Part, TextPart
from pipelines.text.prompt.placeholders import Controls, JsonValue, is_placeholder

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. What the messages spelled like a control token, and the template did not write, has a character in its
    place: `literals` says what each stands for."""

    text: str
    literals: Mapping[str, str]


class ChatTemplate:
    """A model's own template, compiled once and rendered as transformers renders it.

    Safe to share between threads. `special_tokens` are the names that templates know: bos_token, eos_token, …;
    `controls` is how the vocabulary's control tokens are spelled; `sees`: whether messages may have images. Raises
    ModelLoadError where the template does not compile.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], controls: Collection[str] = (), *, sees: bool = False
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelLoadError(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._controls = Controls(controls)
        self._knows_developer = "developer" in source
        self._sees = sees
        self._lists = sees and self._wants_lists()

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The prompt that asks for the next assistant message.

        Raises InvalidRequest for what is nested too deep, and for a conversation that the template refuses:
        some want roles to take turns, some know no system message.
        """
        return self._rendered([self._plain(message) for message in messages])

    def _rendered(self, messages: Sequence[Mapping[str, JsonValue]]) -> Rendered:
        """Raises InvalidRequest."""
        try:
            guarded, literals = self._controls.guard(messages)
            text = self._template.render(
                messages=guarded, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
            return Rendered(text, literals)
        except TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses the messages: {error}", "messages") from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # A template is a program: what the conversation makes it do wrong is the conversation's fault.
            raise InvalidRequest(f"the model's chat template can't render the messages: {error}", "messages") from error

    def _wants_lists(self) -> bool:
        """Whether a text comes through the template as a list of parts alone: some walk such lists and nothing else."""
        for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user")):
            for lists in (False, True):
                texts = [f"text{number}" for number in range(len(roles))]
                contents = [_parts(text) if lists else text for text in texts]
                try:
                    rendered = self._rendered(
                        [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
                    )
                except InvalidRequest:
                    continue
                if all(text in rendered.text for text in texts):
                    return lists
        return False

    def _plain(self, message: Message) -> dict[str, JsonValue]:
        """The message as templates expect it: arguments of a call are an object."""
        role = "system" if message.role == "developer" and not self._knows_developer else message.role
        plain: dict[str, JsonValue] = {"role": role, "content": self._content(message)}
        if message.name is not None:
            plain["name"] = message.name
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
        return plain

    def _content(self, message: Message) -> JsonValue:
        """One string, where there are no images. Raises InvalidRequest for images of which the model knows nothing."""
        image = next((part for part in message.content if isinstance(part, ImagePart)), None)
        if image is not None:
            if not self._sees:
                raise InvalidRequest("this model takes no images", image.field or "messages")
            return [_part(part) for part in message.content]
        text = "\n".join(part.text for part in message.content if isinstance(part, TextPart))
        return _parts(text) if self._lists else text


def _parts(text: str) -> JsonValue:
    return [{"type": "text", "text": text}]


def _part(part: Part) -> JsonValue:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}


def _arguments(text: str) -> JsonValue:
    """The object that `text` spells, else the text: a model's call need not have been valid JSON."""
    try:
        value: JsonValue = msgspec.json.decode(text)  # not json's: that lets halves of surrogate pairs through
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _tojson(
    value: JsonValue,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models have not seen."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(character: re.Match[str]) -> str:
    return character[0] if is_placeholder(character[0]) else json.dumps(character[0])[1:-1]


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` marks what the assistant says, for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()
