"""Safetensors checkpoints, whole or sharded: tensors by name, read when asked for."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.errors import ModelLoadError


class SafetensorsFiles:
    def __init__(self, folder: Path) -> None:
        """Raises ModelLoadError where `folder` holds no complete safetensors checkpoint."""
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            shards: dict[str, str] = json.loads(index.read_text())["weight_map"]
        elif (folder / "model.safetensors").is_file():
            shards = dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")
        else:
            raise ModelLoadError(f"{folder} has no model.safetensors nor model.safetensors.index.json")
        self._shards = shards
        self._files = {name: self._open(name) for name in sorted(set(shards.values()))}

    def _open(self, name: str) -> Any:  # safe_open, whose methods have no types
        try:
            return safe_open(str(self._folder / name), framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{self._folder / name} can't be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def tensor(self, name: str) -> Tensor:
        if name not in self._shards:
            raise ModelLoadError(f"{self._folder} lacks the tensor {name}")
        tensor: Tensor = self._files[self._shards[name]].get_tensor(name)
        return tensor
