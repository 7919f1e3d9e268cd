"""Nodes as a linear part and a bounded rest on a region: against their Jacobians at many points of it."""

import pytest
import torch
from torch import Tensor

from lipkit.linops import materialize
from lipkit.regions import Reach, reach_of
from lipkit.trace.nodes import Attention, MatrixProduct, Node, Normalization, Product, Softmax, Unit

CAUSAL = torch.zeros(2, 3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf)
HIDDEN = torch.tensor([[False, True, False, False], [False, False, False, True]])
NODES: dict[str, Node] = {
    "layer norm": Normalization((3, 5), 1e-5, True),
    "layer norm with a large eps": Normalization((3, 5), 0.5, True),
    "rms norm": Normalization((3, 5), 1e-6, False),
    "rms norm of two": Normalization((4, 2), 1e-3, False),
    "unit": Unit((3, 5), 1e-12),
    "unit inside": Unit((3, 5), 1e3),
    "unit across": Unit((3, 5), 2.0),
    "softmax": Softmax((3, 4)),
    "masked softmax": Softmax((2, 4), hidden=HIDDEN),
    "softmax of two": Softmax((5, 2)),
    "attention": Attention(2, 3, 4, 5, 2, 0.4),
    "causal attention": Attention(2, 3, 3, 2, 3, -0.7, CAUSAL),
    "one key": Attention(1, 3, 1, 2, 2, 1.0),
    "matrix product": MatrixProduct(2, 3, 4, 2),
}


def around(node: Node, radius: float, box: bool, seed: int, scale: float) -> tuple[Reach, Tensor]:
    """A ball, or a box of that half width, around a random center, and points in it."""
    generator = torch.Generator().manual_seed(seed)
    center = scale * torch.randn(node.shape, dtype=torch.float64, generator=generator)
    ways = torch.randn(60, *node.shape, dtype=torch.float64, generator=generator)
    if box:
        points = center + radius * ways.sign()
        points[::2] = center + radius * ways[::2].clamp(-1, 1)
        wide = torch.full_like(center, radius)
        return reach_of(center - wide, center + wide, center, center.new_tensor(torch.inf)), points
    lengths = torch.linalg.vector_norm(ways.flatten(1), dim=1).reshape(-1, *(1,) * center.ndim)
    # Single entries and groups that take the whole radius, beside directions that share it.
    one = torch.zeros_like(ways)
    for i in range(len(one)):
        one[i].view(-1)[i % one[i].numel()] = 1.0 if i % 2 else -1.0
    points = torch.cat([center + radius * ways / lengths, center + radius * one, center[None]])
    far = torch.full_like(center, radius)
    return Reach(center - far, center + far, center, center.new_tensor(radius)), points


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("radius", [1e-6, 1e-2, 0.3, 1.0])
@pytest.mark.parametrize("box", [False, True])
def test_the_rest_bounds_how_far_jacobians_lie_from_the_linear_part(name: str, radius: float, box: bool):
    node = NODES[name]
    for seed, scale in ((0, 1.0), (1, 0.2)):
        reach, points = around(node, radius, box, seed, scale)
        split = node.within(reach).split(2.0)
        size = points[0].numel()
        center = torch.zeros(torch.Size(node.target).numel(), size, dtype=torch.float64)
        if split.center is not None:
            center = materialize(split.center).reshape(center.shape)
        scales = split.scale.apply(torch.ones(node.target, dtype=torch.float64)).flatten()
        assert bool((scales > 0).all())
        found = torch.func.vmap(torch.func.jacrev(lambda z: node(z[None])[0]))(points).reshape(len(points), -1, size)
        rest = (found - center) / scales[:, None]
        # Autograd rounds by 1e-15 or so, and the smallest rests are near 1e-7.
        assert float(torch.linalg.matrix_norm(rest, 2).max()) <= 1 + 1e-7


@pytest.mark.parametrize("name", [name for name in NODES if name not in ("unit across", "one key")])
def test_the_rest_vanishes_with_the_radius(name: str):
    node = NODES[name]
    sizes = []
    for radius in (1e-3, 1e-5):
        reach, _ = around(node, radius, False, 0, 1.0)
        split = node.within(reach).split(2.0)
        assert split.center is not None
        sizes.append(float(split.scale.apply(torch.ones(node.target, dtype=torch.float64)).max()))
    # Linear in the radius, up to what the region adds to the constants and up to rounding.
    assert sizes[1] <= 0.0105 * sizes[0] + 1e-12
    assert sizes[0] < 1.0


