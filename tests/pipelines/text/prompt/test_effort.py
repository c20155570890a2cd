from pipelines.messages.text import (
    ChatPrompt,
    FunctionCall,
    Message,
    StringPrompt,
    TextPart,
    TextRequest,
    TokenPrompt,
    ToolCall,
)
from pipelines.runtime.backlog import LARGE
from pipelines.text.prompt.effort import ITEM, effort


def test_what_there_is_to_read_is_all_that_a_request_has() -> None:
    call = ToolCall("id", FunctionCall("f", "{}"))
    chat = ChatPrompt(
        [
            Message("user", [TextPart("four"), TextPart("fives")]),
            Message("assistant", name="me", tool_calls=[call]),
            Message("tool", [TextPart("six")], tool_call_id="id"),
        ]
    )
    text = len("four" + "fives" + "me" + "id" + "function" + "f" + "{}" + "six" + "id")
    assert effort(TextRequest(prompts=[chat])) == text + ITEM * (4 + 1)
    assert effort(TextRequest(prompts=[StringPrompt("abc"), TokenPrompt([1, 2])], n=3)) == 5 + ITEM * 6


def test_choices_do_not_make_a_small_prompt_large() -> None:
    assert effort(TextRequest(prompts=[StringPrompt("x" * 1024)], n=128)) < LARGE
