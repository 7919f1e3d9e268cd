"""The derivative at the center and how far it moves: against Jacobians at many points, and closed forms."""

import functools
import math

import pytest
import torch
from torch import nn

from lipkit import Ball, Box
from lipkit.bounds import DAG, Auto, Linearization, Local
from lipkit.bounds._base import know_products
from lipkit.bounds.local import linearization
from lipkit.bounds.local.attention_in_steps import attention_in_steps
from lipkit.bounds.local.measured_network import MeasuredNetwork
from lipkit.bounds.local.ranges import Refine, propagate_ranges
from lipkit.bounds.lower.sampling import jacobians
from lipkit.errors import ArgumentError, NotProvenError, TooLargeError
from lipkit.regions import Region
from lipkit.trace import Network, Reach
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Attention, MatrixProduct, Product, Softmax


class Block(nn.Module):
    """Attention with a mask, normalisation, a gate and skip connections, wide enough weights to curve."""

    def __init__(self, width: int = 6, heads: int = 2) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, tokens, width)."""
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
        return x + self.down(nn.functional.silu(self.gate(x)) * torch.relu(self.up(x)))


@functools.cache
def blocks(count: int = 2, scale: float = 2.0) -> tuple[Network, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(count))).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    return capture(model, x).detach(), x[0]


class Scan(nn.Module):
    """A selective scan, h_t = exp(-softplus(x)) h_(t-1) + softplus(x) B(x) x: many products, some of few entries."""

    def __init__(self, width: int = 5, state: int = 3) -> None:
        super().__init__()
        self.norm, self.size = nn.LayerNorm(width), nn.Linear(width, width)
        self.into, self.out = nn.Linear(width, state), nn.Linear(width, state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, tokens, width)."""
        y = self.norm(x)
        step, into, out = nn.functional.softplus(self.size(y)), self.into(y), self.out(y)
        held = torch.zeros_like(y[:, 0, :, None])
        found: list[torch.Tensor] = []
        for t in range(x.shape[1]):
            new = step[:, t, :, None] * into[:, t, None] * y[:, t, :, None]
            held = torch.exp(-step[:, t])[..., None] * held + new
            found.append((held @ out[:, t, :, None])[..., 0])
        return x + torch.stack(found, 1) * nn.functional.silu(y)


@functools.cache
def scans(count: int = 2) -> tuple[Network, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Scan() for _ in range(count))).double()
    x = torch.randn(1, 3, 5, dtype=torch.float64)
    return capture(model, x).detach(), x[0]


def sampled(network: Network, region: Region, count: int = 200) -> float:
    """The largest Jacobian norm at points of the region, its border among them."""
    generator = torch.Generator().manual_seed(1)
    if isinstance(region, Ball):
        ways = torch.randn(count, *region.center.shape, dtype=torch.float64, generator=generator)
        ways = ways / torch.linalg.vector_norm(ways.flatten(1), ord=region.p, dim=1)[:, None, None]
        points = region.center + region.radius * ways * torch.linspace(0, 1, count)[:, None, None].double()
    else:
        assert isinstance(region, Box)
        share = torch.rand(count, *region.low.shape, dtype=torch.float64, generator=generator).round(decimals=0)
        points = region.low + (region.high - region.low) * share
    return float(torch.linalg.matrix_norm(jacobians(network, points), 2).max())


@pytest.mark.parametrize("radius", [0.0, 1e-6, 1e-3, 0.1, 1.0])
def test_it_is_above_the_jacobian_at_every_point(radius: float):
    network, x = blocks()
    region = Ball(x, radius)
    bound = float(Linearization()(network, region).value)
    assert bound >= sampled(network, region)


def test_small_regions_cost_little_and_a_point_nothing():
    network, x = blocks()
    at = float(torch.linalg.matrix_norm(jacobians(network, x[None])[0], 2))
    # The norm itself is found within 18^(1/4096), and rounding of two blocks is far below 1e-9.
    assert at <= float(Linearization()(network, Ball(x, 0.0)).value) <= at * 1.002
    assert float(Linearization()(network, Ball(x, 1e-5)).value) <= at * 1.02
    assert float(Linearization()(network, Ball(x, 1e-3)).value) <= at * 3
    assert float(Local(DAG())(network, Ball(x, 1e-3)).value) > at * 30


@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.5])
def test_products_of_entries(radius: float):
    network, x = scans()
    region = Ball(x, radius)
    bound, exact = float(Linearization()(network, region).value), sampled(network, region)
    assert exact <= bound
    # The excess grows with the radius; the gauges of products, which suit the whole space, have no part in it.
    if radius <= 1e-3:
        assert bound <= 1.03 * exact
        balanced = know_products(network)
        assert any(isinstance(node, Product) and node.gauge != 1 for node in balanced.nodes)
        assert float(Linearization()(balanced, region).value) == bound


