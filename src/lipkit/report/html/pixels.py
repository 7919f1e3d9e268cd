"""Images as data, to the bit, and as PNG files inside a page."""

import base64
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lipkit._png import encode_png
from lipkit.errors import RecordError

_TYPES = {"float32": "<f4", "float64": "<f8"}


@final
@dataclass(frozen=True)
class Pixels:
    """An image (channels, height, width), its entries as base64 of little-endian floats."""

    shape: tuple[int, ...]
    dtype: str
    data: str

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES or len(self.shape) != 3 or self.shape[0] not in (1, 3):
            raise RecordError(f"An image has 1 or 3 channels of float32 or float64, got {self.dtype} {self.shape}.")
        size = int(np.prod(self.shape)) * np.dtype(_TYPES[self.dtype]).itemsize
        if len(base64.b64decode(self.data)) != size:
            raise RecordError(f"An image of shape {self.shape} in {self.dtype} has {size} bytes; its data has others.")

    @classmethod
    def of(cls, image: Float[Tensor, "channels height width"]) -> "Pixels":
        """Every bit of a tensor; half precisions are widened."""
        array = image.numpy(force=True) if image.dtype.itemsize >= 4 else image.float().numpy(force=True)
        raw = array.astype(_TYPES[str(array.dtype)]).tobytes()
        return cls(tuple(array.shape), str(array.dtype), base64.b64encode(raw).decode())

    def array(self) -> Float[np.ndarray, "channels height width"]:
        """The numbers again."""
        raw = np.frombuffer(base64.b64decode(self.data), dtype=_TYPES[self.dtype])
        return raw.reshape(self.shape).astype(self.dtype)

    def png(self, low: float, high: float) -> str:
        """A data URL of the image, `low` black and `high` white, to eight bits."""
        return png(self.array(), low, high)


def png(image: Float[np.ndarray, "channels height width"], low: float, high: float) -> str:
    """A data URL of an image, `low` black and `high` white, to eight bits."""
    span = high - low if high > low else 1.0
    levels = np.clip(np.rint((image.astype(np.float64) - low) / span * 255), 0, 255).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(encode_png(levels)).decode()
