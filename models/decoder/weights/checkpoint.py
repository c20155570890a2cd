"""Weights by their names in the files, whatever these are."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from models.decoder.config import DecoderConfig
from models.decoder.gguf_config import require_gguf_tensors
from models.decoder.tensors import Shape, require_tensors
from models.decoder.weights.gguf_matrices import Form, GGUFMatrices
from models.decoder.weights.packed import Packing
from models.decoder.weights.quantised import Int4Weight, Int8Weight, Weight
from models.errors import ModelLoadError
from models.files.gguf import GGUFFile
from models.files.safetensors import SafetensorsFiles


class Checkpoint(Protocol):
    def require(self, config: DecoderConfig) -> None:
        """That all of the config's tensors are there, in their shapes, as far as the files' headers say it.

        Raises ModelLoadError."""
        ...

    def weight(self, name: str) -> Weight:
        """As it is stored: dense, or the quantised form. Raises ModelLoadError where it is missing."""
        ...


class SafetensorsCheckpoint:
    def __init__(self, folder: Path, packing: Packing | None = None) -> None:
        """`packing`: of the linears that are not stored dense."""
        self._files = SafetensorsFiles(folder)
        self._packing = packing

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._files or self._packed(name) is not None)

    def require(self, config: DecoderConfig) -> None:
        def shape_of(name: str, expected: Shape) -> Shape | None:
            """What is packed is seen when it is read."""
            return expected if self._packed(name) else self._files.shape(name)

        require_tensors(config, shape_of, self._files.where)

    def weight(self, name: str) -> Weight:
        packing = self._packed(name)
        return packing.weight(name.removesuffix(".weight"), self._files) if packing else self._files.tensor(name)

    def _packed(self, name: str) -> Packing | None:
        """None: the tensor is stored dense."""
        packing = self._packing
        return packing if packing and packing.packs(name.removesuffix(".weight"), self._files) else None


class GGUFCheckpoint:
    def __init__(self, file: GGUFFile, forms: Collection[Form] = (Int8Weight, Int4Weight)) -> None:
        """`forms`: that have kernels; what a type would become beyond them is dequantised instead.

        Raises ModelLoadError where a tensor has a type that can't be read.
        """
        self._file = file
        self._matrices = GGUFMatrices(file, forms)

    def require(self, config: DecoderConfig) -> None:
        require_gguf_tensors(self._file, config)

    def weight(self, name: str) -> Weight:
        if name not in self._file.tensors:
            raise ModelLoadError(f"{self._file.path} lacks the tensor {name}")
        return self._matrices.read(name)