@pytest.mark.slow
def test_rounding_does_not_grow_with_the_depth():
    # 3.7 and 24 times the norm where errors are passed on by the norms of the layers.
    for count, scale in ((8, 1.0), (5, 1.5)):
        network, x = blocks(count, scale)
        at = float(torch.linalg.matrix_norm(jacobians(network, x[None])[0], 2))
        # The norm itself is found within 18^(1/4096).
        assert at <= float(Linearization()(network, Ball(x, 1e-12)).value) <= 1.002 * at


def test_values_at_the_center_may_be_computed_roughly(monkeypatch: pytest.MonkeyPatch):
    """Errors of 1e-6 in every value at the center, far more than the ball is wide: ranges still hold every value."""
    network, x = blocks()
    spelled = attention_in_steps(network)
    region = Ball(x, 1e-9)
    found: list[list[Reach]] = []
    size = 1e-6

    def roughly(measured: MeasuredNetwork, where: Region, balls: bool, every: bool, refine: Refine) -> list[Reach]:
        def moved(k: int, z: Reach, ys: list[Reach]) -> Reach:
            way = torch.randn(z.center.shape, dtype=torch.float64)
            way = way * size / torch.linalg.vector_norm(way)
            return refine(k, Reach(z.low - size, z.high + size, z.center + way, z.radius + 1.001 * size), ys)

        at_center = isinstance(where, Ball) and where.radius == 0
        found.append(propagate_ranges(measured, where, balls, every, moved if at_center else refine))
        return found[-1]

    exact = sampled(network, region)
    monkeypatch.setattr(linearization, "propagate_ranges", roughly)
    bound = float(Linearization()(network, region).value)
    assert exact <= bound <= 1.5 * exact
    centers, reaches = found
    points = x + region.radius * torch.linspace(-1, 1, 5)[:, None, None].double() / math.sqrt(x.numel())
    values = spelled.values(points)
    rows = spelled.rows()
    outside = 0
    for k, (center, reach) in enumerate(zip(centers, reaches, strict=True), start=1):
        z = sum((op.apply(values[j]) for j, op in rows[k].items()), torch.zeros((), dtype=torch.float64))
        z = z + spelled.biases.get(k, torch.zeros((), dtype=torch.float64))
        if bool(torch.isfinite(reach.radius)):
            assert bool(((reach.low <= z) & (z <= reach.high)).all())
            away = torch.linalg.vector_norm((z - reach.center).flatten(1), dim=1)
            assert bool((away <= reach.radius).all())
            # Around the computed values the ball alone would miss them: what is tested is the drift.
            outside += int(float(torch.linalg.vector_norm(z[2] - center.center)) > 100 * region.radius)
    assert outside > 10


@pytest.mark.parametrize("region", ["box", "l1", "linf"])
def test_other_regions(region: str):
    network, x = blocks()
    size = 1e-3
    where = Box(x - size, x + 2 * size) if region == "box" else Ball(x, size, 1.0 if region == "l1" else math.inf)
    assert float(Linearization()(network, where).value) >= sampled(network, where)


def test_attention_in_steps_computes_the_same():
    network, _ = blocks()
    spelled = attention_in_steps(network)
    kinds = [type(node) for node in spelled.nodes]
    assert [kinds.count(kind) for kind in (Attention, Softmax, MatrixProduct)] == [0, 2, 4]
    points = torch.randn(20, 3, 6, dtype=torch.float64)
    # Only the order of sums differs.
    assert torch.allclose(spelled(points), network(points), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_auto_takes_it_where_nodes_act_on_several_entries():
    network, x = blocks()
    found = Auto(budget=20)(network, Ball(x, 1e-3))
    assert isinstance(found.method, Linearization)
    # Another network cannot take part: the smallest of its parts is the answer.
    assert float(found.log_value) == min(float(part.log_value) for part in found.parts)


def test_a_batch_has_one_value_for_each_sample():
    network, x = blocks(1)
    centers = torch.stack([x, x + 1])
    found = Linearization()(network, Ball(centers, 1e-3))
    for i, center in enumerate(centers):
        assert float(found.log_value[i]) == float(Linearization()(network, Ball(center, 1e-3)).log_value)


def test_it_refuses_what_it_cannot_do():
    network, x = blocks(1)
    with pytest.raises(TooLargeError, match="entries, the limit is 100"):
        Linearization(limit=100)(network, Ball(x, 1e-3))
    with pytest.raises(ArgumentError, match="limit must be at least 1"):
        Linearization(limit=0)
    with pytest.raises(ArgumentError, match="budget must be"):
        Linearization(budget=0.0)
    with pytest.raises(NotProvenError, match="time"):
        Linearization(budget=1e-9)(network, Ball(x, 1e-3))
