"""What a text has to keep to."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_GRAMMAR = 2**18  # characters
GrammarKind = Literal["json_schema", "json_object", "regex", "lark", "gbnf", "choice"]
GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR)]
ChoiceText = Annotated[str, Meta(min_length=1, max_length=4096)]
ChoiceTexts = Annotated[list[ChoiceText], Meta(min_length=1, max_length=4096)]


class Grammar(Struct, frozen=True, omit_defaults=True):
    """`text`: a JSON schema, a JSON list of choices, or the grammar itself; of a JSON object nothing."""

    kind: GrammarKind
    text: GrammarText = "{}"
    strict: bool = False  # of a JSON schema: it must be of OpenAI's subset
