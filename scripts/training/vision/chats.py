"""Chats about pictures as the language model reads them: its own template, with 16 rows where a picture stands."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.tokenizer.tokenizer import Tokenizer
from scripts.training.vision.questions import Turn
from scripts.training.vision.tower import AROUND, GLOBAL, IMAGE, ROWS

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BEFORE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{AROUND}{GLOBAL}"  # of every chat with one picture
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\n" + SYSTEM + "<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '" + IMAGE + "' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)  # of a message's parts the pictures come first


@dataclass(frozen=True, slots=True)
class Chat:
    """What comes behind BEFORE. The first ROWS tokens stand for the picture."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]  # which of them are the assistant's


def chat(turns: Sequence[Turn], tokenizer: Tokenizer) -> Chat:
    ids, learned = [tokenizer.token_ids()[IMAGE]] * ROWS, [False] * ROWS

    def add(text: str, *, said: bool) -> None:
        more = tokenizer.encode(text, add_special=False)
        ids.extend(more)
        learned.extend([said] * len(more))

    for at, turn in enumerate(turns):
        opening = AROUND if at == 0 else "\n<|im_start|>user\n"
        add(f"{opening}{turn.question}<|im_end|>\n<|im_start|>assistant\n", said=False)
        add(f"{turn.answer}<|im_end|>", said=True)
    return Chat(tuple(ids), tuple(learned))


def prompt(question: str, tokenizer: Tokenizer) -> list[int]:
    """All of a chat with one picture, up to where the assistant speaks."""
    image = IMAGE * ROWS
    return tokenizer.encode(f"{BEFORE}{image}{AROUND}{question}<|im_end|>\n<|im_start|>assistant\n", add_special=False)
