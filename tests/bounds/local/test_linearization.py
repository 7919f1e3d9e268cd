"""The derivative at the center and how far it moves: against Jacobians at many points, and closed forms."""

import math

import pytest
import torch
from torch import nn

from lipkit import Ball, Box
from lipkit.bounds import DAG, Auto, Linearization, Local
from lipkit.bounds.local.attention_in_steps import attention_in_steps
from lipkit.bounds.lower.sampling import jacobians
from lipkit.errors import ArgumentError, NotProvenError, TooLargeError
from lipkit.regions import Region
from lipkit.trace import Network
from lipkit.trace.capture import capture
from lipkit.trace.nodes import Attention, MatrixProduct, Softmax


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


def blocks(count: int = 2, scale: float = 2.0) -> tuple[Network, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(count))).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    return capture(model, x).detach(), x[0]


def sampled(network: Network, region: Region, count: int = 400) -> float:
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


@pytest.mark.parametrize("radius", [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
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
