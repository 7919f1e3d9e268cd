"""Lipschitz constants of differences of logits from any bound: the one place that knows the factors."""

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lipkit.bound import Bound, Scope
from lipkit.errors import ArgumentError, MetricError, NonFiniteError, ShapeError
from lipkit.losses.margins import rivals
from lipkit.rounding.float64 import exp_of, log_product, log_sum
from lipkit.rounding.slacks import ULP

# An upper bound of log 2: the nearest float64 is within half a unit in the last place.
_LOG_2 = math.nextafter(math.log(2.0), math.inf)

Constants = Bound | Float[Tensor, "rows cols"]


def log_pair_factor(p_out: float) -> float:
    """log ||e_a - e_b||_q* = (1 - 1/q) log 2 for outputs in l_q, rounded up: 0, log sqrt 2, log 2 for 1, 2, inf.

    A map that is K-Lipschitz into l_q has differences of two outputs that are K ||e_a - e_b||_q*-Lipschitz, with the
    dual exponent q* (Hölder). The number of classes does not enter.
    """
    if not p_out >= 1.0:
        raise MetricError(f"A norm has an exponent >= 1, got an output in l{p_out:g}; measure it in l1, l2 or linf.")
    # The quotient and the difference are at most 1 and each off by half a unit in the last place of 1.
    share = {1.0: 0.0, 2.0: 0.5, math.inf: 1.0}.get(p_out, 1.0 - 1.0 / p_out + ULP)
    return math.nextafter(share * _LOG_2, math.inf) if share else 0.0


def pair_constants(bound: Bound, classes: int) -> Float64[Tensor, "{classes} {classes}"]:
    """K_ab with |(z_a - z_b)(x) - (z_a - z_b)(x')| <= K_ab ||x - x'|| for all pairs of classes; zero diagonal.

        of the whole map   K_ab = ||e_a - e_b||_q* K     (sqrt 2 K in l2, K in l1, 2 K in linf outputs)
        of each class      K_ab = K_a + K_b              (2 K for heads with rows of equal norm)
        of each pair       K_ab as given.

    Guarantee: never below the real-arithmetic value of these formulas, in float64, so the result certifies if `bound`
    does (`bound.kind.certifies`; the kind is not checked here, because training may use estimates). It may be +inf
    where the constant leaves float64. Differentiable in whatever the bound depends on. Cost: classes^2 numbers.
    Reference: Tsuzuku et al. 2018 for sqrt 2; Hölder's inequality for the others.
    """
    if classes < 1:
        raise ArgumentError(f"The number of classes is at least 1, got {classes}.")
    log = bound.log_value
    if bound.of is Scope.WHOLE:
        values = _constants_of_pairs(log, bound.metric.p_out).expand(classes, classes)
    elif bound.of is Scope.CLASS:
        _check(bound, (classes,))
        values = exp_of(log_sum(log[:, None], log[None, :], 1.0), 1.0)
    elif bound.of is Scope.PAIR:
        _check(bound, (classes, classes))
        values = exp_of(log, 1.0)
    else:
        raise ShapeError(f"A bound for {bound.of} has no constants of pairs alone; use `label_constants`.")
    return values.masked_fill(torch.eye(classes, dtype=torch.bool, device=log.device), 0.0)


def label_constants(
    constants: Constants, target: Int[Tensor, " batch"], classes: int
) -> Float[Tensor, "batch {classes}"]:
    """K_yj for each sample's class y and every class j, zero at j = y: the rows of `pair_constants`.

    Bounds for each sample (local constants) count as bounds of the whole map on that sample's region. A tensor holds
    the constants of the pairs, (classes, classes), and is believed up to its diagonal, which is not read; a bound must
    be finite.
    """
    if isinstance(constants, Tensor):
        if constants.shape != (classes, classes):
            raise ShapeError(
                f"A tensor of constants has shape ({classes}, {classes}), one for each pair, got "
                f"{tuple(constants.shape)}; give a Bound for other forms."
            )
        return constants[target.long()].masked_fill(~rivals(target, classes), 0.0)
    if constants.of is Scope.SAMPLE:
        _check(constants, tuple(target.shape))
        rows = _constants_of_pairs(constants.log_value, constants.metric.p_out)[:, None].expand(-1, classes)
        rows = rows.to(target.device).masked_fill(~rivals(target, classes), 0.0)
    else:
        rows = pair_constants(constants, classes).to(target.device)[target.long()]
    if not bool(torch.isfinite(rows).all()):
        raise NonFiniteError(f"The constants of {constants} leave float64; bound the layers before training on them.")
    return rows


def _constants_of_pairs(log: Float64[Tensor, "..."], p_out: float) -> Float64[Tensor, "..."]:
    factor = log_pair_factor(p_out)
    return exp_of(log_product(log, torch.full_like(log, factor), 1.0) if factor else log, 1.0)


def _check(bound: Bound, shape: tuple[int, ...]) -> None:
    if tuple(bound.log_value.shape) != shape:
        raise ShapeError(f"A bound for {bound.of} must have shape {shape} here, got {tuple(bound.log_value.shape)}.")
