"""The pointwise node, and the curves below it."""

import math

import pytest
import torch

from lipkit.errors import NotProvenError
from lipkit.regions import Reach
from lipkit.trace.nodes import RELU, Pointwise
from lipkit.trace.nodes.activations.curve import Curve, Station, bisect, station
from lipkit.trace.nodes.activations.gated import GELU
from lipkit.trace.nodes.activations.powers import SQUARE
from lipkit.trace.nodes.activations.sigmoids import TANH


def test_a_split_covers_all_slopes_and_infinite_ones_give_no_nan():
    z = torch.tensor([[-2.0, 0.3, 5.0]], dtype=torch.float64)
    reach = Reach(z[0] - 1, z[0] + 1, z[0], torch.tensor(2.0).double())
    node = Pointwise(GELU, (3,)).within(reach)
    split = node.split(2.0)
    assert split.center is not None
    middle, spread = (op.apply(torch.ones(3, dtype=torch.float64)) for op in (split.center, split.scale))
    alpha, beta = node.slopes()
    assert (middle - spread <= alpha).all()
    assert (middle + spread >= beta).all()
    wild = Pointwise(SQUARE, (3,)).split(2.0)
    assert wild.center is not None
    assert wild.center.apply(z).tolist() == [[0.0, 0.0, 0.0]]
    assert wild.scale.apply(torch.ones(3, dtype=torch.float64)).tolist() == [math.inf] * 3


def test_a_ball_alone_bounds_every_entry():
    # Without a box, |z_i - c_i| <= radius decides which units are on.
    c, wide = torch.tensor([3.0, -3.0], dtype=torch.float64), torch.full((2,), math.inf, dtype=torch.float64)
    node = Pointwise(RELU, (2,)).within(Reach(-wide, wide, c, torch.tensor(1.0).double()))
    alpha, beta = node.slopes()
    assert alpha.tolist() == beta.tolist() == [1.0, 0.0]


def test_reaches_of_activations_hold_their_values():
    torch.manual_seed(0)
    for activation in (RELU, TANH, GELU, SQUARE):
        center = torch.randn(5, dtype=torch.float64)
        reach = Reach(center - 1, center + 1, center + 0.5, torch.tensor(1.5).double())
        found = Pointwise(activation, (5,)).reach(reach)
        z = center - 1 + 2 * torch.rand(400, 5, dtype=torch.float64)
        z = z[(z - reach.center).norm(dim=1) <= 1.5]
        assert len(z) > 10
        y = activation(z)
        assert ((y >= found.low) & (y <= found.high)).all()
        assert ((y - found.center).norm(dim=1) <= found.radius).all()


def test_constants_of_a_pointwise_node_are_the_steepest_slope():
    assert Pointwise(RELU, (2, 2)).log_constant(2.0) == 0
    assert Pointwise(GELU, (2,)).log_constant(1.0).exp().item() == pytest.approx(1.1289041451851557, rel=1e-14)
    assert Pointwise(SQUARE, (2,)).log_constant(math.inf) == math.inf


def test_a_station_that_is_none_is_not_believed():
    with pytest.raises(NotProvenError, match="No turning point was proven near"):
        station(lambda x: x**4, lambda x: 4 * x**3, -1.0, 1.1)
    found = station(math.cos, lambda x: -math.sin(x), 2.0, 4.0)
    assert found.place == pytest.approx(math.pi)
    assert found.value == pytest.approx(-1.0)
    assert bisect(lambda x: x * x - 2, 0.0, 2.0) == pytest.approx(math.sqrt(2), abs=1e-15)


def test_a_curve_is_exact_at_stations_and_limits_and_cut_to_its_range():
    hill = Curve(lambda x: 1 / (1 + x * x), (0.0, 0.0), (Station(0.0, 1.0),))
    inf = torch.tensor(math.inf, dtype=torch.float64)
    assert hill.range(-inf, inf) == (0.0, 1.0)
    low, high = hill.range(torch.tensor(1.0).double(), inf)
    assert low == 0
    assert 0.5 <= high <= 0.5 + 1e-13
    # An end near the station counts as beyond it, and the answer never leaves [0, 1].
    assert hill.range(torch.tensor(1e-9).double(), inf)[1] == 1.0
