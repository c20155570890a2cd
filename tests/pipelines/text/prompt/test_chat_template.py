import json
import re

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from models.errors import ModelLoadError
from pipelines.base import InvalidRequest
from pipelines.messages.text import FunctionCall, ImagePart, Message, TextPart, ToolCall
from pipelines.text.prompt.chat_template import ChatTemplate

CHATML = """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

ALTERNATING = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/…') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content|trim + ' [/INST]' }}
    {%- else %}
        {% generation %}{{- message.content + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}"""

TOOLS = """{%- for message in messages %}
<{{ message.role }}{% if message.name is defined %} {{ message.name }}{% endif %}>
{%- if message.tool_calls %}{%- for call in message.tool_calls %}
{{- '\n' + call.function.name + ' ' + (call.function.arguments | tojson(indent=2)) }}
{%- for key in call.function.arguments %}{% if loop.index > 1 %}{% break %}{% endif %}{{ key }}{% endfor %}
{%- endfor %}{%- endif %}
{{ message.content }}{% if message.tool_call_id is defined %} ({{ message.tool_call_id }}){% endif %}
{%- endfor %}
{%- set state = namespace(count=0) %}{% if tools is not none %}tools{% endif %}{{ state.count }}"""

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def said(role: str, *texts: str, **fields) -> Message:
    return Message(role, [TextPart(text) for text in texts], **fields)


CONVERSATIONS = [
    [said("user", "Hi <&> 'there' 🦊\n")],
    [said("system", "Be brief"), said("user", "Hi")],
    [said("user", "Hi"), said("assistant", "Hello"), said("user", "  How? ")],
    [
        said("user", "Weather?"),
        Message("assistant", tool_calls=[ToolCall("c1", FunctionCall("weather", '{"city": "Zürich <b>", "days": 2}'))]),
        said("tool", "sun", tool_call_id="c1", name="weather"),
    ],
]


def as_dicts(conversation: list[Message]) -> list[dict]:
    """As a user of transformers would write them."""
    dicts = []
    for message in conversation:
        plain = {"role": message.role, "content": "\n".join(part.text for part in message.content)}
        for field in ("name", "tool_call_id"):
            if getattr(message, field) is not None:
                plain[field] = getattr(message, field)
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": json.loads(call.function.arguments)},
                }
                for call in message.tool_calls
            ]
        dicts.append(plain)
    return dicts


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("source", [CHATML, ALTERNATING, TOOLS], ids=["chatml", "alternating", "tools"])
def test_renders_as_transformers_does(source, conversation):
    refusal = None
    rendered = [""]
    try:
        rendered, _ = render_jinja_template(
            [as_dicts(conversation)], chat_template=source, add_generation_prompt=True, **SPECIAL
        )
    except TemplateError as error:
        refusal = str(error)
    template = ChatTemplate(source, SPECIAL)
    if refusal is None:
        assert template.render(conversation).text == rendered[0]
    else:
        with pytest.raises(InvalidRequest, match=re.escape(refusal)) as caught:
            template.render(conversation)
        assert caught.value.param == "messages"


def test_text_parts_are_joined():
    assert "one\ntwo" in ChatTemplate(CHATML, {}).render([said("user", "one", "two")]).text


def test_developer_is_system_where_the_template_does_not_know_it():
    assert "<|im_start|>system\nBe brief" in ChatTemplate(CHATML, {}).render([said("developer", "Be brief")]).text
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{{ m.role }}{% endfor %}"
    assert ChatTemplate(knows, {}).render([said("developer", "Be brief")]).text == "Ddeveloper"


def test_arguments_that_are_no_object_stay_text():
    message = Message("assistant", tool_calls=[ToolCall("c", FunctionCall("f", "not json"))])
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert ChatTemplate(source, {}).render([message]).text == "not json"


def test_date_and_missing_names():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}{{ nothing }}", {}).render([said("user", "x")]).text) == 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",  # TypeError
        "{{ messages[0].nothing.more }}",  # UndefinedError
        "{{ messages[0].content | int('x') // 0 }}",  # ZeroDivisionError
        "{{ ''.__class__.__mro__ }}",  # SecurityError
        "{{ raise_exception('no') }}",
    ],
)
def test_what_a_template_can_not_render_is_the_callers_error(source):
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render([said("user", "x")])
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_fails_the_load():
    with pytest.raises(ModelLoadError, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_arguments_that_are_nested_too_deep_are_named():
    call = ToolCall("c", FunctionCall("f", '{"a":' * 600 + "1" + "}" * 600))
    template = ChatTemplate("{{ messages[0].role }}", {}, {"<s>"})
    with pytest.raises(InvalidRequest) as caught:
        template.render([Message("assistant", tool_calls=[call])])
    assert caught.value.param == "messages"


# --- images -----------------------------------------------------------------------------------------------------------

BOTH = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% endfor %}"
)
LISTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content[0].type == 'image' %}!{% endif %}{% for p in m.content %}"
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}{% endfor %}"
)
LISTS_WITH_IMAGES_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content[0]['text'] }}{% else %}[{{ m.role }}]"
    "{% for p in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text | trim }}"
    "{{ '<image>' if p.type == 'image' }}{% endfor %}{% endif %}|{% endfor %}"
)


def seeing(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, sees=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (BOTH, "[system]Be[user]a\nb[assistant]c[user]<image>d<image>"),
        (LISTS, "[system]Be[user]a\nb[assistant]c[user]!<image>d<image>"),
        (LISTS_WITH_IMAGES_FIRST, "Be[user]a\nb[assistant]c[user]<image><image>d"),
    ],
)
def test_templates_of_models_that_see_get_the_form_that_they_know(source: str, expected: str) -> None:
    shown = Message("user", [ImagePart(b""), TextPart("d"), ImagePart(b"")])
    conversation = [said("system", "Be"), said("user", "a", "b"), said("assistant", "c"), shown]
    assert seeing(source).render(conversation).text == expected


def test_a_template_that_wants_turns_and_no_system_message_gets_strings() -> None:
    shown = Message("user", [TextPart(" a "), ImagePart(b"")])
    assert seeing(STRICT).render([shown, said("assistant", " b "), said("user", "c")]).text == "a<image>|b|c|"
    assert not seeing(STRICT)._lists


def test_a_message_without_content_is_an_empty_text() -> None:
    assert seeing(LISTS).render([Message("assistant"), said("user", "a")]).text == "[assistant][user]a"


def test_typed_control_tokens_beside_images_are_kept_apart() -> None:
    template = ChatTemplate(LISTS, {}, ["<image>"], sees=True)
    rendered = template.render([Message("user", [TextPart("<image>"), ImagePart(b""), TextPart("b<image>")])])
    assert rendered.text.count("<image>") == 1
    assert list(rendered.literals.values()) == ["<image>"]


def test_models_that_do_not_see_take_no_images() -> None:
    with pytest.raises(InvalidRequest, match="no images") as refusal:
        ChatTemplate(BOTH, {}).render([Message("user", [ImagePart(b"", field="messages[0].content[0]")])])
    assert refusal.value.param == "messages[0].content[0]"
