"""`POST /v1/chat/completions`: the request."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Raw, Struct

from gateway.api.text.grammar import ResponseFormat, grammar
from gateway.api.text.sampling import (
    ABSENT,
    TextFields,
    check_stream_options,
    max_draft,
    present,
    proposer,
    sampling,
    unsupported,
)
from gateway.api.texts import renamed
from gateway.errors import ApiError, bad_request
from gateway.uploads.images import ImageUrl
from pipelines.messages.sampling import NewTokens, TopLogprobs
from pipelines.messages.text import (
    ChatPrompt,
    Detail,
    FunctionCall,
    ImagePart,
    Message,
    Part,
    TextPart,
    TextRequest,
    ToolCall,
)

# OpenAI's parameters that this endpoint has no use for; each is a 400 unless it is null.
UNSUPPORTED = (
    "audio",
    "function_call",
    "functions",
    "prediction",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
)
ROLES = ("system", "developer", "user", "assistant", "tool")


class TextContent(Struct, frozen=True, tag="text"):
    text: str


class RefusalContent(Struct, frozen=True, tag="refusal"):
    refusal: str


class ImageLocation(Struct, frozen=True):
    """Further keys are ignored, as in messages: clients say the format here, which the file itself does."""

    url: str  # a data: URI, or an address on one of the hosts that are allowed
    detail: Detail | None = None


class ImageContent(Struct, frozen=True, tag="image_url"):
    image_url: str | ImageLocation

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url

    @property
    def detail(self) -> Detail:
        return "auto" if isinstance(self.image_url, str) else self.image_url.detail or "auto"

    def field(self, at: str) -> str:
        """What its address is called, of the part `at`."""
        return f"{at}.image_url" if isinstance(self.image_url, str) else f"{at}.image_url.url"


class AudioContent(Struct, frozen=True, tag="input_audio"):
    input_audio: Raw


class FileContent(Struct, frozen=True, tag="file"):
    file: Raw


Content = TextContent | RefusalContent | ImageContent | AudioContent | FileContent


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class MadeCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: str = "function"


class ChatMessage(Struct, frozen=True):
    """One turn. Further keys are ignored: editors keep their own in here."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[Content] | None = None
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(TextFields, frozen=True, kw_only=True):
    """The body. `n` choices of one conversation."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: NewTokens | None = None  # `max_tokens` is its older name
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    tools: list[Raw] | None = None  # []: absent
    tool_choice: Raw = ABSENT
    parallel_tool_calls: Raw = ABSENT  # without effect: there are no tools

    @property
    def images(self) -> list[ImageUrl]:
        return [ImageUrl(part.url, part.field(at), at) for at, part in self._images()]

    def _images(self) -> Iterator[tuple[str, ImageContent]]:
        for index, message in enumerate(self.messages):
            if isinstance(message.content, list):
                for number, part in enumerate(message.content):
                    if isinstance(part, ImageContent):
                        yield f"messages[{index}].content[{number}]", part

    audio: Raw = ABSENT
    function_call: Raw = ABSENT
    functions: Raw = ABSENT
    prediction: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    verbosity: Raw = ABSENT
    web_search_options: Raw = ABSENT


def to_text_request(body: ChatRequest, salt: str) -> TextRequest:
    """The body as a text pipeline takes it, its images without their bytes. `salt` is the tenant's. Raises ApiError
    (400)."""
    _refuse_unsupported(body)
    check_stream_options(body)
    asked, name = grammar(body, body.response_format)
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    return TextRequest(
        prompts=[ChatPrompt(messages)],
        sampling=sampling(body, max_tokens=_max_tokens(body), logprobs=_logprobs(body), grammar=asked),
        n=body.choices,
        proposer=proposer(body),
        max_draft=max_draft(body),
        salt=salt,
        names=name | renamed((("max_tokens", body.max_tokens), ("max_completion_tokens", body.max_completion_tokens))),
    )


def _refuse_unsupported(body: ChatRequest) -> None:
    if body.tools:
        raise unsupported("tools", "no model here calls tools yet; leave it out or send []")
    if present(body.tool_choice) and bytes(body.tool_choice) not in (b'"none"', b'"auto"'):
        raise unsupported("tool_choice", "without tools it may be 'none' or 'auto'")
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "it may be ['text']")
    for field in UNSUPPORTED:
        if present(getattr(body, field)):
            raise unsupported(field)


def _max_tokens(body: ChatRequest) -> int | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if old == 0:
        raise bad_request("max_tokens", "'max_tokens' must be at least 1.")
    if new is not None and old is not None and new != old:
        raise bad_request("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; send one of them.")
    return old if new is None else new


def _logprobs(body: ChatRequest) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise bad_request("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
        return None
    return body.top_logprobs or 0


def _message(message: ChatMessage, at: str) -> Message:
    match message.role:
        case "system" | "developer" | "user" | "assistant" | "tool" as role:
            pass
        case _:
            raise bad_request(f"{at}.role", f"'{at}.role' must be one of {', '.join(ROLES)}.")
    calls = message.tool_calls or []
    if calls and role != "assistant":
        raise bad_request(f"{at}.tool_calls", f"'{at}.tool_calls' is only allowed in messages of the assistant.")
    if role == "tool" and message.tool_call_id is None:
        raise bad_request(f"{at}.tool_call_id", f"'{at}.tool_call_id' is required where the role is tool.")
    if message.content is None and role != "assistant":
        raise bad_request(f"{at}.content", f"'{at}.content' is required; it may be a string or a list of parts.")
    return Message(
        role=role,
        content=_content(message.content, f"{at}.content"),
        name=message.name,
        tool_calls=[ToolCall(c.id, FunctionCall(c.function.name, c.function.arguments), c.type) for c in calls],
        tool_call_id=message.tool_call_id,
    )


def _content(content: str | list[Content] | None, at: str) -> list[Part]:
    if not content:
        return []
    if isinstance(content, str):
        return [TextPart(content)]
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(content)]


def _part(part: Content, at: str) -> Part:
    match part:
        case TextContent(text=text) | RefusalContent(refusal=text):
            return TextPart(text)
        case ImageContent():
            return ImagePart(b"", part.detail, part.field(at))
        case _:
            raise _media_refused(at)


def _media_refused(at: str) -> ApiError:
    message = f"{at!r} is neither text nor an image; a chat takes nothing else."
    return bad_request(at, message, code="unsupported_content")
