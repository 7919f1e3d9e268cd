"""The law of initialisation against random matrices and the layers of torch."""

import math

import pytest
import torch
from torch import nn

from lipkit.analysis import InitialNorm, initialisation_law
from lipkit.bound import Kind
from lipkit.errors import ArgumentError

# The layers of tables 4.1 and 4.2 of Luo 2025, convolutions as matrices (c_out, c_in k k).
CONVOLUTIONS = ((32, 27), (64, 288), (128, 576), (256, 2048), (10, 256))
PERCEPTRON = ((512, 784), (256, 512), (10, 256))


def draw(law: InitialNorm, count: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(0)
    return torch.linalg.matrix_norm(torch.randn(count, law.rows, law.columns, generator=source) * law.deviation, 2)


@pytest.mark.parametrize("shape", [(3, 5), (10, 64), (30, 50)])
def test_mean_and_spread_are_those_of_draws(shape: tuple[int, int]):
    law = InitialNorm.kaiming(*shape)
    found = draw(law, 4000)
    # The law is asymptotic: about 6 % of the spread for 3 x 5, less for larger ones; draws add 1.6 % (4000^(-1/2)) to
    # that, four times over.
    assert float(found.mean()) == pytest.approx(law.mean, abs=0.1 * law.spread)
    assert float(found.std()) == pytest.approx(law.spread, rel=0.12)
    # The edge is the limit only: it lies more than 90 % of a spread above the mean.
    assert law.edge - float(found.mean()) > 0.9 * law.spread


def test_the_edge_is_near_for_large_matrices():
    for law in (InitialNorm.kaiming(256, 2048), InitialNorm.torch_default(256, 2048)):
        assert float(draw(law, 2).mean()) == pytest.approx(law.edge, rel=0.02)
        assert law.mean == pytest.approx(law.edge, rel=0.02)


def test_the_default_of_torch_is_what_torch_draws():
    torch.manual_seed(0)
    for layer in (nn.Linear(300, 200), nn.Conv2d(30, 200, 3)):
        weight = layer.weight.detach().flatten(1)
        law = InitialNorm.torch_default(*weight.shape)
        # A deviation of n entries is known to (2 n)^(-1/2), below 0.3 % for 54,000, four times over.
        assert float(weight.std()) == pytest.approx(law.deviation, rel=0.012)
        # Five spreads: a law of uniform entries.
        assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(law.mean, abs=5 * law.spread)


@pytest.mark.parametrize(
    ("shapes", "kaiming", "default"), [(CONVOLUTIONS, 41.468, 0.47025), (PERCEPTRON, 10.456, 0.71143)]
)
def test_constants_of_the_published_networks(shapes: tuple[tuple[int, int], ...], kaiming: float, default: float):
    # The product by hand, in the digits that are printed.
    for make, value in ((InitialNorm.kaiming, kaiming), (InitialNorm.torch_default, default)):
        log_constant = initialisation_law([make(*shape) for shape in shapes])
        assert math.exp(log_constant) == pytest.approx(value, rel=2e-5)


def test_it_is_an_estimate():
    assert InitialNorm.kaiming(3, 5).kind is Kind.ESTIMATE


@pytest.mark.parametrize("arguments", [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, math.nan), (1, 1, math.inf)])
def test_what_is_no_matrix_is_refused(arguments: tuple[int, int, float]):
    with pytest.raises(ArgumentError, match="positive deviation"):
        InitialNorm(*arguments)


def test_no_layers_are_refused():
    with pytest.raises(ArgumentError, match="at least one layer"):
        initialisation_law([])


def test_layers_scaled_to_norm_one_lose_their_signal():
    source, width = torch.Generator().manual_seed(5), 512
    weights = torch.randn(5, width, width, generator=source, dtype=torch.float64)
    plain = InitialNorm(width, width, 1.0)
    # Twice the root of 512, less a fluctuation of order one.
    assert plain.edge == pytest.approx(45.25, abs=0.01)
    norms = torch.linalg.matrix_norm(weights, 2)
    assert bool(((norms > plain.edge - 1.5) & (norms < plain.edge + 0.5)).all())
    tangent, unit = torch.ones(2, width, dtype=torch.float64)
    for weight, norm in zip(weights, norms, strict=True):
        assert float(norm) / math.sqrt(width) == pytest.approx(2, rel=0.04)
        assert float(norm) / plain.edge == pytest.approx(1, rel=0.04)
        tangent, unit = weight @ tangent / math.sqrt(width), weight @ unit / plain.edge
    # Sums of 512 squares scatter by (2 / 512)^(1/2) = 6 % in each of five layers; three deviations.
    assert float(tangent.square().mean()) == pytest.approx(1, rel=0.42)
    assert float(unit.square().mean()) == pytest.approx(0.25**5, rel=0.42)