def test_outside_l2_and_on_the_whole_space_nothing_changes():
    for node in NODES.values():
        assert node.split(2.0).center is None
        reach, _ = around(node, 1e-3, False, 0, 1.0)
        if not isinstance(node, MatrixProduct):
            assert node.within(reach).split(1.0).center is None


@pytest.mark.parametrize(
    "name", [name for name, node in NODES.items() if isinstance(node, Normalization | Unit | Softmax)]
)
def test_groups_with_distances_of_their_own_have_smaller_rests_that_hold(name: str):
    node = NODES[name]
    assert isinstance(node, Normalization | Unit | Softmax)
    reach, points = around(node, 0.4, False, 3, 1.0)
    # The groups move by a tenth, two tenths, ... of what the ball allows, around another point than its center.
    share = torch.arange(1, node.shape[0] + 1, dtype=torch.float64)[:, None] / 10
    other = reach.center + 0.01
    moved = other + (points - reach.center) * share
    inside = torch.linalg.vector_norm((moved - reach.center).flatten(1), dim=1) <= 0.4
    plain, closer = node.within(reach), node.within(reach).closer(other, 0.4 * share)
    rests = [one.split(2.0).scale.apply(torch.ones(node.target, dtype=torch.float64)) for one in (plain, closer)]
    assert bool((rests[1] <= rests[0]).all())
    if name not in ("unit across", "unit inside"):
        assert float(rests[1][0].max()) < 0.7 * float(rests[0][0].max())
    split, size = closer.split(2.0), points[0].numel()
    center = torch.zeros(size, size, dtype=torch.float64)
    if split.center is not None:
        center = materialize(split.center).reshape(size, size)
    found = torch.func.vmap(torch.func.jacrev(lambda z: node(z[None])[0]))(moved[inside]).reshape(-1, size, size)
    # Autograd rounds by 1e-15 or so.
    assert float(torch.linalg.matrix_norm((found - center) / rests[1].flatten()[:, None], 2).max()) <= 1 + 1e-9
    assert float(torch.linalg.matrix_norm(found, 2).max()) <= float(closer.log_constant(2.0).exp()) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("left", "right", "gauge"),
    [((4,), (4,), 1.0), ((2, 1), (2, 3), 1.0), ((3,), (2, 1), 8.0), ((2, 1, 2), (1, 3, 1), 0.25), ((1,), (5,), 1.0)],
)
def test_a_product_departs_from_its_derivative_by_no_more_than_it_says(
    left: tuple[int, ...], right: tuple[int, ...], gauge: float
):
    node = Product(left, right, gauge=gauge)
    generator = torch.Generator().manual_seed(0)
    (size,) = node.shape
    center = torch.randn(size, dtype=torch.float64, generator=generator)
    cut = torch.Size(left).numel()
    most = 0.0
    for trial in range(40):
        far = torch.rand(size, dtype=torch.float64, generator=generator) ** 4
        # A factor that does not move at all is one of the cases.
        far[: cut * (trial % 3 == 0)] = 0.0
        scale, weights = node.departure(far)
        signs = torch.randn(2, 50, size, dtype=torch.float64, generator=generator).sign()
        z, other = center + far * signs
        derivative = materialize(node.derivative(center)).reshape(-1, size)
        rest = (node(z) - node(other)).flatten(1) - (z - other) @ derivative.mT
        moved = (z - other) * weights
        said = sum(torch.linalg.vector_norm(half, dim=1) for half in (moved[:, :cut], moved[:, cut:]))
        lengths = torch.linalg.vector_norm(rest / scale.flatten(), dim=1)
        # Rounding of the values themselves, which are of order 1, in units of the smallest scale.
        assert bool((lengths <= said + 1e-14 / float(scale.min())).all()), trial
        if trial % 3:
            most = max(most, float((lengths / said).max()))
    # Not so large that it could not fail: signs reach a good share of what is said.
    assert most > 0.3
