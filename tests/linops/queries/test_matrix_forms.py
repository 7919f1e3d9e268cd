"""Matrices of operators in the corners that drawn geometries meet rarely."""

import pytest
import torch
from torch.nn import functional

from lipkit.linops import Conv, Padding, materialize
from lipkit.norms import SVD

MODES = {Padding.ZEROS: "constant", Padding.REPLICATE: "replicate", Padding.CIRCULAR: "circular"}


@pytest.mark.parametrize("mode", MODES)
def test_one_window_beside_the_image(mode: Padding) -> None:
    # A stride of two leaves one position, which reads one padded and one real entry.
    weight = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    op = Conv(weight, (2,), (2,), ((1, 0),), (1,), 1, mode)
    images = [
        functional.conv1d(functional.pad(unit.reshape(1, 1, 2), (1, 0), mode=MODES[mode]), weight, None, 2).flatten()
        for unit in torch.eye(2, dtype=torch.float64)
    ]
    expected = torch.stack(images, dim=1)
    assert torch.equal(materialize(op), expected)
    # Replicate: |(1 + 2, 0)| = 3 is more than the norm of the kernel, the square root of 5.
    assert float(SVD()(op).value) == pytest.approx(float(torch.linalg.matrix_norm(expected, 2)), rel=1e-12)
