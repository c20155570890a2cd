"""The tensors of an mmproj file, by the names that transformers has for them."""

import gguf
import numpy as np
import torch
from torch import Tensor

from models.files.gguf import GGUFFile


class MMProjWeights:
    def __init__(self, file: GGUFFile, layers: int) -> None:
        """Raises ModelLoadError where a tensor has a type that can't be read."""
        file.require_readable()
        self.where = str(file.path)
        self._file = file
        self._names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self._file.tensors.get(self._stored(name))
        return None if info is None else info.shape

    def tensor(self, name: str) -> Tensor:
        stored = self._stored(name)
        found = np.array(self._file.dequantised(stored))  # a copy: float32 is a view of the file
        return torch.from_numpy(found.reshape(self._file.tensors[stored].shape))

    def _stored(self, name: str) -> str:
        """What the file calls it; the name itself, where it has no name for it."""
        return self._names.get_name(name, try_suffixes=(".weight", ".bias")) or name
