"""Encoded pictures to what an image tower takes."""

import numpy as np
from numpy.typing import NDArray

from models.embedder.embedder_config import ImageConfig
from pipelines.media.messages import Fit, PictureJob
from pipelines.media.pictures import DecodePicture

Pixels = NDArray[np.float32]  # [3, height, width]


def load_pixels(decode: DecodePicture, data: bytes, config: ImageConfig, param: str) -> Pixels:
    """As the model's authors prepare pictures (transformers' image processors): resize, crop, scale, normalise.

    Raises InvalidRequest where the bytes are no picture, or one that is too large or broken.
    """
    fit = Fit(width=config.width, height=config.height, shortest_edge=config.shortest_edge, resample=config.resample)
    picture = decode(PictureJob(data=data, param=param, fit=fit))
    mean, std = np.asarray(config.mean, np.float32), np.asarray(config.std, np.float32)
    pixels = (picture.rgb.astype(np.float32) * np.float32(config.scale) - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)
