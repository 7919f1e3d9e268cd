"""Free numbers near the end of the range of float32: their inverses leave it, derivatives must not."""

import pytest
import torch

from lipkit import nn as lnn
from lipkit.nn import WeightMethod
from lipkit.nn.core.geometry import Geometry

GEOMETRIES = (Geometry(2, 4, 3), Geometry(1, 3, 2, (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1)))
RESCALED = (lnn.AOL(), lnn.Rescale(2), lnn.Rescale(3))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["matrix", "kernel"])
@pytest.mark.parametrize("size", [2.0**-126, 1e-40, 1e-43, 2.0**-149])
@pytest.mark.parametrize("method", [*RESCALED, lnn.Spectral()], ids=str)
def test_derivatives_are_finite(method: WeightMethod, size: float, geometry: Geometry) -> None:
    torch.manual_seed(0)
    raw = (size * torch.randn(geometry.shape)).requires_grad_()
    assert bool(raw.detach().any())
    weight = method(raw, geometry)
    (gradient,) = torch.autograd.grad(weight, raw, torch.randn_like(weight))
    assert bool(torch.isfinite(weight).all())
    assert bool(torch.isfinite(gradient).all())
    assert float(torch.linalg.matrix_norm(weight.detach().double().flatten(2), 2).max()) <= 1


def test_derivatives_are_finite_where_the_identity_is_cancelled() -> None:
    geometry = Geometry(1, 3, 3)
    raw = -torch.eye(3)[None] + 1e-40 * (1 - torch.eye(3))
    raw.requires_grad_()
    weight = lnn.LinearResidual()(raw, geometry)
    (gradient,) = torch.autograd.grad(weight.sum(), raw)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("method", [*RESCALED, lnn.Spectral()], ids=str)
def test_weights_do_not_depend_on_the_scale_of_numbers_that_are_not_small(method: WeightMethod) -> None:
    """Down to 2^-60, and down to 2^-80 for rescaling: powers of two round nothing."""
    torch.manual_seed(0)
    for geometry in GEOMETRIES:
        raw = 0.5 + torch.rand(geometry.shape)
        weight = method(raw, geometry)
        for power in (40, -20, -58):
            assert torch.equal(method(raw * 2.0**power, geometry), weight)
        if method in RESCALED:
            # What underflow may take from sums of squared products is added to them: less than 2^-20 here.
            torch.testing.assert_close(method(raw * 2.0**-78, geometry), weight, rtol=2.0**-20, atol=0)


def test_small_numbers_are_not_a_direction() -> None:
    torch.manual_seed(0)
    geometry = GEOMETRIES[0]
    raw = torch.rand(geometry.shape)
    # Below 2^-60 the map is linear, so a number that trembles about zero turns nothing around.
    small = lnn.Spectral()(raw * 2.0**-80, geometry)
    torch.testing.assert_close(small, raw * 2.0**-20, rtol=1e-6, atol=0)
    for method in RESCALED:
        assert not method(raw * 2.0**-105, geometry).any()
