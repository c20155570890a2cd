"""What files hold of the half that sees, whatever their form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from models.vision.families.family import Family

if TYPE_CHECKING:
    from torch import Tensor


class Weights(Protocol):
    """Tensors by the names of transformers' class, of which files may have one of several."""

    where: str  # for messages

    def __contains__(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...] | None: ...
    def tensor(self, name: str) -> "Tensor":
        """Raises ModelLoadError."""
        ...


@dataclass(frozen=True, slots=True)
class Half:
    family: Family
    where: str  # what `config` is from, for messages
    config: Mapping[str, Any]  # by the keys of config.json; whole numbers are integers
    as_written: Mapping[str, Any]  # the same with numbers as they are spelled: transformers tells 1.0 from 1
    settings_where: str
    settings: Mapping[str, Any]  # of the image processor, by the keys of preprocessor_config.json
    chat_template: str | None
    open_weights: Callable[[], Weights]  # imports torch
