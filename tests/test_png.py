"""PNG files: another reader sees the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from lipkit._png import encode_png


@pytest.mark.parametrize(("shape", "mode"), [((1, 5, 7), "L"), ((3, 4, 9), "RGB"), ((3, 1, 1), "RGB")])
def test_pillow_reads_the_same_pixels(shape: tuple[int, ...], mode: str):
    levels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    picture = Image.open(io.BytesIO(encode_png(levels)))
    assert picture.mode == mode
    assert np.array_equal(np.atleast_3d(np.asarray(picture)), np.moveaxis(levels, 0, 2))
