"""From the samples of a batch to its certified radii, without the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from lipkit.bound import L2, Bound, Scope
from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.radii.radius import Radii, require_certifying
from lipkit.certify.smoothing.event import Method, Theorem
from lipkit.certify.smoothing.noise import Gaussian, Noise
from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.statistics.methods import Bonferroni, ClassPartition, Cohen, IntersectionUnion
from lipkit.certify.smoothing.statistics.prediction import ABSTAIN
from lipkit.certify.smoothing.statistics.sample_size import Anytime
from lipkit.errors import ArgumentError, MetricError, NotProvenError, RegionError
from lipkit.regions import Everywhere
from lipkit.rounding.slacks import ALMOST_ONE

# Methods that use the first of the declared maps.
_FIRST_MAP = (Bonferroni, ClassPartition, Cohen, IntersectionUnion)


@final
@dataclass(frozen=True, eq=False)
class SmoothedRadii:
    """Certificates of a smoothed classifier g(x) = argmax over k of E tau_k(f(x + noise)), one for each input.

    With probability 1 - `failure` over the samples, for each input by itself: g(z) = `label` for all z in the open
    ball of radius `radius` around the input, in l_`p`. Where nothing is proven, `label` is `ABSTAIN` and the radius 0.

    Args:
        label: The proven class.
        radius: How far the input may move, rounded down.
        lower: A lower bound of the share of the class that was tried.
        upper: An upper bound of the share of the decisive rival, at which the radius is smallest.
        samples: The samples that were spent to prove it.
        rule: The theorem behind each radius.
        maps: How the samples of each input voted: the classifier that is certified is the one with these votes.
        method: The statistical method, as it prints.
        alpha: The probability of failure that the method was given.
        p: The norm of the radii.
        failure: `alpha`, and the failure probability of a Lipschitz bound where one was given.
        through: The norm in which the radii were proven, where `in_norm` changed it; else `p`.
    """

    label: Int64[Tensor, " batch"]
    radius: Float64[Tensor, " batch"]
    lower: Float64[Tensor, " batch"]
    upper: Float64[Tensor, " batch"]
    samples: Int64[Tensor, " batch"]
    rule: tuple[str, ...]
    maps: tuple[SimplexMap, ...]
    method: str
    alpha: float
    p: float
    failure: float
    through: float

    def in_norm(self, p: float, dimension: int) -> "SmoothedRadii":
        """The radii in l_p of inputs with n = `dimension` entries, r min(1, n^(1/p - 1/q)) from radii r in l_q.

        What is proven stays what it was: `through` says in which norm. Rounded down.
        """
        return replace(self, radius=Radii(self.radius, self.p).in_norm(p, dimension).value, p=p)

    def certified(self, labels: Int64[Tensor, " batch"], eps: float) -> Bool[Tensor, " batch"]:
        """Which inputs have their label for every perturbation of length at most `eps`."""
        return (self.label == labels) & Radii(self.radius, self.p).certified(eps)

    def __len__(self) -> int:
        return len(self.label)


def radii_of(samples: Samples, noise: Noise, alpha: float, method: Method, bound: Bound | None = None) -> SmoothedRadii:
    """The radii that samples prove: the smallest over rivals of the largest that one theorem gives for each.

    `bound` is an l2 -> l2 constant of the whole base network on the whole space, which is not compared with the model
    here. It needs votes that have a Lipschitz constant of their own. Cost: the method; nothing is sampled.
    """
    check_level(alpha)
    check_method(method)
    if samples.noise is not None and samples.noise != noise:
        raise ArgumentError(
            f"These samples were drawn with {samples.noise}, and say nothing of {noise}; draw them with that."
        )
    theorem = theorem_of(noise, bound)
    if bound is not None:
        require_constants(samples.maps, method)
    event = method.event(samples, alpha, theorem)
    pairs = theorem.radii(event.lower, event.upper, event.maps)
    own = torch.nn.functional.one_hot(event.label, event.upper.shape[1]).bool()
    value, rival = pairs.value.masked_fill(own, math.inf).min(1)
    if bool(value.isnan().any()):
        raise NotProvenError(f"{method} gave shares of which no radius follows; take another method.")
    proven = value > 0
    rules = pairs.rule.gather(1, rival[:, None])[:, 0].tolist()
    return SmoothedRadii(
        torch.where(proven, event.label, ABSTAIN), value.clamp(min=0.0), event.lower,
        event.upper.gather(1, rival[:, None])[:, 0], samples.spent,
        tuple(noise.rules[one] for one in rules), event.maps, str(method), alpha, noise.p,
        min(alpha + (0.0 if bound is None else bound.failure), ALMOST_ONE), noise.p,
    )  # fmt: skip


def check_method(method: object) -> None:
    """Refuse what is no method."""
    if not isinstance(method, Method):
        raise ArgumentError(f"`method` is a smoothing method such as rs.IntersectionUnion(), got {method!r}.")


def join_radii(parts: Sequence[SmoothedRadii]) -> SmoothedRadii:
    """Batches of radii as one, all by one method at one alpha."""
    names = ("label", "radius", "lower", "upper", "samples")
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    rule, maps = (tuple(one for part in parts for one in getattr(part, name)) for name in ("rule", "maps"))
    return replace(parts[0], **tensors, rule=rule, maps=maps)


def theorem_of(noise: Noise, bound: Bound | None) -> Theorem:
    """The theorem that turns shares into radii, with the constant of a bound that smoothing can use."""
    return Theorem(noise, None if bound is None else float(_require_usable(bound, noise).value.detach()))


def _require_usable(bound: Bound, noise: Noise) -> Bound:
    """The bound, if it is one that smoothing can use."""
    require_certifying(bound)
    if not isinstance(noise, Gaussian):
        raise ArgumentError(
            f"Theorems with a Lipschitz bound are about Gaussian noise, got {noise}; leave out `bound`."
        )
    if bound.metric != L2 or bound.of is not Scope.WHOLE:
        raise MetricError(
            f"Smoothing uses one constant of all logits together, l2 to l2, got one for {bound.of} in {bound.metric}; "
            "take it from lipkit.lipschitz(model, x)."
        )
    if not isinstance(bound.region, Everywhere):
        raise RegionError(
            f"Noise leaves every bounded region, and this constant holds on {bound.region} only; give one that holds "
            "everywhere."
        )
    return bound


def require_constants(maps: Sequence[SimplexMap], method: Method) -> None:
    """Refuse a Lipschitz bound where the method uses votes without a constant alone."""
    used = maps[:1] if isinstance(method, _FIRST_MAP) else [Hardmax()] if isinstance(method, Anytime) else maps
    if all(math.isinf(one.coordinate) for one in used):
        raise ArgumentError(
            f"A Lipschitz bound says nothing of votes by {used[0]}, which jump and which {type(method).__name__} uses; "
            "give simplex=rs.Softmax(temperature=1.0) or rs.Sparsemax(), which have constants, or leave out `bound`."
        )
