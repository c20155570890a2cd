"""Safetensors checkpoints, whole or sharded: tensors by name, read when asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.errors import ModelLoadError
from models.files.description import read_json
from models.files.fields import Fields
from models.files.safetensors_header import StoredTensor, read_header

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


class SafetensorsFiles:
    def __init__(self, folder: Path) -> None:
        """Raises ModelLoadError where `folder` holds no complete safetensors checkpoint."""
        self.where = str(folder)
        self._folder = folder
        self._headers: dict[str, Mapping[str, StoredTensor]]  # by file
        index = read_json(folder / _INDEX)
        if index is not None:
            self._shards = self._read_index(index)
            self._headers = {shard: read_header(folder / shard) for shard in sorted(set(self._shards.values()))}
        elif (folder / _WHOLE).is_file():
            self._headers = {_WHOLE: read_header(folder / _WHOLE)}
            self._shards = dict.fromkeys(self._headers[_WHOLE], _WHOLE)
        else:
            raise ModelLoadError(f"{folder} has no {_WHOLE} nor {_INDEX}")
        for name, shard in self._shards.items():
            if name not in self._headers[shard]:
                raise ModelLoadError(f"{folder / shard} lacks the tensor {name}, which {_INDEX} says it has")
        self._files = {shard: self._open(shard) for shard in self._headers}

    def _read_index(self, index: dict[str, Any]) -> dict[str, str]:
        shards = Fields(index, str(self._folder / _INDEX)).table("weight_map") or {}
        for name, shard in shards.items():
            # A file beside the index, and no other file of this machine.
            if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise ModelLoadError(f"{self._folder / _INDEX}: weight_map has {shard!r} for {name}, not a file's name")
        return dict(shards)

    def _open(self, name: str) -> Any:  # safe_open, whose methods have no types
        path = self._folder / name
        try:
            return safe_open(str(path), framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} can't be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def shape(self, name: str) -> tuple[int, ...] | None:
        """By the file's header; None: there is no such tensor."""
        return self._headers[self._shards[name]][name].shape if name in self._shards else None

    def tensor(self, name: str) -> Tensor:
        if name not in self._shards:
            raise ModelLoadError(f"{self._folder} lacks the tensor {name}")
        try:
            tensor: Tensor = self._files[self._shards[name]].get_tensor(name)
        except (SafetensorError, AttributeError, KeyError) as error:  # a type that this torch has no name for
            raise ModelLoadError(f"{self._folder}: {name} can't be read: {error}") from error
        return tensor
