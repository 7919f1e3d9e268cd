"""SOC: the series is never above one, the kernel is an exponential, and its logarithm is found again."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Promise
from support.layers.checks import check_norm, promised, singular_values
from support.layers.geometries import FILLS, filled


def square_of_series(degree: int, t: Fraction) -> Fraction:
    """|sum_j (i t)^j / j!|^2, without rounding."""
    terms = [t**j / math.factorial(j) for j in range(degree + 1)]
    real = sum((-1) ** (j // 2) * term for j, term in enumerate(terms) if j % 2 == 0)
    imaginary = sum((-1) ** (j // 2) * term for j, term in enumerate(terms) if j % 2)
    return Fraction(real**2 + imaginary**2)


@pytest.mark.parametrize(("degree", "largest", "lost"), [(8, 1, 2.3e-6), (12, 2, 2.5e-6)])
def test_the_series_is_at_most_one_and_hardly_less(degree: int, largest: int, lost: float) -> None:
    for i in range(401):
        t = Fraction(largest * i, 400)
        assert square_of_series(degree, t) <= 1
        assert square_of_series(degree, t) >= (1 - lost) ** 2


def test_six_terms_exceed_one() -> None:
    """Six terms, as in published training runs, are above one by 1.5e-4 at a norm of one: they prove nothing."""
    assert math.sqrt(square_of_series(6, Fraction(1))) == pytest.approx(1 + 1.5e-4, abs=2e-5)
    assert math.sqrt(square_of_series(6, Fraction(314, 100))) > 1.3


@pytest.mark.parametrize("degree", [8, 12])
def test_the_kernel_is_the_exponential_of_a_skew_one(degree: int) -> None:
    torch.manual_seed(0)
    method = lnn.SOC(degree)
    geometry = Geometry(1, 2, 2, (3,), (1,), ((1, 1),), (1,), Padding.CIRCULAR)
    raw = 0.2 * torch.randn(1, 2, 2, 3, dtype=torch.float64)
    layer: Any = lnn.Conv1d(2, 2, 3, padding=1, padding_mode="circular", bias=False, method=method, dtype=torch.float64)
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(raw[0])
    skew = (raw[0] - raw[0].transpose(0, 1).flip(2)) / 2
    x = torch.randn(1, 2, 20, dtype=torch.float64)
    exact, term = x, x
    for j in range(1, 30):
        padded = torch.nn.functional.pad(term, (1, 1), mode="circular")
        term = torch.nn.functional.conv1d(padded, skew) / j
        exact = exact + term
    # The norm of this kernel is below 1, where the rest of the series is below 3e-6.
    torch.testing.assert_close(layer(x), exact, rtol=0, atol=1e-5)
    assert method.promise(geometry) is Promise.ISOMETRY
    assert method.kernel_geometry(geometry).taps == (2 * degree + 1,)


@pytest.mark.parametrize("channels", [(2, 2), (3, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("degree", [8, 12])
def test_circular_convolutions_are_isometries(channels: tuple[int, int], degree: int) -> None:
    torch.manual_seed(1)
    layer: Any = lnn.Conv2d(*channels, 3, padding=1, padding_mode="circular", method=lnn.SOC(degree))
    shape = (channels[0], 12, 13)
    for scale in (1.0, 100.0, 1e-3):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(scale)
        values = singular_values(layer, shape)
        # 2.3e-6 for the series, 3e-6 for rounding 25 x 25 taps to float32.
        assert 1 - 6e-6 <= float(values[-1]) <= float(values[0]) <= 1
    assert promised(layer) is Promise.ISOMETRY
    assert layer(torch.zeros(1, *shape)).shape[2:] == (12, 13)


@pytest.mark.parametrize("fill", FILLS)
def test_norms_with_zero_padding_and_other_geometries(fill: str) -> None:
    torch.manual_seed(2)
    for layer, shape in (
        (lnn.Conv2d(2, 3, 3, padding=1, method=lnn.SOC()), (2, 5, 4)),
        (lnn.Conv1d(4, 4, 3, 2, 2, 2, groups=2, method=lnn.SOC(12)), (4, 7)),
        (lnn.ConvTranspose1d(3, 2, 5, 2, 1, method=lnn.SOC()), (3, 6)),
        (lnn.Conv3d(2, 1, (3, 1, 3), method=lnn.SOC()), (2, 4, 3, 4)),
    ):
        filled(layer, fill)
        check_norm(layer, shape)


def test_sizes_are_those_of_the_kernel_that_was_asked_for() -> None:
    for stride, padding, dilation in ((1, 1, 1), (2, 1, 1), (1, 0, 2), (3, 2, 2)):
        x = torch.zeros(1, 2, 15, 15)
        found = lnn.Conv2d(2, 2, 3, stride, padding, dilation, method=lnn.SOC())(x)
        assert found.shape == torch.nn.Conv2d(2, 2, 3, stride, padding, dilation)(x).shape
        found = lnn.ConvTranspose2d(2, 2, 3, stride, padding, dilation=dilation, method=lnn.SOC())(x)
        assert found.shape == torch.nn.ConvTranspose2d(2, 2, 3, stride, padding, dilation=dilation)(x).shape


def test_skew_kernels_are_found_again_and_do_not_drift() -> None:
    torch.manual_seed(3)
    geometry = Geometry(2, 3, 3, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), Padding.CIRCULAR)
    for method, scale in ((lnn.SOC(), 0.02), (lnn.SOC(), 3.0), (lnn.SOC(12), 3.0)):
        raw = scale * torch.randn(2, *method.free_shape(geometry), dtype=torch.float64)
        weight = method(raw, geometry)
        # The series ends 2.5e-7 before the exponential, whose logarithm is taken.
        torch.testing.assert_close(method(method.inverse(weight, geometry), geometry), weight, rtol=0, atol=1e-5)
        calm = method.without_drift(raw, geometry)
        torch.testing.assert_close(method(calm, geometry), weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(method.without_drift(calm, geometry), calm, rtol=0, atol=1e-12)


def test_condensed_layers_keep_the_larger_kernel() -> None:
    torch.manual_seed(4)
    layer = lnn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", method=lnn.SOC())
    x = torch.randn(2, 2, 9, 9)
    plain = lnn.condense(layer)
    assert type(plain) is torch.nn.Conv2d
    assert plain.kernel_size == (17, 17)
    torch.testing.assert_close(plain(x), layer(x))
    before = layer.weight.detach().clone()
    lnn.project(layer)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-6)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="odd on every axis"):
        lnn.Conv2d(2, 2, 4, method=lnn.SOC())
    with pytest.raises(UnsupportedError, match=r"Exponential\(\)"):
        lnn.Linear(2, 2, method=lnn.SOC())
    with pytest.raises(ArgumentError, match="8, for skew kernels"):
        lnn.SOC(6)
    with pytest.raises(ShapeError, match="more than once"):
        lnn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", method=lnn.SOC())(torch.zeros(1, 2, 4, 4))
    with pytest.raises(UnsupportedError, match="another size"):
        lnn.parametrize(torch.nn.Conv2d(2, 2, 3), "weight", lnn.SOC())
