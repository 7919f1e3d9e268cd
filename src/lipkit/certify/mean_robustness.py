"""One number for the robustness of a classifier: mean certifiable robustness, and the AUROC that survives an attack."""

import enum
import math
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lipkit.bound import Bound, Scope
from lipkit.certify.attacks import Attack, Classifier, TwoClasses
from lipkit.certify.radii.radius import MOST, check_classified, quotient, radius, require_certifying
from lipkit.errors import ArgumentError, KindError, NonFiniteError, RegionError, ShapeError
from lipkit.losses.pair_constants import label_constants
from lipkit.regions import Everywhere
from lipkit.rounding.slacks import ROUNDINGS_8

# The gap and the quotient are each rounded once, the constant carries its own rounding.
_DOWN = 1 - ROUNDINGS_8


def signed_radii(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], bound: Bound) -> Float64[Tensor, " n"]:
    """min over j != y of (z_y - z_j)/K_yj: how far a right sample stays right, minus how far a wrong one stays wrong.

    Both signs are certificates: any class j that beats y keeps it beaten within (z_j - z_y)/K_yj, and the best of them
    is the minimum above. Where K_yj = 0 the class never changes sides: +-inf, or 0 for a tie.

    Guarantee: |signed radius| is rounded down. Needs a bound that certifies, everywhere; for others see `radius`.
    """
    require_certifying(bound)
    if bound.region != Everywhere():
        raise RegionError(f"This constant holds on a {bound.region} only; use `radius(..., at=inputs)` and its mean.")
    check_classified(logits, labels)
    labels = labels.to(logits.device)
    z = logits.detach().to(torch.float64)
    gaps = (z.gather(1, labels.long()[:, None]) - z).clamp(-MOST, MOST)
    constants = label_constants(bound, labels, z.shape[1]).detach().to(z)
    free = torch.where(gaps == 0, 0.0, gaps.sign() * math.inf)
    ratio = torch.where(constants > 0, quotient(gaps * _DOWN, constants), free)
    return ratio.scatter(1, labels.long()[:, None], math.inf).amin(1)


def mean_certifiable_robustness(
    logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], bound: Bound, *, clipped: bool = False
) -> float:
    """The mean of `signed_radii`: MCR = E[y f(x)]/L for a binary score, E[margin]/(c L) for several classes.

    Signed, wrong samples count against it by how deep in the wrong class they lie: its maximiser over 1-Lipschitz
    functions is the Kantorovich potential between the classes. `clipped` counts them as 0; this is the mean certified
    radius, a lower bound of the mean distance to another class. Cost: a table of n x classes.
    Reference: definition 11 in chapter 4 of Béthune 2024; both means are also in deel-lip's metrics.
    """
    if not len(logits):
        raise ArgumentError("The mean of no samples is undefined; give at least one.")
    values = radius(logits, labels, bound).value if clipped else signed_radii(logits, labels, bound)
    return float(values.mean())


@final
class Moves(enum.Enum):
    """The samples that an attacker of an AUROC can move. Normal samples are those of class 1, which score high."""

    BOTH = "both classes"
    ANOMALIES = "anomalies"
    NORMALS = "normal samples"

    def __str__(self) -> str:
        return self.value


def certifiable_auroc(
    scores: Float[Tensor, " n"], labels: Int[Tensor, " n"], bound: Bound, eps: float, moves: Moves = Moves.BOTH
) -> float:
    """A lower bound of the AUROC after any perturbation of length `eps` of every sample that an attacker can move.

    A score moves by at most K eps, so the worst case of a pair is f(x+) - K eps against f(x-) + K eps:
        mean over pairs of 1[f(x+) - f(x-) > m K eps] + 1/2 1[f(x+) - f(x-) = m K eps],
    with m = 2 if both classes move and m = 1 if one does. At eps = 0 it is the AUROC itself. Labels are -1 and +1, or 0
    and 1; class 1 is meant to score high.

    Guarantee: LOWER, for attacks that do not change the labels, m K eps rounded up. Cost: a sort.
    Reference: proposition 12 of Béthune 2024, with the sign put right (docs/errata.md); one class alone is ours.
    """
    require_certifying(bound)
    if bound.of is not Scope.WHOLE or bound.region != Everywhere():
        raise KindError(f"Needs one exact or upper constant of the score that holds everywhere, got {bound}.")
    if not (math.isfinite(eps) and eps >= 0):
        raise ArgumentError(f"A radius is a finite number >= 0, got eps={eps}.")
    # Beyond the range of floats nothing is left; but no move is no move, whatever the constant, nor is K = 0 one.
    constant = float(bound.value.detach())
    shift = (2 if moves is Moves.BOTH else 1) * constant * eps * (1 + ROUNDINGS_8) if eps and constant else 0.0
    # A product of two numbers above 0 may be rounded to 0, or to a subnormal number below it.
    return _auroc(scores, labels, math.nextafter(shift, math.inf) if eps and constant else 0.0)


