"""scikit-learn's handwritten digits: small, and part of the package, so nothing is downloaded."""

import numpy as np
import torch

from lipkit.data.examples import Examples


def digits() -> Examples:
    """1797 images of 1 x 8 x 8 pixels in [0, 1], ten classes. Needs the extra `data` (scikit-learn)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(pixels.astype(np.float32)).reshape(-1, 1, 8, 8) / 16
    return Examples(inputs, torch.from_numpy(labels.astype(np.int64)), tuple("0123456789"))
