"""One suite for every node that is not pointwise: constants, reaches and splits against autograd and sampling."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lipkit.regions import Reach
from lipkit.trace.nodes import Node
from lipkit.trace.nodes.attention.attention import Attention
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax
from lipkit.trace.nodes.entrywise_product import Product
from lipkit.trace.nodes.matrix_product import MatrixProduct
from lipkit.trace.nodes.normalization import Normalization
from lipkit.trace.nodes.order_statistics import OrderStatistics
from lipkit.trace.nodes.unit_vectors import Unit
from lipkit.trace.nodes.vector_norm import VectorNorm
from lipkit.trace.nodes.window_maxima import WindowMax

P = (1.0, 2.0, math.inf)
WINDOWS = torch.tensor([[0, 1, 2], [2, 3, 4], [4, 5, 5]])


def mask() -> Tensor:
    return torch.tensor([[[0.0, -math.inf, 0.5], [1.0, 0.0, -1.0]]], dtype=torch.float64)


EVERY: dict[str, Callable[[], Node]] = {
    "sort": lambda: OrderStatistics((2, 4), (0, 1, 2, 3)),
    "max": lambda: OrderStatistics((2, 4), (-1,)),
    "second and last": lambda: OrderStatistics((4,), (1, -1)),
    "pool": lambda: WindowMax((2, 6), WINDOWS),
    "pool of one axis": lambda: WindowMax((6,), WINDOWS),
    "softmax": lambda: Softmax((2, 4)),
    "softmax of two": lambda: Softmax((2,)),
    "softmax of one": lambda: Softmax((3, 1)),
    "softmax, masked": lambda: Softmax((2, 3), hidden=torch.tensor([[False, True, False], [False] * 3])),
    "log softmax": lambda: LogSoftmax((2, 4)),
    "log softmax of two": lambda: LogSoftmax((2,)),
    "logsumexp": lambda: LogSumExp((2, 4)),
    "logsumexp of one axis": lambda: LogSumExp((4,)),
    "layer norm": lambda: Normalization((2, 5), 1e-2, True),
    "layer norm of two": lambda: Normalization((2,), 1e-2, True),
    "layer norm of one": lambda: Normalization((3, 1), 1e-2, True),
    "rms norm": lambda: Normalization((2, 4), 1e-2, False),
    "rms norm of one": lambda: Normalization((3, 1), 1e-2, False),
    "rms norm, eps 0": lambda: Normalization((2, 3), 0.0, False),
    "unit": lambda: Unit((2, 4), 0.1),
    "l1 norm": lambda: VectorNorm((2, 4), 1.0),
    "l2 norm": lambda: VectorNorm((2, 4), 2.0),
    "linf norm": lambda: VectorNorm((2, 4), math.inf),
    "product": lambda: Product((2, 3), (2, 3)),
    "product, gate": lambda: Product((2, 3), (2, 1)),
    "product, outer": lambda: Product((2, 1), (3,)),
    "product, scalar": lambda: Product((3,), ()),
    "matrix product": lambda: MatrixProduct(2, 2, 3, 1),
    "attention": lambda: Attention(1, 2, 3, 2, 2, 0.7),
    "attention, heads": lambda: Attention(2, 2, 2, 1, 2, 1.5),
    "attention, masked": lambda: Attention(1, 2, 3, 1, 1, 1.0, mask()),
    "attention, one key": lambda: Attention(1, 3, 1, 2, 2, 1.0),
}
every = pytest.mark.parametrize("name", EVERY)


@dataclass(frozen=True, eq=False)
class Place:
    """A reach, and a way to draw points of it."""

    reach: Reach
    draw: Callable[[int], Tensor]


def places(node: Node, seed: int) -> list[Place]:
    """Boxes, l2 balls, and both at once, from tiny to wide, around points from near 0 to far out."""
    torch.manual_seed(seed)
    size = math.prod(node.shape)
    found: list[Place] = []
    for spread, width in ((1.0, 0.01), (1.0, 0.5), (0.05, 0.2), (3.0, 2.0)):
        center = spread * torch.randn(node.shape, dtype=torch.float64)
        half = width * torch.rand(node.shape, dtype=torch.float64)
        found.append(_box(center, half))
        found.append(_ball(center, width, size))
    return found


def _box(center: Tensor, half: Tensor) -> Place:
    def draw(count: int) -> Tensor:
        inner = center + half * (2 * torch.rand(count, *center.shape, dtype=torch.float64) - 1)
        corners = center + half * torch.randn(count, *center.shape, dtype=torch.float64).sign()
        return torch.cat([inner, corners, center[None]])

    low, high = center - half, center + half
    # The ends are rounded, so the radius has a little more.
    return Place(Reach(low, high, center, half.norm() * (1 + 1e-12)), lambda n: draw(n).clamp(low, high))


def _ball(center: Tensor, radius: float, size: int) -> Place:
    def draw(count: int) -> Tensor:
        step = torch.randn(2 * count, size, dtype=torch.float64)
        length = torch.cat([torch.ones(count), torch.rand(count)]).to(torch.float64)[:, None]
        moved = radius * (1 - 1e-12) * length * step / step.norm(dim=1, keepdim=True)
        return torch.cat([center + moved.reshape(-1, *center.shape), center[None]])

    wide = torch.full_like(center, math.inf)
    return Place(Reach(-wide, wide, center, torch.tensor(radius, dtype=torch.float64)), draw)


def jacobians(node: Node, z: Tensor) -> Tensor:
    one = torch.func.jacrev(lambda v: node(v[None])[0].reshape(-1))
    return torch.vmap(one)(z).reshape(len(z), math.prod(node.target), math.prod(node.shape))


def distances(points: Tensor, p: float) -> Tensor:
    """Between all pairs, by differences."""
    flat = points.flatten(1)
    return torch.linalg.vector_norm(flat[:, None] - flat[None], p, dim=-1)


def norms(matrices: Tensor, p: float) -> Tensor:
    return torch.linalg.matrix_norm(matrices, p)


@every
def test_jacobians_never_exceed_the_constant_on_a_reach(name: str):
    node = EVERY[name]()
    for place in places(node, 1):
        local = node.within(place.reach)
        found = jacobians(node, place.draw(20))
        for p in P:
            bound = local.log_constant(p).exp()
            # The dense norms of at most 13 columns are within 1e-13.
            assert (norms(found, p) <= bound * (1 + 1e-12)).all(), (p, norms(found, p).max(), bound)
            assert local.log_constant(p) <= node.log_constant(p) + 1e-12


@every
def test_ratios_never_exceed_the_constant(name: str):
    node = EVERY[name]()
    for place in places(node, 2):
        local, z = node.within(place.reach), place.draw(15)
        y = node(z)
        for p in P:
            near, far = distances(z, p), distances(y, p)
            size = 1 + y.abs().max() + z.abs().max()
            # Distances by differences; values are rounded relative to their size, and to that of what they divide by.
            assert (far <= local.log_constant(p).exp() * (near + 1e-13 * size) + 1e-13 * size).all()


@every
def test_the_constant_holds_on_the_whole_space(name: str):
    node = EVERY[name]()
    torch.manual_seed(3)
    # From the neighbourhood of 0 to far out, and points with equal entries.
    scale = 10 ** (4 * torch.rand(60, *(1,) * len(node.shape), dtype=torch.float64) - 3)
    z = scale * torch.randn(60, *node.shape, dtype=torch.float64)
    z[40:] = z[40:].round(decimals=1) + 1e-9 * torch.randn(20, *node.shape, dtype=torch.float64)
    for p in P:
        assert (norms(jacobians(node, z), p) <= node.log_constant(p).exp() * (1 + 1e-12)).all()


@every
def test_values_stay_in_the_reach(name: str):
    node = EVERY[name]()
    for place in places(node, 4):
        found, y = node.reach(place.reach), node(place.draw(25))
        assert found.low.shape == node.target
        # Values are rounded themselves, relative to their size.
        slack = 1e-13 * (1e-3 + y.abs().amax(0))
        assert (y >= found.low - slack).all()
        assert (y <= found.high + slack).all()
        distance = (y - found.center).flatten(1).norm(dim=1)
        assert (distance <= found.radius * (1 + 1e-12) + 1e-13 * (1e-3 + y.abs().max())).all()
        assert ((found.center >= found.low) & (found.center <= found.high)).all()


@every
def test_a_split_leaves_a_rest_that_its_scale_covers(name: str):
    node = EVERY[name]()
    for place in places(node, 5):
        local, z = node.within(place.reach), place.draw(15)
        for p in P:
            split = local.split(p)
            linear = 0 if split.center is None else split.center.apply(z)
            rest = (node(z) - linear).flatten(1)
            scale = split.scale.apply(torch.ones(1, *node.target, dtype=torch.float64)).flatten(1)
            # psi = rest / scale is 1-Lipschitz; where the scale is 0 the rest is constant.
            psi = torch.where(scale > 0, rest / scale, 0.0)
            near, far = distances(z, p), distances(psi, p)
            size = (1 + rest.abs().max() + z.abs().max()) / torch.where(scale > 0, scale, math.inf).min().clamp(max=1)
            assert (far <= near * (1 + 1e-12) + 1e-12 * size).all()
            assert (torch.where(scale > 0, 0.0, rest - rest[:1]).abs() <= 1e-12 * (1 + rest.abs().max())).all()


@every
def test_an_unbounded_reach_says_nothing_new(name: str):
    node = EVERY[name]()
    wide = torch.full(node.shape, math.inf, dtype=torch.float64)
    reach = Reach(-wide, wide, torch.zeros_like(wide), torch.tensor(math.inf, dtype=torch.float64))
    for p in P:
        assert node.within(reach).log_constant(p) <= node.log_constant(p) + 1e-12
        assert node.within(reach).log_constant(p) >= node.log_constant(p) - 1e-9
    found = node.reach(reach)
    y = node(torch.randn(50, *node.shape, dtype=torch.float64) * 10)
    assert ((y >= found.low - 1e-12) & (y <= found.high + 1e-12)).all()
    assert not torch.isnan(found.radius)


@every
def test_a_larger_reach_has_a_larger_constant(name: str):
    node = EVERY[name]()
    torch.manual_seed(6)
    center, half = torch.randn(node.shape, dtype=torch.float64), torch.rand(node.shape, dtype=torch.float64)
    boxes = [_box(center, t * half).reach for t in (0.0, 0.1, 1.0, 4.0)]
    for p in P:
        constants = [node.within(box).log_constant(p).item() for box in boxes]
        assert all(a <= b + 1e-9 for a, b in pairwise(constants))


@pytest.mark.parametrize(
    ("name", "spread"),
    [("product", 1.0), ("product, gate", 1.0), ("product, outer", 1.0), ("matrix product", 1.0), ("log softmax", 1.0)],
)
def test_at_a_point_the_l2_constant_is_the_norm_of_the_jacobian(name: str, spread: float):
    # Claimed exact: sqrt(|a|^2 + |b|^2), sqrt(|A|^2 + |B|^2), sqrt(n) |p|; |A| and |p| are bounded from above.
    node = EVERY[name]()
    torch.manual_seed(7)
    for _ in range(5):
        z = spread * torch.randn(node.shape, dtype=torch.float64)
        local = node.within(Reach(z, z, z, torch.zeros((), dtype=torch.float64)))
        truth = norms(jacobians(node, z[None]), 2.0)[0]
        loose = 1.03 if name == "matrix product" else 1.7 if name == "log softmax" else 1 + 1e-12
        assert truth <= local.log_constant(2.0).exp() <= truth * loose


@pytest.mark.parametrize("name", ["product", "product, gate", "product, outer", "product, scalar"])
def test_products_attain_their_l1_and_linf_constants_in_a_corner(name: str):
    node = EVERY[name]()
    torch.manual_seed(8)
    z = torch.randn(node.shape, dtype=torch.float64)
    local = node.within(Reach(-z.abs(), z.abs(), 0 * z, z.norm() * (1 + 1e-12)))
    found = jacobians(node, z[None])
    for p in (1.0, math.inf):
        assert norms(found, p)[0] == pytest.approx(local.log_constant(p).exp().item(), rel=1e-12)


@every
def test_a_node_prints_and_maps_all_of_its_tensors(name: str):
    node = EVERY[name]()
    assert str(node)
    place = places(node, 9)[0]
    tracked = node.within(place.reach).map(lambda t: t.clone().requires_grad_(t.is_floating_point()))
    assert tracked.log_constant(2.0) == node.within(place.reach).log_constant(2.0)
    # Nothing that a node knows of its region is hidden from `map`: detached, it has no graph left.
    assert not tracked.map(Tensor.detach).log_constant(2.0).requires_grad


@pytest.mark.parametrize("name", [name for name in EVERY if not name.startswith(("sort", "max", "second", "pool"))])
@pytest.mark.parametrize("p", P)
def test_constants_on_a_region_are_differentiable_in_it(name: str, p: float):
    node = EVERY[name]()
    torch.manual_seed(10)
    center = torch.randn(node.shape, dtype=torch.float64, requires_grad=True)
    radius = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    wide = torch.full_like(center, math.inf)
    local = node.within(Reach(-wide, wide, center, radius)).log_constant(p)
    if local.requires_grad and torch.isfinite(local):
        gradients = torch.autograd.grad(local, [center, radius], allow_unused=True)
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)
