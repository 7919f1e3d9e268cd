"""One-class training against the distances it should learn, and its journal against its own definitions."""

import math

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.losses import HKR
from lipkit.sdf import Network
from lipkit.sdf.one_class import (
    Alternating,
    GaussianColumns,
    Lazy,
    OneClass,
    UniformBox,
    distances,
    draw_support,
    orthogonal_mlp,
)


def ring(count: int = 300, seed: int = 0) -> torch.Tensor:
    angle = torch.rand(count, generator=torch.Generator().manual_seed(seed)) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1)


def network(seed: int = 0, widths: tuple[int, ...] = (32, 32)) -> nn.Sequential:
    return orthogonal_mlp(2, widths, torch.Generator().manual_seed(seed))


@pytest.mark.train
def test_the_regression_learns_the_distance_and_its_constant_is_one():
    model, rows = network(), ring()
    OneClass(separation=0.0, steps=300)(model, rows)
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        true = 0.05 - distances(points, rows)
        error = (model(points).flatten() - true).abs()
    # A short training of two small layers leaves less than half of what the best constant is off by.
    assert float(error.mean()) < 0.5 * float((true - true.median()).abs().mean())
    bound = Network(model.double(), points[:1].double()).bound
    assert 0.99 < float(bound.value) <= 1 + 1e-6


@pytest.mark.train
@pytest.mark.parametrize("renewal", [Lazy(2), Alternating(20)], ids=str)
def test_hkr_separates_the_rows_from_the_rest(renewal: Lazy | Alternating):
    model, rows = network(1), torch.randn(300, 2, generator=torch.Generator().manual_seed(2)) * 0.5
    recipe = OneClass(distance=0.0, separation=1.0, steps=200, margin=0.2, weight=10.0, renewal=renewal)
    journal = recipe(model, rows)
    far = 3 * nn.functional.normalize(torch.randn(100, 2, generator=torch.Generator().manual_seed(3)), dim=1)
    with torch.no_grad():
        # Radius 3 is six deviations away.
        assert bool((model(far) < 0).all())
        assert float((model(rows) > 0).float().mean()) > 0.5
    last = journal[-1]
    assert last.step == 200
    assert last.recall > 0.5
    assert last.proposals <= last.walked <= last.rows
    assert 0 < last.slope <= 1 + 1e-4
    # A walk never goes farther than the level is away: |z_T - z_0| <= |f(z_0)| at level -m < 0.
    assert 0 < last.displacement <= 1


def test_one_seed_gives_the_same_weights():
    first, second = network(), network()
    recipe = OneClass(steps=5)
    assert recipe(first, ring(), 7) == recipe(second, ring(), 7)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_are_orthonormal_afterwards():
    model = network()
    OneClass(steps=9)(model, ring())
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().double()
            gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            # Stored in float32.
            assert torch.allclose(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-5)


def test_walks_arrive_on_proposals_and_the_warm_up_has_none():
    journal = OneClass(steps=20, warm_up=1.0)(network(), ring())
    assert len(journal) == 20
    assert all(one.displacement == 0.0 and one.proposals == one.walked for one in journal)


@pytest.mark.train
def test_pictures_of_the_support_lie_on_the_level_set():
    model, rows = network(), ring()
    OneClass(steps=200)(model, rows)
    found = draw_support(model, rows, GaussianColumns(), 50, level=-0.1)
    with torch.no_grad():
        before = model(GaussianColumns().draw(rows, 50, torch.Generator().manual_seed(0))).flatten()
        after = model(found).flatten()
    # From outside up to the level, and what started above it stays; most walks arrive within a hundredth.
    assert bool((after <= torch.maximum(before, torch.tensor(-0.1)) + 1e-5).all())
    assert float(((after - torch.maximum(before, torch.tensor(-0.1))).abs() < 0.01).float().mean()) > 0.8


def test_constrained_layers_and_images_are_trained_too():
    model = nn.Sequential(lnn.Conv2d(1, 4, 3, padding=1), lnn.MaxMin(), nn.Flatten(), lnn.Linear(64, 1))
    images = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(4))
    journal = OneClass(steps=3, batch=16, proposal=UniformBox())(model, images)
    assert [one.step for one in journal] == [1, 2, 3]
    assert not model.training


def test_networks_without_a_constant_and_bad_rows_are_refused():
    last = nn.Linear(2, 1)
    nn.init.orthogonal_(last.weight)
    loose = nn.Sequential(nn.Linear(2, 2), last)
    with pytest.raises(ArgumentError, match=r"Nothing keeps the constant of the weight 0.weight"):
        OneClass(steps=1)(loose, ring())
    with pytest.raises(ShapeError, match="two rows or more"):
        OneClass(steps=1)(network(), ring(1))
    with pytest.raises(NonFiniteError, match="NaN"):
        OneClass(steps=1)(network(), ring() * math.nan)
    with pytest.raises(ArgumentError, match="even numbers"):
        orthogonal_mlp(2, (3,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneClass(margin=0.0),
        lambda: OneClass(weight=math.inf),
        lambda: OneClass(distance=-1.0),
        lambda: OneClass(distance=0.0, separation=0.0),
        lambda: OneClass(steps=0),
        lambda: OneClass(warm_up=1.5),
        lambda: Lazy(0),
    ],
)
def test_settings_out_of_range_are_refused(make: object):
    with pytest.raises(ArgumentError, match=r"got|nothing to learn"):
        make()  # type: ignore[operator]


def test_the_printed_sign_of_the_update_climbs():
    # f(x) = theta x, a row at 1 and a complementary sample at -1: the loss is -2 theta beyond the margin.
    loss = HKR(0.05, 100.0)
    theta = torch.tensor(0.5, requires_grad=True)

    def at(slope: torch.Tensor) -> torch.Tensor:
        return loss(slope * torch.tensor([1.0, -1.0]), torch.tensor([True, False]))

    (gradient,) = torch.autograd.grad(at(theta), theta)
    printed, right = theta.detach() + 0.1 * gradient, theta.detach() - 0.1 * gradient
    assert [float(at(one).detach()) for one in (theta, printed, right)] == pytest.approx([-1.0, -0.6, -1.4], rel=1e-6)
