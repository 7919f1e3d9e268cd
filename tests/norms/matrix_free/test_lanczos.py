"""Randomised Lanczos: what it promises with and without fresh randomness, when it stops, what it refuses."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, TooLargeError
from lipkit.linops import Conv, Dense, LinearFunction, LinearOperator, materialize
from lipkit.norms import Lanczos


def gaussian(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, cols, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def norm(op: LinearOperator) -> float:
    return float(torch.linalg.svdvals(materialize(op))[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 50), (1, 9), (9, 1), (1, 1)])
def test_both_sides_close_in(shape: tuple[int, int], dtype: torch.dtype) -> None:
    op = Dense(gaussian(*shape, dtype=dtype))
    bound = Lanczos(steps=100, rtol=1e-6)(op)
    assert bound.kind is Kind.UPPER
    assert (bound.failure, bound.confidence) == (1e-9, 1 - 1e-9)
    assert bound.lower is not None
    assert bound.lower.value <= norm(op) * (1 + 60 * 2.0**-53)
    # With probability 1 - 1e-9. All 40 dimensions are used, so the sides meet within the rounding noise allowed for.
    assert norm(op) * (1 - 60 * 2.0**-53) <= bound.value <= bound.lower.value * (1 + 2e-6)


def test_a_composition_that_is_never_written_out() -> None:
    weight = gaussian(1, 3 * 3 * 9).reshape(3, 3, 3, 3)
    layer = Conv(weight, (6, 6), (1, 1), ((1, 1), (1, 1)), (1, 1))
    op = layer @ layer @ layer
    bound = Lanczos(rtol=1e-3)(op)
    assert norm(op) <= bound.value <= norm(op) * (1 + 1e-3)
    callable_ = LinearFunction(lambda x, w: x @ w.mT, (40,), (60,), (gaussian(60, 40),))
    assert Lanczos(rtol=1e-2)(callable_).value == pytest.approx(norm(callable_), rel=1e-2)


def test_randomness_that_the_weights_may_know_proves_only_the_lower_side() -> None:
    op = Dense(gaussian(30, 20))
    fresh = Lanczos()(op)
    assert fresh.state is not None
    for known in (Lanczos(seed=5)(op), Lanczos()(op, state=fresh.state), Lanczos(seed=5)(op, state=fresh.state)):
        assert known.kind is Kind.LOWER
        assert known.failure == 0
        assert known.value <= norm(op) * (1 + 30 * 2.0**-53)
    assert Lanczos(seed=5)(op).value == Lanczos(seed=5)(op).value


def test_a_fresh_seed_is_drawn_each_time_and_put_on_record() -> None:
    op = Dense(gaussian(30, 20))
    methods = [bound.method for bound in (*Lanczos().many([op, op]), Lanczos()(op))]
    seeds = [method.seed for method in methods if isinstance(method, Lanczos)]
    assert len(seeds) == 3
    assert None not in seeds
    assert seeds[0] != seeds[2]
    # The record reproduces the run, as a lower bound now that the start is known.
    again = methods[2]
    assert isinstance(again, Lanczos)
    assert again(op).kind is Kind.LOWER


def test_operators_of_one_batch_have_starts_of_their_own() -> None:
    op = Dense(gaussian(30, 20))
    first, second = Lanczos(steps=2, rtol=0).many([op, op])
    assert first.value != second.value


@pytest.mark.parametrize(("rtol", "most"), [(0.5, 8), (0.05, 24), (0.0, 64)])
def test_stops_when_the_sides_are_close(rtol: float, most: int) -> None:
    calls = 0
    weight = gaussian(64, 64)

    def counted(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x @ w.mT

    values = torch.cat([torch.tensor([2.0]), torch.linspace(1, 0, 63)]).double()
    weight = torch.linalg.qr(weight).Q @ torch.diag(values)
    bound = Lanczos(steps=64, rtol=rtol)(LinearFunction(counted, (64,), (64,), (weight,)))
    assert bound.lower is not None
    if rtol:
        assert bound.value <= bound.lower.value * (1 + rtol + 1e-9)
    # An application and an adjoint a step, one more for the lower side, and the shape checks of the callable.
    assert calls <= 2 * most + 4


@pytest.mark.parametrize(("dtype", "failure"), [(torch.float64, 1e-17), (torch.complex128, 1e-40)])
@pytest.mark.parametrize("n", [4, 64, 400])
def test_a_failure_too_small_for_float64_is_refused_with_the_least_one(
    n: int, dtype: torch.dtype, failure: float
) -> None:
    op = Dense(gaussian(n, n, dtype=dtype))
    with pytest.raises(ArgumentError, match="use at least") as caught:
        Lanczos(failure=failure)(op)
    least = float(str(caught.value).split("use at least ")[1].rstrip("."))
    # What the message promises is accepted, and a hundredth of it is not.
    assert Lanczos(failure=least)(op).value >= norm(op) * (1 - n * 2.0**-53)
    with pytest.raises(ArgumentError, match="use at least"):
        Lanczos(failure=least / 100)(op)


def test_gradient_at_convergence() -> None:
    matrix = gaussian(20, 12).requires_grad_()
    u, _, vh = torch.linalg.svd(matrix.detach())
    bound = Lanczos(rtol=0)(Dense(matrix))
    (found,) = torch.autograd.grad(bound.value, matrix)
    # The whole space was searched: vectors to 1e-7, the root of the noise; the value's excess is far smaller.
    torch.testing.assert_close(found, torch.outer(u[:, 0], vh[0]), rtol=0, atol=1e-6)


def test_refusals() -> None:
    op = Dense(gaussian(30, 20))
    for failure in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ArgumentError, match=r"Lanczos\.failure"):
            Lanczos(failure=failure)
    for rtol in (-1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match=r"Lanczos\.rtol"):
            Lanczos(rtol=rtol)
    with pytest.raises(ArgumentError, match=r"Lanczos\.steps"):
        Lanczos(steps=0)
    with pytest.raises(TooLargeError, match="lower `steps` or raise `memory`"):
        Lanczos(memory=1000)(op)
    # Memory limits the batch, not the number of operators.
    assert len(Lanczos(memory=8 * 20 * 21).many([op] * 5)) == 5
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteError):
            Lanczos()(Dense(torch.full((3, 3), bad, dtype=torch.float64)))
    with pytest.raises(ArgumentError, match="20 entries"):
        Lanczos()(op, state=torch.ones(30, dtype=torch.float64))
