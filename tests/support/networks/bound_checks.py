"""What is true of bounds of whole networks: oracles by brute force, and checks that say what is wrong."""

import inspect
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lipkit import bounds
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds import Method, Pairwise
from lipkit.linops import Dense
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import chain
from lipkit.trace.nodes import RELU
from support.networks.bound_methods import CLAIMS, OTHERS, Claims, Gradient

# Dense Jacobians and their norms in float64 are off by some n 2^-53, n at most a hundred.
BELOW = 1e-12
# Difference quotients are evaluated at points that may be 1e-7 of their size apart.
ABOVE = 1e-6


def check_all_are_listed() -> None:
    """Every exported method has its claims, and whatever else gives a bound when it is called is known as such."""
    classes = {it for it in vars(bounds).values() if inspect.isclass(it) and not inspect.isabstract(it)}
    methods = {it for it in classes if issubclass(it, Method | Pairwise)}
    assert methods == set(CLAIMS)
    callables = {it for it in classes if inspect.signature(it.__call__).return_annotation is Bound}
    assert callables == methods | set(OTHERS)


def check_side(bound: Bound, truth: np.ndarray) -> None:
    """No number that certifies is below what brute force finds."""
    value = bound.value.detach().numpy()
    assert np.isfinite(value).all(), "is not finite"
    if bound.of is Scope.PAIR:
        assert (value == value.T).all(), "is not symmetric"
        assert (value.diagonal() == 0).all(), "has a diagonal that is not zero"
    if bound.kind.certifies:
        assert (value >= truth * (1 - BELOW)).all(), f"{value} is below {truth}"


def check_pair_of_points(bound: Bound, function: Callable[[Tensor], Tensor], region: Region) -> None:
    """Every number from below, also one beside an upper bound, has two points of the region that prove it."""
    lower = bound if bound.kind is Kind.LOWER else bound.lower
    if lower is None:
        assert bound.kind is not Kind.EXACT, "is exact without a lower side"
        return
    assert lower.kind is Kind.LOWER, f"has a lower side that is {lower.kind}"
    state = lower.state if lower.state is not None else bound.state
    assert state is not None, "has no points"
    x, y = state
    for point in (x, y):
        assert contains(region, point), "has points outside of the region"
    rise = float(torch.linalg.vector_norm((function(x[None]) - function(y[None])).flatten(), ord=bound.metric.p_out))
    run = float(torch.linalg.vector_norm((x - y).flatten(), ord=bound.metric.p_in))
    quotient = rise / run if run > 0 else 0.0
    assert float(lower.value) <= quotient * (1 + ABOVE), f"{float(lower.value)} is above {quotient}"


def contains(region: Region, point: Tensor) -> bool:
    """Whether a point lies in the region, up to the rounding of its own distance."""
    match region:
        case Ball(center, radius, p):
            away = float(torch.linalg.vector_norm((point - center).flatten(), ord=p))
            return away <= radius * (1 + 1e-12) + 1e-12 * float(center.abs().max())
        case Box(low, high):
            return bool(((low <= point) & (point <= high)).all())
        case _:
            return True


def check_statement(bound: Bound, method: Method | Pairwise, kinds: frozenset[Kind], region: Region) -> None:
    """A bound says what was asked: its kind, region, metric, and for what its numbers are."""
    assert bound.kind in kinds, f"is {bound.kind}"
    assert bound.region == region, f"speaks of {bound.region}"
    metric = cast("Metric | None", getattr(method, "metric", None))
    assert metric is None or bound.metric == metric, f"speaks of {bound.metric}"
    assert bound.of is (Scope.PAIR if isinstance(method, Pairwise) else Scope.WHOLE), f"is one of {bound.of}"


def check_estimate(bound: Bound, truth: np.ndarray) -> None:
    """An estimate promises nothing; one that is off by a factor of ten on these small models is broken all the same."""
    assert truth / 10 <= float(bound.value) <= 10 * truth, f"{float(bound.value)} is far from {truth}"


def check_affine(bound: Bound, truth: np.ndarray, tolerance: float) -> None:
    """The constant of an affine network is the norm of its matrix."""
    value = bound.value.detach().numpy()
    assert np.allclose(value, truth, rtol=tolerance, atol=0), f"{value} is not {truth}"


def check_smaller_region(here: Bound, everywhere: Bound, reads_region: bool) -> None:
    """A method that reads the region finds no more there; any other finds the same."""
    local, whole = here.value.detach().numpy(), everywhere.value.detach().numpy()
    if not reads_region:
        assert (local == whole).all(), f"{local} instead of {whole}, without reading the region"
    elif everywhere.kind.certifies:
        # Solvers stop at a relative tolerance of 1e-6.
        assert (local <= whole * (1 + 1e-6)).all(), f"{local} is above {whole} everywhere"


def check_gradient(method: Method | Pairwise, claims: Claims) -> None:
    """The derivative in the weights along one direction, against differences of the whole computation."""
    draw = torch.Generator().manual_seed(3)
    weights, directions = (
        [torch.randn(shape, dtype=torch.float64, generator=draw) for shape in ((4, 3), (4, 4), (3, 4))]
        for _ in range(2)
    )
    center = torch.randn(3, dtype=torch.float64, generator=draw)
    region = Everywhere() if Everywhere in claims.regions else Box(center - 0.5, center + 0.5)
    bias = torch.full((4,), 0.1, dtype=torch.float64)

    def log_value(matrices: list[Tensor]) -> Tensor:
        found = method(chain([Dense(matrix) for matrix in matrices], RELU, [bias]), region).log_value
        return found[0, 1] if isinstance(method, Pairwise) else found

    live = [weight.clone().requires_grad_() for weight in weights]
    found = log_value(live)
    assert found.requires_grad == (claims.gradient is not Gradient.NONE), "has a gradient, or none, unlike its claim"
    if claims.gradient is Gradient.NONE:
        return
    gradients = torch.autograd.grad(found, live, materialize_grads=True)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    assert math.isfinite(slope), "has a gradient that is not finite"
    assert slope != 0, "has the gradient zero"
    if claims.gradient is Gradient.WHOLE:
        before, after = (
            float(log_value([w + sign * claims.step * d for w, d in zip(weights, directions, strict=True)]))
            for sign in (-1, 1)
        )
        measured = (after - before) / (2 * claims.step)
        # Closed forms are good to 1e-11, so their quotients to 1e-5; solvers stop within 1e-7 of the optimum.
        assert abs(slope - measured) <= 2e-3 * abs(measured) + 1e-4, (
            f"has the derivative {slope}, and {measured} is right"
        )
