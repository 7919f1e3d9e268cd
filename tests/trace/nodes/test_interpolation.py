"""Weighted means: their constants, ranges and splits, against difference quotients between random points."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.regions import Domain, Reach
from lipkit.trace.nodes import Interpolation

SHAPE = (5,)
# Two values within a few units of rounding each, relative to their sizes.
ROUNDING = 1e-12


def drawn(gauge: float, scale: float) -> tuple[Interpolation, Tensor]:
    """The node on a random box with weights in [0, 1], and points of the box, its corners among them."""
    ends = torch.rand(2, 15, dtype=torch.float64).sort(0).values
    ends[:, 5:] = (2 * ends[:, 5:] - 1) * scale
    ends[:, :5] *= gauge
    low, high = ends
    points = low + (high - low) * torch.rand(400, 15, dtype=torch.float64)
    points[200:] = torch.where(torch.rand(200, 15) < 0.5, low, high)
    center = (low + high) / 2
    reach = Reach(low, high, center, torch.linalg.vector_norm(high - center) * (1 + 1e-12))
    node = Interpolation(SHAPE, gauge)
    return node.within(reach), points


def domain_of_node(node: Interpolation) -> Domain:
    assert node.domain is not None
    return node.domain


@pytest.mark.parametrize("gauge", [1.0, 0.125, 16.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_constant_and_split_hold_between_points_and_are_attained(gauge: float, scale: float) -> None:
    torch.manual_seed(0)
    for _ in range(5):
        node, z = drawn(gauge, scale)
        y = node(z)
        for p in (1.0, 2.0, 3.0, math.inf):
            near = z + 1e-6 * scale * torch.randn_like(z) * torch.rand(400, 1, dtype=torch.float64)
            low, high = domain_of_node(node)[:2]
            near = torch.minimum(torch.maximum(near, low), high)
            split = node.split(p)
            for other in (near, z.roll(1, 0)):
                step = torch.linalg.vector_norm(other - z, ord=p, dim=1)
                moved = torch.linalg.vector_norm(node(other) - y, ord=p, dim=1)
                slack = ROUNDING * (y.abs().amax() + 1e-300)
                assert (moved <= node.log_constant(p).exp() * step + slack).all()
                rest = node(other) - y
                if split.center is not None:
                    rest = rest - split.center.apply(other - z)
                # The rest of each output is 1-Lipschitz times its scale, jointly in l_p.
                undone = rest / split.scale.apply(torch.ones(1, *SHAPE, dtype=torch.float64)).clamp(min=1e-300)
                assert (
                    torch.linalg.vector_norm(undone, ord=p, dim=1) <= step * (1 + 1e-6) + slack / gauge + slack
                ).all()
        jacobians = torch.func.vmap(torch.func.jacrev(lambda one, node=node: node(one[None])[0]))(z)
        largest = torch.linalg.matrix_norm(jacobians, 2).max()
        # The corners of every output's own three entries are drawn, one in eight: the largest gradient is met.
        assert node.log_constant(2.0).exp() <= largest * (1 + 1e-9)


@pytest.mark.parametrize("gauge", [1.0, 0.25])
def test_the_range_holds_every_value_and_a_mean_stays_between(gauge: float) -> None:
    torch.manual_seed(1)
    for scale in (1e-3, 1.0, 1e6):
        node, z = drawn(gauge, scale)
        reach = node.reach(Reach(*domain_of_node(node)))
        y = node(z)
        assert (y >= reach.low - 1e-15 * scale).all()
        assert (y <= reach.high + 1e-15 * scale).all()
        _, a, b = node.parts(torch.stack(domain_of_node(node)[:2]))
        assert (reach.low >= torch.minimum(a[0], b[0]) - 1e-12 * scale).all()
        assert (reach.high <= torch.maximum(a[1], b[1]) + 1e-12 * scale).all()
        assert (torch.linalg.vector_norm(y - reach.center, dim=1) <= reach.radius * (1 + 1e-12)).all()


def test_unbounded_parts_leave_what_the_weight_lets_through() -> None:
    inf = math.inf
    low = torch.tensor([0.0, 1.0, 0.2, -inf, -inf, -inf, -1.0, 0.0, 2.0], dtype=torch.float64)
    high = torch.tensor([1.0, 1.0, 0.4, inf, inf, 3.0, 1.0, 0.5, 4.0], dtype=torch.float64)
    free = torch.tensor(inf, dtype=torch.float64)
    reach = Interpolation((3,)).reach(Reach(low, high, torch.zeros(9, dtype=torch.float64).clamp(low, high), free))
    assert reach.low[0] == -inf
    assert reach.high[0] == inf
    # A weight of one leaves b alone, however large a is.
    assert reach.low[1] == pytest.approx(0.0, abs=1e-12)
    assert reach.high[1] == pytest.approx(0.5)
    # 0.8 * 3 + 0.2 * 4 and 0.6 * 3 + 0.4 * 4 are 3.2 and 3.4.
    assert reach.low[2] == -inf
    assert reach.high[2] == pytest.approx(3.4)


def test_on_the_whole_space_there_is_no_constant() -> None:
    assert Interpolation(SHAPE).log_constant(2.0) == math.inf


def test_a_weight_of_zero_or_one_chooses_and_keeps_its_derivative():
    node = Interpolation((3,))
    z = torch.tensor([[0.0, 1.0, 1.0, 2.0, math.nan, math.inf, math.nan, 5.0, 7.0]], dtype=torch.float64)
    assert node(z).tolist() == [[2.0, 5.0, 7.0]]
    weights = torch.tensor([[0.0, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    a, b = torch.tensor([[2.0, 3.0, 4.0]]), torch.tensor([[5.0, 9.0, 1.0]])
    (slope,) = torch.autograd.grad(node(torch.cat([weights, a, b], 1)).sum(), weights)
    assert slope.tolist() == [[3.0, 6.0, -3.0]]
