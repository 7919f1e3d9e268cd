"""Radii near a sample: never beyond the true distance to another class, and larger than those of the constant."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import lipschitz
from lipkit.bound import Metric
from lipkit.bounds import FastLip, Relaxation
from lipkit.certify import Forward, LocalProof, LocalRadii, head_pairwise, radius
from lipkit.certify.radii.forward import Logits
from lipkit.certify.radii.local_radius import LocalSearch
from lipkit.errors import ArgumentError
from lipkit.regions import Ball

NORMS = (1.0, 2.0, math.inf)


def search(model: nn.Module, example: Tensor, p: float = 2.0, **settings: float) -> tuple[LocalSearch, Forward]:
    forward = Forward(model, example)
    return LocalRadii(**settings).prepare(forward, p), forward  # pyright: ignore[reportArgumentType]


def plane(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).double()


@pytest.mark.parametrize("p", NORMS)
def test_a_linear_classifier_is_certified_up_to_its_boundary(p: float):
    torch.manual_seed(1)
    model = nn.Linear(4, 3).double()
    x = torch.randn(4, dtype=torch.float64)
    z = model(x).detach()
    label = int(z.argmax())
    others = [j for j in range(3) if j != label]
    rows = (model.weight[label] - model.weight[others]).detach()
    dual = {1.0: math.inf, 2.0: 2, math.inf: 1}[p]
    distance = float(((z[label] - z[others]) / torch.linalg.vector_norm(rows, dual, dim=1)).min())
    local, forward = search(model, x[None], p, bisections=40)
    found = local.enlarge(x, label, forward(x[None]), 0.0, [distance / 3])
    # Forty halvings of at most the distance, and the roundings of both sides.
    assert distance * (1 - 1e-6) < found.value < distance
    assert found.proof is not None


@pytest.mark.parametrize("p", NORMS)
def test_no_point_of_another_class_lies_within_a_radius(p: float):
    grid = torch.cartesian_prod(*[torch.linspace(-4, 4, 401, dtype=torch.float64)] * 2)
    larger = 0
    for seed in range(2):
        model = plane(seed)
        local, forward = search(model, grid[:1], p, bisections=8)
        classes = forward(grid).value.argmax(1)
        constant = head_pairwise(model, grid[:1])
        for x in torch.randn(3, 2, dtype=torch.float64):
            logits = forward(x[None])
            label = int(logits.value.argmax())
            start = float(radius(logits, torch.tensor([label]), constant).in_norm(p, 2).value)
            found = local.enlarge(x, label, logits, start, [0.05, 0.2])
            others = grid[classes != label]
            nearest = float(torch.linalg.vector_norm(others - x, p, dim=1).min()) if len(others) else math.inf
            assert start <= found.value < nearest
            larger += found.value > 2 * start
    assert larger >= 4


@pytest.mark.slow
def test_every_proof_can_be_repeated_and_reaches_no_further_than_its_ball():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).double()
    local, forward = search(model, torch.zeros(1, 8, dtype=torch.float64), bisections=4)
    seen: set[LocalProof] = set()
    for x in torch.randn(12, 8, dtype=torch.float64):
        logits = forward(x[None])
        label = int(logits.value.argmax())
        found = local.enlarge(x, label, logits, 0.0, [0.01, 0.1])
        assert found.proof is not None
        assert found.value <= found.ball
        assert local.repeat(x, label, logits, found.ball, found.proof) == found
        seen.add(found.proof)
        for proof in LocalProof:
            assert local.repeat(x, label, logits, found.ball, proof).value <= found.ball
            # The wrong label has no radius by any of them.
            wrong = (label + 1) % 4
            assert local.repeat(x, wrong, logits, found.ball, proof).value == 0
    assert LocalProof.MARGINS in seen
    assert len(seen) >= 2


def test_a_radius_asked_for_is_certified_strictly():
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 0, 0]]))
        model.bias.zero_()
    local, forward = search(model, torch.zeros(1, 3, dtype=torch.float64))
    x = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    for eps in (0.0, 1e-30, 0.1, 0.999):
        assert local.enlarge(x, 0, forward(x[None]), 0.0, [eps]).value > eps
    # The boundary is at distance one exactly.
    assert local.enlarge(x, 0, forward(x[None]), 0.0, [1.0]).value < 1


def test_rounding_errors_of_the_logits_are_paid():
    local, forward = search(plane(0), torch.zeros(1, 2, dtype=torch.float64))
    x = torch.randn(2, dtype=torch.float64)
    logits = forward(x[None])
    label = int(logits.value.argmax())
    gap = float(logits.value.topk(2).values[0].diff().abs())
    blurred = Logits(logits.value, logits.error + gap, logits.subject)
    assert local.enlarge(x, label, logits, 0.0, [1e-3]).value > 0
    assert local.enlarge(x, label, blurred, 0.0, [1e-3]).value == 0


def test_without_time_nothing_is_begun():
    local, forward = search(plane(0), torch.zeros(1, 2, dtype=torch.float64), seconds=1e-9)
    x = torch.randn(2, dtype=torch.float64)
    logits = forward(x[None])
    found = local.enlarge(x, int(logits.value.argmax()), logits, 0.125, [0.5])
    assert (found.value, found.ball, found.proof) == (0.125, 0.0, None)


@pytest.mark.parametrize("settings", [{"seconds": 0.0}, {"seconds": math.nan}, {"bisections": -1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]):
    with pytest.raises(ArgumentError, match=r"LocalRadii\.(seconds|bisections)"):
        LocalRadii(**settings)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("p", NORMS)
def test_radii_by_intervals_of_derivatives_are_those_of_fast_lip(p: float):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)).double()
    local, forward = search(model, torch.zeros(1, 4, dtype=torch.float64), p)
    x = torch.randn(4, dtype=torch.float64)
    logits = forward(x[None])
    z = logits.value[0]
    label = int(z.argmax())
    largest = 0.0
    for size in (0.02, 0.3):
        ball = Ball(x, size, p)
        radii = []
        for j in {0, 1, 2} - {label}:
            row = torch.zeros(1, 3, dtype=torch.float64)
            row[0, label], row[0, j] = 1.0, -1.0
            margin = nn.Sequential(model, frozen_row(row))
            constant = float(lipschitz(margin, x[None], FastLip(Metric(p, p), Relaxation()), ball).value)
            radii.append(float(z[label] - z[j]) / constant)
        found = local.repeat(x, label, logits, size, LocalProof.ENTRIES).value
        # The error of the logits and all roundings make a certified radius a little smaller.
        assert found == pytest.approx(min(size, *radii), rel=1e-4)
        largest = max(largest, found)
    # A bisection over the size of the ball finds at least the best of these.
    more, _ = search(model, x[None], p, bisections=12)
    assert more.enlarge(x, label, logits, 0.0, [0.02]).value >= largest * (1 - 1e-3)


def frozen_row(row: Tensor) -> nn.Linear:
    layer = nn.Linear(row.shape[1], 1, bias=False).double()
    layer.weight = nn.Parameter(row, requires_grad=False)
    return layer
