"""Björck's iteration with as few steps as the singular values need: the same weights, gradients and proof."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lipkit.nn.methods import bjorck
from lipkit.nn.methods._arithmetic.bjorck_steps import Start, iterate
from lipkit.nn.methods._arithmetic.spectrum_range import range_of
from lipkit.nn.methods.bjorck import Bjorck, factors, reach
from lipkit.nn.methods.polar import Polar
from support.layers.matrix_methods import degenerate, gaussian

# Square, a little taller, and wider than long: all of them wide enough for a look at the singular values.
SHAPES = ((128, 128), (160, 130), (130, 150))


class Steps:
    """The numbers of steps that short iterations took, with None for those that did not arrive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[int | None] = []
        shortly = bjorck.iterate_shortly

        def spy(tall: Tensor, start: Start, scales: tuple[float, ...], *others: Any) -> Tensor | None:
            found = shortly(tall, start, scales, *others)
            self.taken.append(None if found is None else len(scales))
            return found

        monkeypatch.setattr(bjorck, "iterate_shortly", spy)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def with_condition(condition: float, rows: int, cols: int) -> Tensor:
    """A float32 matrix with singular values from 1 to `condition`, of a size that has to be divided out."""
    left, _, right = torch.linalg.svd(gaussian(rows, cols), full_matrices=False)
    values = torch.linspace(1.0, condition, min(rows, cols), dtype=torch.float64)
    return (7 * (left * values) @ right).to(torch.float32)


def norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().to(torch.float64), 2).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("condition", "count"), [(1.0, 0), (1.05, 2), (1.5, 3), (3.0, 4)])
def test_weights_and_gradients_are_those_of_the_projection(
    condition: float, count: int, shape: tuple[int, int], steps: Steps
) -> None:
    raw = with_condition(condition, *shape).requires_grad_()
    pull = gaussian(*shape, 5)
    weight = Bjorck().matrix(raw)
    assert steps.taken == [count]
    assert norm(weight) <= 1 + 1e-13  # the rounding of the reference
    (gradient,) = torch.autograd.grad((weight * pull.to(torch.float32)).sum(), raw)
    # A decomposition in float64 with the derivative in closed form.
    wide = raw.detach().to(torch.float64).requires_grad_()
    exact = Polar().matrix(wide)
    (expected,) = torch.autograd.grad((exact * pull).sum(), wide)
    # Some roundings of float32 in each step, and the room for those of the result.
    assert norm(weight - exact) <= 1e-5
    # The last step is differentiated at the isometry, from which it starts 2^-16 away; roundings as above.
    assert float((gradient - expected).norm()) <= 1e-4 * float(expected.norm())


def test_second_derivatives() -> None:
    raw = with_condition(1.5, 128, 128).requires_grad_()
    pull, along = gaussian(128, 128, 5).to(torch.float32), gaussian(128, 128, 6).to(torch.float32)
    found: list[Tensor] = []
    for method, dtype in ((Bjorck(), torch.float32), (Polar(), torch.float64)):
        free = raw.detach().to(dtype).requires_grad_()
        (first,) = torch.autograd.grad((method.matrix(free) * pull.to(dtype)).sum(), free, create_graph=True)
        found += torch.autograd.grad((first * along.to(dtype)).sum(), free)
    # As above, for two derivatives.
    assert float((found[0] - found[1]).norm()) <= 1e-3 * float(found[1].norm())


def test_evaluations_take_all_steps(steps: Steps) -> None:
    raw = with_condition(1.5, 128, 128)
    expected = iterate(raw, factors(7), torch.float32)
    assert torch.equal(Bjorck().matrix(raw), expected)
    with torch.no_grad():
        assert torch.equal(Bjorck().matrix(raw.requires_grad_()), expected)
    assert torch.equal(Bjorck().matrix(raw[:, :100, :100]), iterate(raw[:, :100, :100], factors(7), torch.float32))
    assert steps.taken == []
    # The weights of training are others in their last digits only.
    assert norm(Bjorck().matrix(raw) - expected) <= 1e-5
    assert steps.taken == [3]


def test_batches_take_the_steps_that_all_need(steps: Steps) -> None:
    raw = torch.cat([with_condition(1.0, 128, 128), with_condition(1.5, 128, 128)]).requires_grad_()
    weight = Bjorck().matrix(raw)
    assert steps.taken == [3]
    for one, alone in zip(weight, raw, strict=True):
        assert norm(one - iterate(alone[None].detach(), factors(7), torch.float32)[0]) <= 1e-5


