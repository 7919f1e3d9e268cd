"""The weights q of spectral rescaling: with one step they are the sizes of columns."""

import torch

from lipkit import nn as lnn
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.majorant import majorant


def test_with_one_step_the_weights_are_sizes_of_columns() -> None:
    """W diag(sum_j |W'W|_ij q_j / q_i)^(-1/2), written out, against W diag(q) without weights."""
    torch.manual_seed(0)
    geometry = Geometry(1, 6, 5)
    free, q = torch.randn(geometry.shape, dtype=torch.float64), 0.1 + torch.rand(5, dtype=torch.float64)
    sums = (free[0].mT @ free[0]).abs() @ q / q
    weighed = free[0] / sums.sqrt()
    for method in (lnn.AOL(), lnn.Rescale(1)):
        torch.testing.assert_close(method(free * q, geometry)[0], weighed, rtol=1e-9, atol=0)
    assert float(torch.linalg.matrix_norm(weighed, 2)) <= 1


def test_with_more_steps_they_are_not() -> None:
    torch.manual_seed(0)
    geometry = Geometry(1, 6, 5)
    free, q = torch.randn(geometry.shape, dtype=torch.float64), 0.1 + torch.rand(5, dtype=torch.float64)
    weighed = free[0] / majorant(free.unsqueeze(-1), 2, q[None])[0].sqrt()
    assert float(torch.linalg.matrix_norm(weighed, 2)) <= 1
    assert float((lnn.Rescale(2)(free * q, geometry)[0] - weighed).abs().max()) > 0.01
