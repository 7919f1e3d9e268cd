"""SOC: the series is never above one, layers are powers of a skew matrix, and kernels are found again."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from lipkit import linops, norms
from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Promise
from lipkit.norms.convolutions.skew_series import DEGREES, LONGEST_TURN, SkewSeries
from support.layers.checks import check_norm, promised, singular_values
from support.layers.geometries import FILLS, filled
from support.layers.series_oracle import series_matrix
from support.proven import proven


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
    # Smaller by 2^-39, the room for rounding.
    torch.testing.assert_close(layer.weight, skew, rtol=1e-11, atol=0)


@pytest.mark.parametrize("channels", [(2, 2), (3, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("degree", [8, 12])
def test_layers_are_isometries_with_both_paddings(channels: tuple[int, int], mode: Any, degree: int) -> None:
    torch.manual_seed(1)
    layer: Any = lnn.Conv2d(*channels, 3, padding=1, padding_mode=mode, method=lnn.SOC(degree))
    shape = (channels[0], 5, 6)
    for scale in (1.0, 100.0, 1e-3):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(scale)
        values = singular_values(layer, shape)
        # 2.5e-6 for the series; the reference may be high by its own rounding, 100 entries at 2^-53.
        assert 1 - 3e-6 <= float(values[-1]) <= float(values[0]) <= 1 + 1e-14
    assert promised(layer) is Promise.ISOMETRY
    # A circle of two pixels is enough for three taps.
    assert layer(torch.zeros(1, channels[0], 2, 2)).shape[2:] == (2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stored_kernels_are_skew_to_the_last_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    layer = lnn.Conv2d(6, 4, 3, padding=1, groups=2, method=lnn.SOC()).to(dtype)
    weight = layer.weight.detach().unflatten(0, (2, 3))
    assert torch.equal(weight, -weight.transpose(1, 2).flip((3, 4)))
    assert float(weight.abs().max()) > 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: lnn.Conv2d(3, 2, 3, 2, 2, method=lnn.SOC()), (3, 5, 4)),
        (lambda: lnn.Conv2d(4, 6, (3, 1), 1, 0, groups=2, method=lnn.SOC(12)), (4, 5, 3)),
        (lambda: lnn.Conv1d(2, 3, 3, padding=1, padding_mode="circular", method=lnn.SOC()), (2, 4)),
        (lambda: lnn.Conv3d(2, 1, (3, 1, 3), method=lnn.SOC()), (2, 4, 3, 4)),
        (lambda: lnn.ConvTranspose2d(3, 2, 3, 2, 1, 1, method=lnn.SOC()), (3, 3, 2)),
        (lambda: lnn.ConvTranspose1d(3, 2, 5, 2, 0, method=lnn.SOC()), (3, 4)),
    ],
)
def test_layers_and_operators_are_powers_of_a_matrix(layer: Callable[[], Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    built = layer().to(torch.float64)
    matrix = series_matrix(built, shape)
    x = torch.randn(2, *shape, dtype=torch.float64)
    expected = x.flatten(1) @ matrix.mT
    # Sums of a few hundred products, eight times over.
    torch.testing.assert_close(built(x).flatten(1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(built(x[0]).flatten(), expected[0], rtol=0, atol=1e-12)
    operator = linops.of(built, shape)
    torch.testing.assert_close(linops.materialize(operator), matrix, rtol=0, atol=1e-12)
    assert proven(built, x[:1]) <= 1 + 1e-9
    torch.testing.assert_close(lnn.condense(built)(x), built(x))


def test_the_norm_of_a_large_layer_is_read_off_its_kernel() -> None:
    torch.manual_seed(4)
    layer = lnn.Conv2d(4, 3, 3, 2, 1, method=lnn.SOC())
    operator = linops.of(layer, (4, 24, 24))
    chosen = norms.Auto(failure=0).select(operator)
    assert isinstance(chosen.method, SkewSeries)
    bound = chosen.method(operator)
    assert bound.kind is Kind.UPPER
    assert float(bound.value.detach()) == pytest.approx(1, abs=1e-12)
    assert float(torch.linalg.svdvals(linops.materialize(operator.to(torch.float64)).detach())[0]) <= 1 + 1e-12
    # Nothing is taken for granted: another kernel is refused, and so is one that turns too far.
    turn = next(part for part in linops.factors(operator) if isinstance(part, linops.ConvExponential))
    for change in (lambda t: t + 1e-9, lambda t: 8 * t):
        with pytest.raises(UnsupportedError, match="skew"):
            SkewSeries()(turn.map(change))


@pytest.mark.parametrize("degree", DEGREES)
def test_the_series_is_a_contraction_as_far_as_is_claimed(degree: int) -> None:
    """1 - |p(i t)|^2 = t^(m + 2) q(t^2), and q has positive Bernstein coefficients on pieces of [0, 3.3^2]."""
    terms = [Fraction((-1) ** (j // 2), math.factorial(j)) for j in range(degree + 1)]
    square = [Fraction(0)] * (degree + 1)
    for i, j in itertools.product(range(degree + 1), repeat=2):
        if i % 2 == j % 2:
            square[(i + j) // 2] += terms[i] * terms[j]
    assert square[0] == 1
    assert not any(square[1 : degree // 2 + 1])
    rest = [-c for c in square[degree // 2 + 1 :]]
    end, pieces, n = Fraction(LONGEST_TURN).limit_denominator(1000) ** 2, 64, len(rest) - 1
    for piece in range(pieces):
        start, width = end * piece / pieces, end / pieces
        # q(start + width s) as a polynomial in s, then in Bernstein form.
        moved = [
            sum(rest[k] * math.comb(k, i) * start ** (k - i) for k in range(i, n + 1)) * width**i for i in range(n + 1)
        ]
        bernstein = [
            sum(Fraction(math.comb(i, k), math.comb(n, k)) * moved[k] for k in range(i + 1)) for i in range(n + 1)
        ]
        assert min(bernstein) > 0


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
        # Down to a single pixel, but not further.
        least = lnn.ConvTranspose1d(2, 2, 3, stride, padding + 1, dilation=dilation, method=lnn.SOC())
        count = 1 + -(-max(0, 2 * (padding + 1 - dilation)) // stride)
        assert least(torch.zeros(1, 2, count)).shape[2] >= 1
        if count > 1:
            with pytest.raises(ShapeError, match="leaves nothing"):
                least(torch.zeros(1, 2, count - 1))
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


def test_condensed_layers_stay_chains() -> None:
    torch.manual_seed(4)
    layer = lnn.Conv2d(2, 2, 3, padding=1, method=lnn.SOC())
    x = torch.randn(2, 2, 9, 9)
    plain = lnn.condense(layer)
    assert tuple(plain.get_parameter("weight").shape) == (2, 2, 3, 3)
    torch.testing.assert_close(plain(x), layer(x))
    narrow = lnn.condense(layer, torch.bfloat16)
    # Eight convolutions with numbers of eight bits.
    torch.testing.assert_close(narrow(x.bfloat16()).float(), layer(x), rtol=0, atol=0.1)
    before = layer.weight.detach().clone()
    lnn.project(layer)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", [lnn.SOC(), lnn.LOT((5, 5))], ids=str)
def test_condensed_layers_take_no_method_for_plain_kernels(method: lnn.WeightMethod) -> None:
    """A kernel of norm one would leave a series with a norm of up to e."""
    plain = lnn.condense(lnn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", method=method))
    before = plain.get_parameter("weight").clone()
    with pytest.raises(UnsupportedError, match="would not bound the layer"):
        lnn.parametrize(plain, "weight", lnn.AOL())
    with pytest.raises(UnsupportedError, match="would not bound the layer"):
        lnn.project(plain, conv=lnn.AOL())
    assert torch.equal(plain.get_parameter("weight"), before)


def test_autocast_computes_in_fewer_digits() -> None:
    torch.manual_seed(5)
    layer = lnn.Conv2d(2, 3, 3, padding=1, method=lnn.SOC())
    x = torch.randn(2, 2, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), layer(x), rtol=0, atol=0.1)
    with pytest.raises(ArgumentError, match="takes inputs of that type"):
        layer(x.double())


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="odd on every axis"):
        lnn.Conv2d(2, 2, 4, method=lnn.SOC())
    with pytest.raises(UnsupportedError, match=r"Exponential\(\)"):
        lnn.Linear(2, 2, method=lnn.SOC())
    with pytest.raises(ArgumentError, match="8, for skew kernels"):
        lnn.SOC(6)
    with pytest.raises(ShapeError, match="more than once"):
        lnn.Conv2d(2, 2, 5, padding=2, padding_mode="circular", method=lnn.SOC())(torch.zeros(1, 2, 1, 1))
    with pytest.raises(ShapeError, match="leaves nothing"):
        lnn.Conv2d(2, 2, 5, method=lnn.SOC())(torch.zeros(1, 2, 4, 4))
    with pytest.raises(ShapeError, match=r"leaves nothing of an image of size \(2,\); use a larger image, or less"):
        lnn.ConvTranspose1d(2, 2, 3, 2, 4, 1, method=lnn.SOC())(torch.zeros(1, 2, 2))
    with pytest.raises(ShapeError, match="2 channels, got 3"):
        lnn.Conv2d(2, 2, 3, padding=1, method=lnn.SOC())(torch.zeros(1, 3, 4, 4))
    with pytest.raises(UnsupportedError, match="no output_size"):
        lnn.ConvTranspose1d(2, 2, 3, method=lnn.SOC())(torch.zeros(1, 2, 4), output_size=[6])
    with pytest.raises(UnsupportedError, match="another way"):
        lnn.parametrize(torch.nn.Conv2d(2, 2, 3), "weight", lnn.SOC())
