"""Layers whose constant holds in every l_p, and what the others have in a norm that they did not declare."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Bound, Kind, Metric
from lipkit.bounds import DAG
from lipkit.nn.core.known_constants import Stated
from lipkit.trace.capture import capture


def seen_before(layer: Stated) -> Stated:
    """With the statistics of inputs that were small in some channels and large in others."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        layer(torch.randn(16, 8, 4, 4, generator=generator) * torch.logspace(-2, 2, 8)[:, None, None])
    return layer.eval()


LAYERS: list[Stated] = [
    lnn.Absolute(),
    lnn.LipSwish(),
    lnn.PReLU(),
    lnn.GELU(),
    lnn.SiLU(),
    lnn.Mish(),
    lnn.Softplus(),
    lnn.GroupSort(4),
    lnn.MaxMin(),
    lnn.MaxMin(lnn.ChannelPairing.HALVES),
    lnn.OPLU(),
    lnn.FullSort(),
    lnn.Spline(8),
    lnn.TriangularStairs(0.5),
    lnn.Normalize([0.5], [0.25]),
    lnn.Scale(-3.0),
    lnn.LearnedScale(1.5),
    lnn.SpaceToDepth(2),
    lnn.DepthToSpace(2),
    lnn.PReLU(8),
    seen_before(lnn.BatchNorm(8)),
    seen_before(lnn.CommonBatchNorm(8)),
    lnn.BatchCentering(8).eval(),
]
NORMS = [1.0, 1.5, 3.0, math.inf]


def stretched(layer: nn.Module, p: float) -> float:
    """The largest ratio seen over pairs near and far, moved in one entry, in one pair of entries and in all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, 4, 4, dtype=torch.float64, generator=generator)
    moves = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    sparse = moves * (torch.rand(x.shape, generator=generator) < 0.03)
    best = 0.0
    for move, size in itertools.product((moves, sparse, moves.sign()), (1e-3, 0.3, 3.0)):
        before, after = layer(x), layer(x + size * move)
        rise, run = ((a - b).flatten(1).norm(p, dim=1) for a, b in ((after, before), (x + size * move, x)))
        best = max(best, float((rise / run.clamp(min=1e-300)).detach().max()))
    return best


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_constant_holds_in_every_norm(layer: Stated) -> None:
    assert layer.every_norm
    layer = layer.double()
    network = capture(layer, torch.zeros(1, 8, 4, 4, dtype=torch.float64))
    for p in NORMS:
        # Differences of 1e-3 lose twelve digits at most to rounding; float64 has sixteen.
        assert stretched(layer, p) <= layer.gain * (1 + 1e-9)
        bound = DAG(metric=Metric(p, p))(network)
        assert bound.kind.certifies
        assert float(bound.value.detach()) <= layer.gain * (1 + 1e-12)


def test_the_list_is_complete_and_others_would_be_found_out() -> None:
    names = {type(layer) for layer in LAYERS}
    made = {
        thing
        for thing in (*vars(lnn).values(), *vars(lnn.convex).values())
        if isinstance(thing, type) and issubclass(thing, Stated)
    }
    claim = {
        kind
        for kind in made
        if "every_norm" in {k for base in kind.__mro__[:-1] for k in vars(base) if base is not Stated}
    }
    assert claim == names
    # A reflection keeps l2, not the others: this is what a false claim looks like.
    false = lnn.HouseholderActivation(8).double()
    with torch.no_grad():
        for angles in false.parameters():
            angles.fill_(0.4)
    assert not false.every_norm
    assert max(stretched(false, p) for p in NORMS) > 1.05


def test_batches_of_training_promise_nothing_in_other_norms() -> None:
    assert not lnn.BatchNorm(8).train().every_norm


class Turned(nn.Module):
    """A rotation by 45 degrees that declares its l2 constant."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.unbind(1)
        return torch.stack([a - b, a + b], 1) * 0.5**0.5 + 0 * x.abs()

    def declared_lipschitz(self, in_shape: tuple[int, ...]) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, "a rotation")


class Copied(nn.Module):
    """(x, x, x, x)/2: an isometry in l2, four times as many entries."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu() - (-x).relu()] * 4, 1) / 2

    def declared_lipschitz(self, in_shape: tuple[int, ...]) -> Bound:
        return Bound.from_value(1.0, Kind.EXACT, "copies")


@pytest.mark.parametrize(
    ("model", "size", "p", "true", "ratio"),
    [
        # sqrt 2 is attained in both directions: by (1, 1), and by (1, 0).
        (Turned(), 2, math.inf, 2**0.5, 2**0.5),
        (Turned(), 2, 1.0, 2**0.5, 2**0.5),
        # In l1 the four copies count 4/2, as the eight entries of the result allow, 8^(1/2), up to a factor.
        (Copied(), 2, 1.0, 2.0, 8**0.5),
        (Copied(), 1, 1.0, 2.0, 2.0),
        (Copied(), 2, math.inf, 0.5, 2**0.5),
        (Copied(), 2, 3.0, 4 ** (1 / 3) / 2, 2 ** (1 / 2 - 1 / 3)),
    ],
)
def test_a_constant_in_l2_bounds_those_in_other_norms(
    model: nn.Module, size: int, p: float, true: float, ratio: float
) -> None:
    bound = lipkit.lipschitz(model, torch.zeros(1, size), DAG(metric=Metric(p, p)))
    assert bound.kind.certifies
    assert float(bound.value) >= true
    assert float(bound.value) == pytest.approx(ratio, rel=1e-12)


def test_a_network_for_linf_is_bounded_there() -> None:
    torch.manual_seed(0)
    inf = math.inf
    ball = lnn.LpBall(p=inf)
    model = nn.Sequential(
        *(lnn.Linear(6, 8, method=ball), lnn.MaxMin(), lnn.Linear(8, 8, method=ball), lnn.GroupSort(4)),
        lnn.Linear(8, 1, method=ball),
    )
    bound = lipkit.lipschitz(model, torch.zeros(1, 6), DAG(metric=Metric(inf, inf)))
    assert float(bound.value.detach()) <= 1
    # Layers of at most one in linf: in l2 the same network may only be said to be far larger or smaller.
    x, move = torch.randn(500, 6), torch.randn(500, 6).sign() * 1e-2
    with torch.no_grad():
        seen = ((model(x + move) - model(x)).abs().amax(1) / 1e-2).max()
    assert 0 < float(seen) <= float(bound.value.detach()) * (1 + 1e-3)