def attacked_auroc(
    score: Classifier,
    x: Float[Tensor, "n *shape"],
    labels: Int[Tensor, " n"],
    attack: Attack,
    moves: Moves = Moves.BOTH,
    generator: torch.Generator | None = None,
) -> float:
    """The AUROC after an attack that makes normal samples (class 1) score low and anomalies high.

    Every sample that can be moved is attacked on its own, and keeps the worst score that the attack met.

    Guarantee: the stored points lie in the ball of the attack, so it is never below `certifiable_auroc` of the same
    radius; how far below the AUROC it is depends on the attack. Cost: that of the attack.
    Reference: the protocol is that of Béthune 2024, figure 5.5: PGD(eps, steps=50, step_size=0.025 * eps, restarts=3,
    schedule=Constant()).

    Args:
        score: One number for each sample, high for normal ones.
        x: Samples; give them in float64, so that the last digits of the scores are no matter.
        labels: -1 and +1, or 0 and 1.
        attack: A search in a ball, such as `attacks.PGD`.
        moves: The samples that move.
        generator: Makes a run repeatable.
    """
    with torch.no_grad():
        before = score(x).detach().flatten()
    found = before.clone()
    for normal, idle in ((True, Moves.ANOMALIES), (False, Moves.NORMALS)):
        rows = (labels.to(x.device) > 0) == normal
        if moves is idle or not bool(rows.any()):
            continue
        sign = 1.0 if normal else -1.0
        victims = x[rows]
        # Attacks stop where a score changes sign; the lowest score they met is wanted, so the sign is put out of reach.
        away = sign * float(2 * before.abs().max() + 1)
        while True:
            there = attack(
                TwoClasses(_Raised(score, away)),
                victims,
                labels.new_full((len(victims),), int(normal)),
                generator=generator,
            )
            with torch.no_grad():
                after = score(there).detach().flatten()
            if bool((sign * (after + away) > 0).all()):
                break
            away *= 4
        found[rows] = sign * torch.minimum(sign * before[rows], sign * after)
    return _auroc(found, labels, 0.0)


@final
class _Raised:
    """A score plus a number."""

    def __init__(self, score: Classifier, by: float) -> None:
        self._score, self._by = score, by

    def __call__(self, x: Tensor) -> Tensor:
        return self._score(x).flatten() + self._by


def _auroc(scores: Tensor, labels: Tensor, shift: float) -> float:
    """The share of pairs whose scores differ by more than `shift`, equal ones counted half."""
    if not (isinstance(scores, Tensor) and isinstance(labels, Tensor)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"Scores and labels are tensors, got {type(scores).__name__} and {type(labels).__name__}; convert arrays "
            "with torch.from_numpy."
        )
    if scores.ndim != 1 or labels.shape != scores.shape:
        raise ShapeError(
            f"One score and one label for each sample are needed, got {tuple(scores.shape)} and {tuple(labels.shape)}."
        )
    if not bool(torch.isfinite(scores).all()):
        raise NonFiniteError("Some scores are NaN or infinite, and nothing can be said of them; check the model.")
    if set(labels.unique().tolist()) not in ({-1, 1}, {0, 1}):
        raise ArgumentError(f"Needs both classes, as -1 and +1 or 0 and 1, got {labels.unique().tolist()[:8]}.")
    f = scores.detach().to(torch.float64)
    labels = labels.to(f.device)
    low, high = f[labels <= 0].sort().values, f[labels > 0]
    reach = high - shift
    # Moved past the rounding of the difference, so that a pair is counted only if it truly is apart.
    reach = torch.nextafter(reach, torch.full_like(reach, -math.inf)) if shift else reach
    below, up_to = torch.searchsorted(low, reach, side="left"), torch.searchsorted(low, reach, side="right")
    return int((below + up_to).sum()) / (2 * len(low) * len(high))
