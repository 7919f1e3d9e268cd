"""Whether the model itself disproves the constant that it is to be certified with."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.bound import Bound, Scope
from lipkit.certify.attacks.boundary_step import shortest_step
from lipkit.certify.radii.forward import Logits
from lipkit.errors import BrokenCertificateError
from lipkit.regions import Everywhere
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

# How many inputs are looked at: a constant of another model is wrong at most of them.
_FIRST = 16
# Distances in units of the input's length: near enough to stay on its linear piece, far enough to see more than noise.
_STEPS = (1e-1, 1e-2, 1e-3)
# More than the roundings of the formulas here, which have less than 2^20 operations each.
_SLACK = MILLIONS_OF_ROUNDINGS


def refuse_disproved(
    model: nn.Module, logits: Callable[[Tensor], Logits], x: Float[Tensor, "batch ..."], bound: Bound
) -> None:
    """Refuse a bound that the first of these inputs disprove, whatever the reason: it is one of another model, say.

        |z(x) - z(x')| - rounding > K |x - x'|,   x' another input, or x moved up the lead of its class over the next

    The quotient in that direction is close to the constant where gradients keep their norm, so there a bound that is
    too small by a tenth is found; a loose model may hide a wrong one. Guarantee: what is refused is false, rounding
    errors of the logits included; what passes is not proven by it. A bound on a region, or for each sample, is left
    alone. Cost: a gradient and five evaluations of 16 inputs.
    """
    if bound.of is Scope.SAMPLE or not isinstance(bound.region, Everywhere):
        return
    x = x[:_FIRST]
    before = logits(x)
    for moved in _probes(model, x, bound.metric.p_in):
        try:
            after = logits(moved)
        except Exception:  # noqa: BLE001 - a probe may lie where the model refuses to go, and then says nothing
            continue
        _compare(before, after, (moved.double() - x.double()).flatten(1), bound)


def _probes(model: nn.Module, x: Float[Tensor, "batch ..."], p: float) -> Iterator[Float[Tensor, "batch ..."]]:
    """Other points for each input: its neighbour, and points up the lead of its class."""
    yield x.roll(1, 0)
    up = shortest_step(_gradient(model, x).to(torch.float64), p)
    lengths = [vector_norms(points.to(torch.float64).flatten(1), p) for points in (x, up)]
    scale = torch.where(lengths[1] > 0, (lengths[0] + (lengths[0] == 0)) / lengths[1], 0.0)
    up = up * scale.view(-1, *[1] * (x.ndim - 1))
    for step in _STEPS:
        moved = (x.to(torch.float64) + step * up).to(x.dtype)
        # Where the step leaves the range of numbers the input stays.
        fits = torch.isfinite(moved).flatten(1).all(1)
        yield torch.where(fits.view(-1, *[1] * (x.ndim - 1)), moved, x)


def _gradient(model: nn.Module, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
    """The gradient of the lead of the largest logit over the next; zero where there is none."""
    parameter = next(model.parameters(), None)
    dtype = x.dtype if parameter is None else parameter.dtype
    try:
        with torch.enable_grad():
            # A copy: a model may work in place.
            points = x.detach().clone().to(dtype).requires_grad_()
            first, second = model(points + 0).topk(2, 1).values.unbind(1)
            (found,) = torch.autograd.grad((first - second).sum(), points, allow_unused=True)
    except Exception:  # noqa: BLE001 - whatever a model raises here
        # A model without derivatives can be certified all the same; its inputs are compared with each other.
        found = None
    return torch.zeros_like(x) if found is None else found.nan_to_num(0.0, 0.0, 0.0)


def _compare(before: Logits, after: Logits, apart: Float64[Tensor, "batch size"], bound: Bound) -> None:
    run = vector_norms(apart, bound.metric.p_in)
    rise = _rise(after.value - before.value, (after.error + before.error)[:, None], bound)
    # Constants of classes or pairs: one row for each sample.
    allowed = run.view(-1, *[1] * bound.of.axes) * bound.value.detach().to(rise)
    # No number at all (an infinite constant at distance 0) disproves nothing.
    excess = (rise * (1 - _SLACK) - allowed * (1 + _SLACK)).nan_to_num(nan=-math.inf)
    if bool((excess > 0).any()):
        place = torch.nonzero(excess == excess.max())[0]
        sample, rest = int(place[0]), tuple(place[1:].tolist())
        raise BrokenCertificateError(
            f"The model disproves the constant {float(bound.value.detach()[rest]):.6g} it is to be certified with: "
            f"between two inputs at distance {float(run[sample]):.6g} its outputs move by at least "
            f"{float(rise[tuple(place)]):.6g}. The bound is of another model or of other inputs (was a normalisation "
            "left out?); bound the model that is evaluated. If it is this very one, lipkit is wrong: please report it."
        )


def _rise(change: Float64[Tensor, "batch classes"], error: Float64[Tensor, "batch 1"], bound: Bound) -> Tensor:
    """The least that outputs moved by, in the shape of the constants, with an axis of samples in front."""
    match bound.of:
        case Scope.PAIR:
            return (change[:, :, None] - change[:, None, :]).abs() - 2 * error[:, :, None]
        case Scope.CLASS:
            return change.abs() - error
        case _:
            p = bound.metric.p_out
            most = change.shape[1] ** (0.0 if math.isinf(p) else 1 / p)
            return vector_norms(change, p) * (1 - _SLACK) - error[:, 0] * most
