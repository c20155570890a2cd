"""`POST /v1/completions`: the request."""

from typing import Annotated

from msgspec import Meta

from gateway.api.text.sampling import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    TextFields,
    TokenId,
    check_stream_options,
    max_draft,
    proposer,
    sampling,
    unsupported,
)
from gateway.errors import bad_request
from pipelines.messages.text import Prompt, StringPrompt, TextRequest, TokenPrompt

MAX_PROMPTS = 2048  # and no more choices of all of them together: each is a sequence with its own tokens

Prompts = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=2**20)]


class CompletionRequest(TextFields, frozen=True, kw_only=True):
    """The body. `n` choices for each prompt; a prompt is a string or a list of token ids."""

    prompt: Prompts
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # 0: the chosen tokens' alone
    suffix: str | None = None


def to_text_request(body: CompletionRequest, salt: str) -> TextRequest:
    """The body as a text pipeline takes it. `salt` is the tenant's. Raises ApiError (400)."""
    if body.best_of is not None and body.best_of != body.choices:
        raise unsupported("best_of", "it may be the same as 'n'")
    if body.suffix:
        raise unsupported("suffix")
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens", "'max_tokens' must be at least 1, or 0 with 'echo'.")
    check_stream_options(body)
    asked = prompts(body.prompt)
    if len(asked) * body.choices > MAX_PROMPTS:
        raise bad_request("n", f"'n' times the number of prompts must be at most {MAX_PROMPTS}.")
    return TextRequest(
        prompts=asked,
        sampling=sampling(body, max_tokens=body.max_tokens, logprobs=body.logprobs),
        n=body.choices,
        echo=bool(body.echo),
        proposer=proposer(body),
        max_draft=max_draft(body),
        salt=salt,
    )


def prompts(prompt: Prompts) -> list[Prompt]:
    """The four forms of `prompt`: a string, strings, token ids, lists of token ids. Raises ApiError (400)."""
    if isinstance(prompt, str):
        return [StringPrompt(prompt)]
    if all(isinstance(each, int) for each in prompt):
        return [TokenPrompt([each for each in prompt if isinstance(each, int)])]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request("prompt", f"'prompt' must hold at most {MAX_PROMPTS} prompts.")
    found: list[Prompt] = []
    for index, each in enumerate(prompt):
        if type(each) is not type(prompt[0]):
            raise bad_request(
                "prompt", "'prompt' must be a string, or a list of strings, of token ids, or of lists of token ids."
            )
        match each:
            case str():
                found.append(StringPrompt(each))
            case list():
                if not each:
                    raise bad_request(f"prompt[{index}]", f"'prompt[{index}]' must hold at least one token id.")
                found.append(TokenPrompt(each))
    return found
