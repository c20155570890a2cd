"""`POST /v1/completions`: the request."""

from typing import Annotated

from msgspec import Meta

from gateway.api.text.grammar import grammar
from gateway.api.text.sampling import (
    TextFields,
    check_stream_options,
    max_draft,
    proposer,
    sampling,
    unsupported,
)
from gateway.errors import bad_request
from pipelines.messages.sampling import TokenId, TopLogprobs
from pipelines.messages.text import (
    MAX_PROMPT_IDS,
    MAX_SEQUENCES,
    Choices,
    Prompt,
    StringPrompt,
    TextRequest,
    TokenIds,
    TokenPrompt,
)

# One string or prompt of token ids, or several of either.
Prompts = str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1, max_length=MAX_PROMPT_IDS)]


class CompletionRequest(TextFields, frozen=True, kw_only=True):
    """The body. `n` choices for each prompt; a prompt is a string or a list of token ids."""

    prompt: Prompts
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None  # 0: the chosen tokens' alone
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
    wanted, name = grammar(body)
    asked = prompts(body.prompt)
    if len(asked) * body.choices > MAX_SEQUENCES:
        raise bad_request("n", f"'n' times the number of prompts must be at most {MAX_SEQUENCES}.")
    return TextRequest(
        prompts=asked,
        sampling=sampling(body, max_tokens=body.max_tokens, logprobs=body.logprobs, grammar=wanted),
        n=body.choices,
        echo=bool(body.echo),
        proposer=proposer(body),
        max_draft=max_draft(body),
        salt=salt,
        names=name,
    )


def prompts(prompt: Prompts) -> list[Prompt]:
    """The four forms of `prompt`: a string, strings, token ids, lists of token ids. Raises ApiError (400)."""
    if isinstance(prompt, str):
        return [StringPrompt(prompt)]
    if all(isinstance(each, int) for each in prompt):
        return [TokenPrompt([each for each in prompt if isinstance(each, int)])]
    if len(prompt) > MAX_SEQUENCES:
        raise bad_request("prompt", f"'prompt' must hold at most {MAX_SEQUENCES} prompts.")
    found: list[Prompt] = []
    for each in prompt:
        if type(each) is not type(prompt[0]):
            raise bad_request(
                "prompt", "'prompt' must be a string, or a list of strings, of token ids, or of lists of token ids."
            )
        match each:
            case str():
                found.append(StringPrompt(each))
            case list():
                found.append(TokenPrompt(each))
    return found