@pytest.mark.parametrize("believed", [(1.0, 1.0), (0.9, 1.0), (1e-3, 1e-3), (0.0, math.inf), (math.nan, math.nan)])
def test_an_estimate_that_is_wrong_changes_nothing(
    believed: tuple[float, float], steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all not the norm: with the last estimate but two, singular values grow far above 3^(1/2)."""
    raw = with_condition(3.0, 128, 128).requires_grad_()
    size = float(torch.linalg.matrix_norm(raw.detach() / raw.detach().abs().max(), 2))
    monkeypatch.setattr(bjorck, "range_of", lambda _: (believed[0] * size**2, believed[1] * size**2))
    # Or else the estimate itself would say that not all values arrive.
    monkeypatch.setattr(bjorck, "size_of", lambda gram: torch.full_like(gram[:, :1, :1], 1e-3))
    weight = Bjorck().matrix(raw)
    assert torch.equal(weight, iterate(raw.detach(), factors(7), torch.float32))
    assert steps.taken in ([], [None])
    assert (steps.taken == [None]) == (believed[1] < math.inf)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_steps_leave_values_as_short_as_they_are(count: int) -> None:
    """Fewer steps are a softer constraint on purpose, in training as in evaluation."""
    raw = with_condition(3.0, 128, 128).requires_grad_()
    weight = Bjorck(count).matrix(raw)
    assert float(torch.linalg.svdvals(weight.detach()).min()) < 0.999
    assert torch.equal(weight, iterate(raw.detach(), factors(count - 1), torch.float32))


def test_values_that_all_steps_leave_short_stay_so(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = with_condition(1.05, 128, 128).requires_grad_()
    size = torch.linalg.matrix_norm(raw.detach() / raw.detach().abs().max(), 2, keepdim=True)
    for looseness, taken in ((2.0, [2]), (100.0, [])):
        # All steps divide by this bound of the norm first, and bring up values above a 47th of it.
        monkeypatch.setattr(bjorck, "size_of", lambda _, b=looseness * size: b)
        steps.taken.clear()
        Bjorck().matrix(raw)
        assert steps.taken == taken


def test_degenerate_matrices(steps: Steps) -> None:
    for name, raw in degenerate(140, 128).items():
        free = raw.to(torch.float32).requires_grad_()
        weight = Bjorck().matrix(free)
        assert norm(weight) <= 1 + 1e-13, name
        (gradient,) = torch.autograd.grad((weight * gaussian(140, 128, 3).to(torch.float32)).sum(), free)
        assert bool(torch.isfinite(gradient).all()), name
    assert None not in steps.taken
    for number in (math.nan, math.inf):
        broken = with_condition(1.0, 128, 128)
        broken[0, 3, 4] = number
        assert bool(Bjorck().matrix(broken.requires_grad_()).isnan().any())


def test_an_exact_isometry_takes_one_step(steps: Steps) -> None:
    raw = torch.eye(128)[None].requires_grad_()
    torch.testing.assert_close(Bjorck().matrix(raw), raw, atol=2e-6, rtol=0)  # the room for rounding
    assert steps.taken == [0]


@pytest.mark.parametrize("near", [1e-6, 2.0**-16])
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_the_reach_of_steps_is_where_they_lead_to(count: int, near: float) -> None:
    for value in (reach(count, near), 1.0):
        for scale in factors(count, near):
            value = 1.5 * scale * value - 0.5 * (scale * value) ** 3
        # Without steps the upper end stays at 1.
        assert value == pytest.approx(1 - near, abs=1e-13) or (count == 0 and value == 1)


@pytest.mark.parametrize("size", [128, 400])
def test_the_range_holds_the_eigenvalues(size: int) -> None:
    for seed in range(5):
        noise = gaussian(size, size, seed).to(torch.float32) / math.sqrt(size)
        for raw in (noise, torch.eye(size) + 0.1 * noise, torch.eye(size)[None] + 1e-4 * noise):
            gram = raw.mT @ raw
            values = torch.linalg.eigvalsh(gram.to(torch.float64))
            least, most = range_of(gram)
            spread = float(values.max() - values.min())
            assert least <= float(values.min())
            assert most >= float(values.max())
            # An estimate that were too wide would cost steps: a tenth of the range, and rounding.
            assert most - least <= 1.1 * spread + 1e-5 * most


def test_no_norm_is_above_one(steps: Steps) -> None:
    """Free numbers after some steps of an optimizer that knows nothing of isometries, of every size."""
    generator = torch.Generator().manual_seed(0)
    for draw in range(40):
        rows, cols = (int(torch.randint(128, 150, (), generator=generator)) for _ in range(2))
        noise = torch.randn(1, rows, cols, generator=generator) / math.sqrt(cols)
        start = torch.linalg.qr(torch.randn(1, max(rows, cols), min(rows, cols), generator=generator))[0]
        drift = 10.0 ** (-6 * float(torch.rand((), generator=generator)))
        scale = 10.0 ** float(torch.randint(-30, 30, (), generator=generator))
        raw = scale * ((start if rows >= cols else start.mT) + drift * noise)
        weight = Bjorck().matrix(raw.requires_grad_())
        # The reference may be high by the size times 2^-53.
        assert norm(weight) <= 1 + 150 * 2.0**-53, draw
    # Most of them took the short way.
    assert len(steps.taken) >= 30
