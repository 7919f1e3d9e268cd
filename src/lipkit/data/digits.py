"""scikit-learn's handwritten digits: small, and part of that package, so nothing is downloaded."""

import numpy as np
import torch

from lipkit.data.class_names import DIGITS
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError


def digits() -> Examples:
    """1797 images of 1 x 8 x 8 pixels in [0, 1], ten classes. Needs the extra `data` (scikit-learn)."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as missing:
        raise ArgumentError("The digits need scikit-learn; pip install 'lipkit[data]' brings it.") from missing
    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(pixels.astype(np.float32)).reshape(-1, 1, 8, 8) / 16
    return Examples(inputs, torch.from_numpy(labels.astype(np.int64)), DIGITS, "scikit-learn digits")
