"""Numbers at the ends of float64, and the entropy of random starts: a bound must not vanish where the norm does not."""

import math

import pytest
import torch

from lipkit import Kind
from lipkit.errors import NonFiniteError
from lipkit.linops import Conv, Dense, LinearFunction
from lipkit.norms import SVD, Auto, Circulant, Lanczos, Mixed, Power
from lipkit.norms.matrix_free.krylov import gaussian

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("method", [SVD(), Auto(), Lanczos(), Mixed(1, 1), Power()], ids=str)
def test_products_that_may_underflow_on_the_way_are_refused(method: SVD | Auto | Lanczos | Mixed | Power) -> None:
    # The norm is 1e-100, but the inner product of the two small factors is 1e-400.
    op = Dense(1e300 * EYE) @ (Dense(1e-200 * EYE) @ Dense(1e-200 * EYE))
    with pytest.raises(NonFiniteError, match="range of float64"):
        method(op)


@pytest.mark.parametrize("scale", [1e-320, 1e-310, 1e-200, 1e200, 1e300])
def test_lanczos_reaches_every_scale(scale: float) -> None:
    matrix = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)) * scale
    bound = Lanczos()(Dense(matrix))
    # Of the weights as stored, which subnormal numbers round.
    assert float(bound.log_value) >= math.log(float(matrix[0, 0]))


def test_a_tiny_callable_is_not_taken_for_zero() -> None:
    bound = Lanczos()(LinearFunction(lambda x: 1e-200 * x, (20,), (20,), ()))
    assert float(bound.log_value) >= math.log(1e-200)


@pytest.mark.parametrize("scale", [1e-300, 1e160, 1e300])
def test_symbols_reach_every_scale(scale: float) -> None:
    weight = torch.tensor([[[1.0, -2.0, 1.0]]], dtype=torch.float64)
    op = Conv(weight * scale, (6,), (1,), ((1, 1),), (1,))
    plain = Conv(weight, (6,), (1,), ((1, 1),), (1,))
    gain = float(Circulant()(op).log_value) - float(Circulant()(plain).log_value)
    # Logarithms near 700 are kept to 2^-43, and both are rounded up by a few of those.
    assert gain == pytest.approx(math.log(scale), abs=1e-11)


def test_exact_is_demoted_where_rounding_shows() -> None:
    torch.manual_seed(0)
    layers = [Dense(torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64)).Q) for _ in range(30)]
    op = layers[0]
    for layer in layers[1:]:
        op = layer @ op
    bound = SVD()(op)
    assert bound.kind is Kind.UPPER
    assert bound.value >= 1 - 1e-12  # a product of orthogonal matrices, each within 1e-15


def test_starts_use_all_bits_of_the_seed() -> None:
    # torch's generator on the CPU would give equal streams here.
    like = torch.empty(0, dtype=torch.float64)
    assert not torch.equal(gaussian(12345, (4,), like), gaussian(12345 + 7 * 2**32, (4,), like))
