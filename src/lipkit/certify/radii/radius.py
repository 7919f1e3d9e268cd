"""How far an input may move before its class can change."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lipkit.bound import Bound, Fingerprint, Kind, Scope
from lipkit.certify.radii.forward import Logits
from lipkit.errors import ArgumentError, KindError, NonFiniteError, RegionError, ShapeError
from lipkit.losses.pair_constants import log_pair_factor, pair_constants
from lipkit.regions import Ball, Box, Everywhere
from lipkit.rounding.float64 import log_norm_ratio, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192


def room(bound: Bound, at: Tensor | None, like: Tensor) -> Float64[Tensor, " batch"] | None:
    """The distance of each input to the outside of the region, in the input norm, rounded down; None if unlimited.

    Of an l_q ball of radius R around c it is at least (R - ||x - c||_q) n^min(0, 1/p - 1/q), because for p <= q an l_p
    ball lies inside the l_q ball of the same radius; of a box it is the distance to the nearest face, in every l_p.
    """
    if isinstance(bound.region, Everywhere):
        return None
    if at is None:
        raise RegionError(f"This constant holds on a {bound.region} only; give the inputs as `at=`.")
    if len(at) != len(like):
        raise ShapeError(f"One input for each row of logits is needed, got {len(at)} for {len(like)}.")
    x = at.detach().to(torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise NonFiniteError("Some inputs are NaN or infinite, so they lie in no region.")
    given = bound.region.center if isinstance(bound.region, Ball) else getattr(bound.region, "low", x)
    if tuple(given.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise ShapeError(f"The region has shape {tuple(given.shape)}, the inputs {tuple(x.shape)}.")
    match bound.region:
        case Ball(center, size, q):
            offset = (x - center.detach().to(x)).flatten(1)
            p, n = bound.metric.p_in, offset.shape[1]
            shrink = 1.0 if p <= q else n ** (1 / p - 1 / q) * (1 - ROUNDINGS_8192)
            left = size - vector_norms(offset, q) * (1 + ROUNDINGS_8192)
            return (left * shrink * (1 - ROUNDINGS_8192)).clamp(min=0.0)
        case Box(low, high):
            low, high = low.detach().to(x), high.detach().to(x)
            left = torch.minimum(x - low, high - x).flatten(1).amin(1)
            return (left * (1 - ROUNDINGS_8)).clamp(min=0.0)
        case _:
            raise RegionError(f"A radius needs a bound on a ball, a box or everywhere, got one on {bound.region}.")


# Two roundings of the gap, one of the division, one of the error: each at most 2^-53 relative.
_DOWN = 1 - ROUNDINGS_8
# Quotients are exact to a rounding between these.
_LEAST, MOST = 1e-290, 1.7e308


@final
@dataclass(frozen=True, eq=False)
class Radii:
    """Certified radii: inside an open ball of radius `value` around each input, in l_`p`, the class is the label.

    A radius is a lower bound of the true distance to another class (`kind` is LOWER), zero where the input is not
    classified as its label. `failure` is that of the constant it was made from.
    """

    value: Float64[Tensor, " batch"]
    p: float
    failure: float = 0.0
    kind: Kind = Kind.LOWER

    def in_norm(self, p: float, dimension: int) -> "Radii":
        """The radii in l_p of inputs with n = `dimension` entries, r min(1, n^(1/p - 1/q)) from radii r in l_q.

        What moves by e in l_p moves by at most max(1, n^(1/q - 1/p)) e in l_q. Rounded down.
        """
        if not isinstance(p, int | float) or not p >= 1:
            raise ArgumentError(f"A norm has an exponent p in [1, inf], such as 2.0 or math.inf, got p={p!r}.")
        if p == self.p:
            return self
        if dimension < 1:
            raise ArgumentError(f"Inputs have one entry or more, got dimension={dimension}.")
        ratio = log_norm_ratio(self.p, p, dimension)
        # An exponential is off by a unit of its last digit, and the product by half of one.
        factor = math.exp(-ratio) * (1 - ROUNDINGS_8) if ratio else 1.0
        return replace(self, value=self.value * factor, p=p)

    def certified(self, eps: float) -> Bool[Tensor, " batch"]:
        """Which inputs keep their label for every perturbation of length at most `eps`."""
        if not (math.isfinite(eps) and eps >= 0):
            raise ArgumentError(f"A radius is a finite number >= 0, got eps={eps}.")
        return self.value > eps


def radius(
    logits: Float[Tensor, "batch classes"] | Logits,
    labels: Int[Tensor, " labels"],
    bound: Bound,
    *,
    error: float | Float[Tensor, " errors"] = 0.0,
    at: Float[Tensor, "inputs ..."] | None = None,
) -> Radii:
    """Radii within which no perturbation takes an input away from its label, from a Lipschitz constant.

        r(x) = min over j != y of (z_y - z_j - 2 error) / K_yj,   0 if negative,

    K_yj bounds the constant of z_y - z_j. What `bound` ranges over decides it: each pair gives K_yj itself, each class
    K_y + K_j, the whole map c K with c = sqrt(2), 1, 2 for outputs in l2, l1, linf (2^(1 - 1/q) for l_q). One value for
    each sample is a constant of the whole map around that sample. The radius is in the input norm of the bound.

    A bound that holds on a region certifies inside it only: give the inputs as `at`, and every radius is cut at the
    distance from the input to the outside of the region. `error` is how far each logit may be from its real value;
    `Forward` computes it. To certify decisions instead of labels pass the predicted classes.

    A bound knows what it was computed from. It is refused for inputs `at` of another shape, and for `Logits` (which
    `Forward` gives, with their error) of another network. Plain numbers cannot be compared.

    Guarantee: LOWER, rounded down; with the failure probability of the bound. Ties give 0. LOWER and ESTIMATE bounds
    are refused, because they prove nothing. Cost: a table of batch x classes.
    Reference: Tsuzuku et al. 2018 for l2; other norms and pairs as in docs/methods.md.
    """
    require_certifying(bound)
    require_subject(bound, logits.subject if isinstance(logits, Logits) else None, at)
    if isinstance(logits, Logits):
        if not isinstance(error, float) or error != 0.0:
            raise ArgumentError("`Logits` carry their own error; leave out `error`, or give plain numbers.")
        logits, error = logits.value, logits.error
    check_classified(logits, labels)
    labels = labels.to(logits.device)
    z = logits.detach().to(torch.float64)
    gaps = (z.gather(1, labels[:, None].long()) - z).clamp(-MOST, MOST)
    constants = _constants(bound, labels, z)
    slack = 2 * _errors(error, z)[:, None]
    # The gap of the computed logits is rounded once; a relative error of it is paid before the real error is.
    sure = gaps * _DOWN - slack * (1 + ROUNDINGS_8)
    free = torch.where(sure > 0, math.inf, 0.0)
    ratio = torch.where(constants > 0, quotient(sure, constants), free)
    rivals = ratio.masked_fill(torch.nn.functional.one_hot(labels.long(), z.shape[1]).bool(), math.inf)
    value = rivals.amin(1).clamp(min=0.0)
    limit = room(bound, at, z)
    return Radii(value if limit is None else torch.minimum(value, limit), bound.metric.p_in, bound.failure)


def binary_radius(
    scores: Float[Tensor, "..."],
    labels: Int[Tensor, " labels"],
    bound: Bound,
    *,
    error: float | Float[Tensor, " errors"] = 0.0,
    at: Float[Tensor, "inputs ..."] | None = None,
) -> Radii:
    """Radii for a single score whose sign is the class: r(x) = (y f(x) - error) / K, 0 if negative.

    Labels are -1 and +1. Guarantee: LOWER, rounded down; exact for signed distance functions.
    Reference: Tsuzuku et al. 2018.
    """
    require_certifying(bound)
    require_subject(bound, None, at)
    if scores.ndim != 1:
        raise ShapeError(f"A single score has one number a sample, got shape {tuple(scores.shape)}; squeeze it first.")
    if bound.of not in (Scope.WHOLE, Scope.SAMPLE):
        raise ArgumentError(f"A single score has one constant, or one for each sample, got one for {bound.of}.")
    if labels.dtype is torch.bool or not bool((labels.abs() == 1).all()):
        raise ArgumentError(f"Labels of a single score are -1 and +1, got {sorted(set(labels.tolist()))[:8]}.")
    pair = torch.stack([scores, torch.zeros_like(scores)], dim=1)
    check_classified(pair, (labels < 0).long())
    labels = labels.to(scores.device)
    f = scores.detach().to(torch.float64)
    sure = f * labels - _errors(error, f)
    constants = bound.value.detach().to(f.device).expand_as(f)
    free = torch.where(sure > 0, math.inf, 0.0)
    ratio = torch.where(constants > 0, quotient(sure, constants), free).clamp(min=0.0)
    limit = room(bound, at, pair)
    return Radii(ratio if limit is None else torch.minimum(ratio, limit), bound.metric.p_in, bound.failure)


def _constants(bound: Bound, labels: Tensor, z: Float64[Tensor, "batch classes"]) -> Float64[Tensor, "batch classes"]:
    if bound.of is not Scope.SAMPLE:
        return pair_constants(bound, z.shape[1]).detach().to(z.device)[labels.long()]
    if bound.value.shape != (len(z),):
        raise ShapeError(f"The bound has constants for {tuple(bound.value.shape)} samples, got {len(z)} inputs.")
    factor = math.exp(log_pair_factor(bound.metric.p_out)) * (1 + ROUNDINGS_8)
    return (bound.value.detach().to(z.device) * factor * (1 + ROUNDINGS_8))[:, None].expand_as(z)


def quotient(gaps: Float64[Tensor, "..."], constants: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """gaps / constants, its size rounded down: what leaves the range of floats stops at its ends, or becomes 0."""
    found = gaps / torch.where(constants > 0, constants, 1.0) * _DOWN
    return torch.where(found.abs() < _LEAST, 0.0, found.clamp(-MOST, MOST))


def _errors(error: float | Tensor, like: Tensor) -> Tensor:
    found = torch.as_tensor(error, dtype=torch.float64, device=like.device)
    if not bool((found >= 0).all() & torch.isfinite(found).all()) or tuple(found.shape) not in ((), (1,), (len(like),)):
        said = found.item() if not found.ndim else f"shape {tuple(found.shape)} from {found.min():g} to {found.max():g}"
        raise ArgumentError(f"`error` is a finite number >= 0, or one for each of {len(like)} samples, got {said}.")
    return found.expand(len(like))


def require_certifying(bound: object) -> Bound:
    """The bound, if it is one that certifies; a number says nothing of what it proves."""
    if not isinstance(bound, Bound):
        raise ArgumentError(
            f"A certificate needs a Bound, got {type(bound).__name__}; take one from lipkit.lipschitz or "
            "certify.head_pairwise, or state it: Bound.from_value(1.0, Kind.UPPER, 'why it holds')."
        )
    if not bound.kind.certifies:
        raise KindError(f"Only an exact or upper bound certifies, got {bound}; use a method that proves one.")
    return bound


def require_subject(bound: Bound, evaluated: Fingerprint | None, inputs: Tensor | None) -> None:
    """Refuse a bound of another network than the one that is evaluated, or of inputs of another shape.

    What somebody stated, or combined from parts, says nothing of what it is of, and passes.
    Cost: if both networks are known, a hash of their weights, once for each.
    """
    of = bound.subject
    shape = evaluated.source if evaluated is not None else None if inputs is None else tuple(inputs.shape[1:])
    if of is None or shape is None:
        return
    if of.source != shape:
        raise ShapeError(
            f"The bound is of inputs of shape {of.source}, and these have the shape {shape}: the constant may be "
            "another one there; bound the model on inputs of this shape."
        )
    if evaluated is not None and of != evaluated and of.network != evaluated.network:
        raise ArgumentError(
            f"The bound is of another network than the one that is evaluated ({of.network[:12]} and "
            f"{evaluated.network[:12]}): the weights were changed, or a part such as a normalisation was left out; "
            "bound the very model that is evaluated."
        )


def check_classified(logits: Tensor, labels: Tensor) -> None:
    """Refuse what is not finite (batch, classes >= 2) logits with a class index for each sample."""
    if logits.ndim != 2:
        raise ShapeError(
            f"Logits have shape (batch, classes), got {tuple(logits.shape)}; give a single sample a batch axis, "
            "logits[None] and labels[None]."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise ArgumentError(f"Labels are class indices, got {labels.dtype}; convert them with `.long()`.")
    if labels.shape != logits.shape[:1]:
        raise ShapeError(f"One label for each row of logits is needed, got {labels.numel()} for {len(logits)}.")
    if logits.shape[1] < 2:
        raise ShapeError(
            f"A class needs a rival, got logits of shape {tuple(logits.shape)}; give a model with a single score as "
            "`attacks.TwoClasses(model)`, or use `binary_radius`."
        )
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise ArgumentError(
            f"Labels must lie in 0..{logits.shape[1] - 1}, got {int(labels.min())}..{int(labels.max())}."
        )
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("Some logits are NaN or infinite, and nothing can be said of them; check the model.")
