"""PGD against closed forms: affine classifiers, f = (t, -t), flat models; and what it must leave alone."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from lipkit.certify.attacks import PGD, Constant, EveryClass, Halving, Margin, MinimalRadius, margins
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.norms import dual_exponent
from support.unchecked import unchecked

NORMS = (1.0, 2.0, math.inf)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Affine(nn.Module):
    """W x + b, with the distance to each class boundary in closed form."""

    def __init__(self, classes: int, size: int, seed: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(size, classes, dtype=torch.float64)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(classes, size, generator=seeded(seed), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1).double())

    @torch.no_grad()
    def distance(self, x: Tensor, labels: Tensor, norm: float) -> Tensor:
        """min over j of (z_y - z_j)/||w_y - w_j||_*."""
        z, w = self(x), self.linear.weight
        gaps = z.gather(1, labels[:, None]) - z
        ratios = gaps / torch.linalg.vector_norm(w[labels][:, None] - w[None], ord=dual_exponent(norm), dim=2)
        return ratios.scatter(1, labels[:, None], math.inf).amin(1)


@pytest.fixture
def affine() -> tuple[Affine, Tensor, Tensor]:
    model, x = Affine(4, 12), torch.randn(16, 12, generator=seeded(1), dtype=torch.float64)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", NORMS)
def test_affine_boundaries_are_found_and_never_crossed_too_early(norm: float, affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    truth = model.distance(x, labels, norm)
    attack = PGD(0.0, norm, objective=EveryClass())
    outside = attack.within(model, x, labels, truth * 1.01, generator=seeded())
    assert bool((margins(model(outside), labels) < 0).all())
    inside = attack.within(model, x, labels, truth * (1 - 1e-9), generator=seeded())
    assert bool((margins(model(inside), labels) > 0).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_minimal_radius_of_an_affine_classifier(norm: float, affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    truth = model.distance(x, labels, norm)
    found = MinimalRadius(PGD(2 * float(truth.max()), norm, steps=25, objective=EveryClass()), rounds=5)(
        model, x, labels, generator=seeded()
    )
    # Logits are computed in float64 with 12 terms: a point may look broken 1e-13 before it is.
    assert bool((found.radius >= truth * (1 - 1e-12)).all())
    assert bool((found.radius <= truth * 1.01).all())
    assert bool((margins(model(found.points), labels) < 0).all())


@pytest.mark.parametrize("norm", NORMS)
def test_two_opposite_logits(norm: float):
    # f = (t, -t), t the first of two coordinates: the boundary is at distance |t| in every norm.
    x = torch.tensor([[0.5, 0.1], [-0.25, 3.0], [2.0, -1.0]], dtype=torch.float64)
    labels = (x[:, 0] < 0).long()
    found = MinimalRadius(PGD(4.0, norm, steps=20), rounds=5)(opposite, x, labels, generator=seeded())
    assert bool((found.radius >= x[:, 0].abs()).all())
    assert bool((found.radius <= x[:, 0].abs() * 1.01).all())


def opposite(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0], -x[:, 0]], 1)


def test_a_flat_model_is_walked_at_random_and_a_step_is_found():
    # Piecewise constant: every gradient is 0, and beyond 0.1 in any coordinate the class is another one.
    def steps(x: Tensor) -> Tensor:
        far = (x.abs().amax(1) > 0.1).to(x.dtype) + 0 * x.sum(1)
        return torch.stack([1 - 2 * far, far], 1)

    x, labels = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    found = PGD(1.0)(steps, x, labels, generator=seeded())
    assert bool((margins(steps(found), labels) < 0).all())
    inert = PGD(1.0)(lambda x: torch.tensor([[1.0, 0.0]]).expand(len(x), 2), x, labels, generator=seeded())
    assert bool(torch.isfinite(inert).all())


def test_a_zero_gradient_at_the_start_is_left():
    # |x|^2 - 1 has no slope at the origin.
    def sphere(x: Tensor) -> Tensor:
        f = (x * x).sum(1) - 1
        return torch.stack([-f, f], 1)

    x, labels = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    found = PGD(1.02, random_start=False)(sphere, x, labels, generator=seeded())
    assert bool((margins(sphere(found), labels) < 0).all())


def test_nan_is_an_error_with_a_count():
    x, labels = torch.rand(3, 2), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(NonFiniteError, match="NaN or infinite logits for 1 of 3"):
        PGD(0.1)(lambda x: torch.stack([x[:, 0], x[:, 1] / (torch.arange(3) != 1)], 1), x, labels)
    with pytest.raises(NonFiniteError, match="gradient of the cross-entropy is NaN"):
        PGD(0.1, random_start=False)(lambda x: torch.stack([1 + x.square().sum(1).sqrt(), x[:, 0]], 1), x * 0, labels)


@pytest.mark.parametrize("schedule", [Constant(), Halving()])
def test_a_sample_does_not_know_its_neighbours(schedule: Constant | Halving, net: nn.Module):
    x = torch.randn(6, 8, generator=seeded(2), dtype=torch.float64)
    labels = net(x).argmax(1)
    attack = PGD(0.3, steps=15, restarts=2, schedule=schedule)
    first = attack(net, x, labels, generator=seeded())
    others = torch.cat([torch.zeros(3, 8, dtype=torch.float64), x[3:]])
    second = attack(net, others, torch.cat([1 - labels[:3].clamp(max=1), labels[3:]]), generator=seeded())
    # Batches of another size may multiply matrices in another order: float64 rounding, grown over 30 steps.
    assert torch.allclose(first[3:], second[3:], atol=1e-9)
    assert torch.equal(first, attack(net, x, labels, generator=seeded()))
    assert not torch.equal(first, attack(net, x, labels, generator=seeded(1)))


def test_restarts_only_help():
    # Waves with many summits of different heights: where a walk begins decides which one it climbs.
    def waves(x: Tensor) -> Tensor:
        f = torch.sin(5 * x).sum(1) + 0.3 * torch.sin(13 * x).sum(1)
        return torch.stack([2.2 - f, 0 * f], 1)

    x = torch.randn(40, 2, generator=seeded(3), dtype=torch.float64) / 10
    labels = torch.zeros(40, dtype=torch.int64)
    attack = PGD(1.0, steps=5, schedule=Constant())
    found = [
        margins(waves(replace(attack, restarts=n)(waves, x, labels, generator=seeded())), labels) for n in (1, 2, 8)
    ]
    for fewer, more in itertools.pairwise(found):
        # Once broken, a sample is not run again, so what counts is whether it is.
        assert bool(((more <= fewer) | (more < 0)).all())
    assert int((found[2] < 0).sum()) > int((found[0] < 0).sum())


def test_wrong_samples_are_returned_as_they_are(affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    wrong = (labels + 1) % 4
    assert torch.equal(PGD(1.0)(model, x, wrong, generator=seeded()), x)
    nearest = MinimalRadius(PGD(1.0))(model, x, wrong, generator=seeded())
    assert nearest.radius.tolist() == [0.0] * len(x)


def test_a_label_that_loses_by_a_last_digit_is_not_broken():
    # Away from 0 the label is one unit in the last place behind; it loses for good from 0.01 on.
    def model(x: Tensor) -> Tensor:
        size = x[:, :1].abs()
        return torch.cat([4096 - 2.0**-12 * (size != 0), 4096 + 64 * (size - 0.01).clamp(min=0)], 1)

    x, label = torch.zeros(1, 1), torch.zeros(1).long()
    assert float(margins(model(x + 1e-3), label)) < 0
    nearest = MinimalRadius(PGD(0.5, steps=4))(model, x, label, generator=seeded())
    # 8 units in the last place at a slope of 64, and the last of the halvings.
    assert 0.01 < float(nearest.radius) < 0.01 + 8 * 2.0**-11 / 64 + 0.5 * 2.0**-12


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("eps", [0.0, 1e-320, 1e-200, 1e-30])
def test_radii_whose_square_underflows(norm: float, eps: float):
    model = nn.Linear(5, 3, bias=False).double()
    x = torch.zeros(2, 5, dtype=torch.float64)
    # At 0 all logits tie; any move decides.
    found = PGD(eps, norm, steps=5)(model, x, torch.tensor([0, 1]), generator=seeded())
    assert bool(torch.isfinite(found).all())
    sizes = [[abs(Fraction(v)) for v in row] for row in found.tolist()]
    for row in sizes:
        assert {1.0: sum(row), 2.0: sum(v * v for v in row), math.inf: max(row)}[norm] <= (
            Fraction(eps) ** 2 if norm == 2.0 else Fraction(eps)
        )


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    x = torch.rand(5, 4)
    with torch.inference_mode():
        found = PGD(0.2, steps=4, low=0.0, high=1.0)(model, x, torch.zeros(5).long(), generator=seeded())
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 5
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.dtype == x.dtype
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
def test_images_stay_in_ball_and_box(dtype: torch.dtype, norm: float):
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 4)).to(dtype)
    x = torch.rand(6, 3, 3, 3, generator=seeded()).to(dtype)
    eps = {1.0: 2.0, 2.0: 0.5, math.inf: 8 / 255}[norm]
    found = PGD(eps, norm, 0.0, 1.0, steps=10)(model, x, model(x).argmax(1), generator=seeded())
    moved = torch.linalg.vector_norm((found.double() - x.double()).flatten(1), ord=norm, dim=1)
    assert bool((moved <= eps).all())
    assert float(found.min()) >= 0.0
    assert float(found.max()) <= 1.0
    assert float(moved.max()) >= 0.9 * eps


def test_no_samples_give_no_samples(affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    assert PGD(1.0)(model, x[:0], labels[:0]).shape == (0, 12)


def test_wrong_arguments_are_named(affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    with pytest.raises(ArgumentError, match="norms 1, 2 and inf"):
        PGD(1.0, 3.0)
    with pytest.raises(ArgumentError, match="eps >= 0"):
        PGD(-1.0)
    with pytest.raises(ArgumentError, match="low < high"):
        PGD(1.0, low=1.0, high=0.0)
    with pytest.raises(ArgumentError, match="one step"):
        PGD(1.0, steps=0)
    with pytest.raises(ArgumentError, match="restarts from one point"):
        PGD(1.0, restarts=3, random_start=False)
    with pytest.raises(ArgumentError, match="step_size"):
        PGD(1.0, step_size=0.0)
    with pytest.raises(ArgumentError, match="Halving needs"):
        Halving(start=0.0)
    with pytest.raises(ShapeError, match="TwoClasses"):
        PGD(1.0)(lambda z: z[:, :1], x, labels * 0)
    with pytest.raises(ShapeError, match=r"0\.\.3"):
        PGD(1.0)(model, x, labels + 4)
    assert str(PGD(1.0, restarts=2)) == "PGD in l2 (eps 1, 40 halving steps, 2 restarts, cross-entropy)"
    assert Margin()(model(x), labels, 0).shape == labels.shape


@unchecked()
def test_wrong_types_are_named(affine: tuple[Affine, Tensor, Tensor]):
    model, x, labels = affine
    for wrong in (labels[:2], labels[:, None], labels.double()):
        with pytest.raises(ShapeError, match="one class index for each of 16 inputs"):
            PGD(1.0)(model, x, wrong)
    with pytest.raises(ArgumentError, match=r"floating point, got torch\.int64"):
        PGD(1.0)(model, x.long(), labels)
    with pytest.raises(ShapeError, match="floating point logits"):
        PGD(1.0)(lambda z: z[:, :4].long(), x, labels)
    with pytest.raises(ArgumentError, match=r"whole numbers, .* got 2\.5 and 1"):
        replace(PGD(1.0), steps=2.5)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
