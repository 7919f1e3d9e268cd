"""The one result type: a number, and what it promises."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, KindError, MetricError, NonFiniteError, RegionError, ShapeError
from lipkit.regions import L2 as L2
from lipkit.regions import Everywhere, Region
from lipkit.regions import Fingerprint as Fingerprint
from lipkit.regions import Metric as Metric
from lipkit.regions import Scope as Scope
from lipkit.rounding.float64 import exp_of, format_exp, log_of, log_product, log_sum, round_log


class Kind(enum.Enum):
    """The promise that a number makes about the true one; the value is how it is said."""

    EXACT = "exact"
    UPPER = "upper bound"
    LOWER = "lower bound"
    ESTIMATE = "estimate"

    @property
    def certifies(self) -> bool:
        """Whether the true number is never above this one (EXACT is rounded up, so it qualifies)."""
        return self in (Kind.EXACT, Kind.UPPER)

    @property
    def side(self) -> float:
        """Which way such a number is rounded: +1 up, -1 down, 0 to nearest."""
        return 1.0 if self.certifies else -1.0 if self is Kind.LOWER else 0.0

    @property
    def restricted(self) -> "Kind":
        """The kind that a number about all inputs has for some of them: upper bounds survive, nothing else does."""
        return Kind.UPPER if self.certifies else Kind.ESTIMATE


class Witness(NamedTuple):
    """Unit vectors that come near the norm: Re <left, A right> is close to ||A||."""

    left: Tensor
    right: Tensor


class Rule(enum.Enum):
    """How a bound was made from its parts; the value is how it is said."""

    COMPOSE = "product of the parts"
    SUM = "sum of the parts"
    MAX = "largest part"
    BEST = "smallest of several bounds"
    SCALE = "scaled"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Bound:
    """A constant K with ||f(x) - f(y)|| <= K ||x - y||, and the kind of the statement.

    `log_value` is a float64 logarithm that keeps its graph: products of layer norms reach 1e150. Rounding goes the safe
    way everywhere: EXACT and UPPER up, LOWER down, so that EXACT means "equal up to rounding and never below".
    `failure` bounds the probability that the statement is false (randomised methods), over the method's own draws.
    `subject` is what it is of; None for a number that somebody states, or combines from parts.
    `draws` are the random bits that a method drew for all of it, in order; None where nobody kept them.
    `lower` is a lower bound of the same quantity, where one is known. `method` prints as the way it was found; the
    printed number is rounded to nearest, the promise is about `value`. `note` is a sentence that a user should read.
    """

    log_value: Float[Tensor, "..."]
    kind: Kind
    method: object
    metric: Metric = L2
    region: Region = Everywhere()
    of: Scope = Scope.WHOLE
    failure: float = 0.0
    lower: "Bound | None" = None
    witness: Witness | None = None
    state: Tensor | None = None
    parts: tuple["Bound", ...] = ()
    draws: tuple[int, ...] | None = None
    subject: Fingerprint | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.log_value.dtype != torch.float64:
            raise ArgumentError(f"A bound is kept in float64, got {self.log_value.dtype}; convert the logarithm first.")
        if self.log_value.ndim != self.of.axes:
            raise ShapeError(
                f"A value for {self.of} has {self.of.axes} axes, got shape {tuple(self.log_value.shape)}; set `of`."
            )
        if not 0.0 <= self.failure < 1.0:
            raise ArgumentError(f"A failure probability lies in [0, 1), got {self.failure}.")
        if self.lower is not None:
            self._check_lower(self.lower)
        if not bool((self.log_value < math.inf).all()):  # false for NaN too
            raise NonFiniteError(
                f"{self.how} gave {self.log_value.detach().exp().tolist()}, which is no bound; "
                "check the weights for NaN, infinities or overflow."
            )

    def _check_lower(self, lower: "Bound") -> None:
        # An EXACT number is rounded up, so it is no lower bound.
        if lower.kind is not Kind.LOWER:
            raise KindError(f"`lower` must be a lower bound, got: {lower.kind.value}.")
        if (lower.metric, lower.of, lower.region) != (self.metric, self.of, self.region):
            raise ArgumentError(f"`lower` must bound the same quantity, got {lower} for a bound in {self.metric}.")

    @classmethod
    def from_value(
        cls,
        value: Float[Tensor, "..."] | float,
        kind: Kind,
        method: object,
        metric: Metric = L2,
        of: Scope = Scope.WHOLE,
    ) -> Self:
        """A bound from a plain number >= 0, its logarithm rounded the safe way; an EXACT one also knows its `lower`."""
        tensor = _as_float64(value)
        if not bool((tensor >= 0).all()):
            raise ArgumentError(f"A Lipschitz constant is a number >= 0, got {tensor.detach().tolist()}.")
        log = log_of(tensor)
        below = cls(round_log(log, Kind.LOWER.side), Kind.LOWER, method, metric, of=of) if kind is Kind.EXACT else None
        return cls(round_log(log, kind.side), kind, method, metric, of=of, lower=below)

    @property
    def value(self) -> Float[Tensor, "..."]:
        """The constant itself, in float64, differentiable, rounded the safe way.

        Outside [1e-307, 1.79e308] an upper bound stops at 1e-307 or becomes +inf, a lower one 0 or 1.79e308.
        """
        return exp_of(self.log_value, self.kind.side)

    @property
    def confidence(self) -> float:
        """Probability that the statement holds, at least 1 - failure."""
        return 1.0 - self.failure

    def compose(self, inner: "Bound") -> "Bound":
        """The constant of `self after inner`: the product. UPPER from EXACT and UPPER, otherwise ESTIMATE."""
        if self.metric.p_in != inner.metric.p_out:
            raise MetricError(f"Cannot compose {self.metric} after {inner.metric}: the norms in the middle differ.")
        if self.region != Everywhere():
            raise RegionError(
                f"Cannot compose: the outer bound holds only on the {self.region} in its own input; "
                "give one that holds everywhere."
            )
        metric = Metric(inner.metric.p_in, self.metric.p_out)
        return _made(Rule.COMPOSE, self, inner, metric, inner.region)

    def sum(self, other: "Bound") -> "Bound":
        """The constant of f + g: the sum. UPPER from EXACT and UPPER, otherwise ESTIMATE."""
        a, b, region = _same_question(self, other, "add")
        return _made(Rule.SUM, a, b, a.metric, region)

    def max(self, other: "Bound") -> "Bound":
        """The constant of (x, y) -> (f(x), g(y)): the larger one. Needs p_in <= p_out, for which this is exact."""
        if self.metric.p_in > self.metric.p_out:
            raise MetricError(f"The larger part does not bound a block-diagonal map in {self.metric}; use `sum`.")
        a, b, region = _same_question(self, other, "compare")
        if _kind_of_max(a.kind, b.kind) is Kind.LOWER:
            a, b = _from_below(a), _from_below(b)
        lower = a.lower.max(b.lower) if a.lower is not None and b.lower is not None else None
        return replace(_made(Rule.MAX, a, b, a.metric, region), lower=lower)

    def best(self, other: "Bound") -> "Bound":
        """The smaller of two upper bounds of the same constant; refuses what is neither EXACT nor UPPER."""
        for bound in (self, other):
            if not bound.kind.certifies:
                raise KindError(f"Cannot take the smaller bound: {bound} is no upper bound.")
        a, b, region = _same_question(self, other, "compare")
        made = replace(_made(Rule.BEST, a, b, a.metric, region), subject=_common_subject(a.subject, b.subject))
        lower = a.lower if b.lower is None else b.lower
        if a.lower is not None and b.lower is not None:
            lower = _made(Rule.MAX, a.lower, b.lower, a.metric, region)
        if made.of is not Scope.WHOLE:
            return replace(made, lower=lower)
        won = a if bool(a.log_value <= b.log_value) else b
        # A deterministic winner is true whatever the losers drew; a random one was chosen by looking, so failures add.
        failure = made.failure if won.failure else 0.0
        return replace(made, kind=won.kind, failure=failure, lower=lower, witness=won.witness, log_value=won.log_value)

    def scale(self, factor: Float[Tensor, ""] | float) -> "Bound":
        """The constant of factor * f: multiplied by |factor|, of the same kind."""
        log_factor = log_of(_as_float64(factor).to(self.log_value.device).abs())
        if not bool(log_factor < math.inf):
            raise ArgumentError(f"A bound is scaled by a finite number, got {factor}.")
        log_value = log_product(self.log_value, round_log(log_factor, self.kind.side), self.kind.side)
        lower = self.lower.scale(factor) if self.lower is not None else None
        same = (self.metric, self.region, self.of, self.failure)
        return Bound(log_value, self.kind, Rule.SCALE, *same, lower, parts=(self,))

    def __str__(self) -> str:
        number = format_exp(self.log_value.detach().max().item())
        if self.of is not Scope.WHOLE:
            number = f"{self.log_value.numel()} values up to {number}"
        where = [] if self.region == Everywhere() else [f"on the {self.region}"]
        whose = [] if self.of is Scope.WHOLE else [f"for {self.of}"]
        sure = [f"failure <= {self.failure:.0e}"] if self.failure else []
        facts = ", ".join([self.kind.value, str(self.metric), *whose, *where, self.how, *sure])
        return f"{number} ({facts})" + (self.note and f". {self.note}")

    def __repr__(self) -> str:
        return f"<Bound {self}>"

    @property
    def how(self) -> str:
        """How it was found, in words."""
        return self.method.value if isinstance(self.method, Rule) else str(self.method)


def _as_float64(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor) and value.is_complex():
        raise ArgumentError("A Lipschitz constant and its factors are real, got a complex tensor; take its modulus.")
    return torch.as_tensor(value, dtype=torch.float64)


def _kind_of_product(a: Kind, b: Kind) -> Kind:
    """Products and sums only bound the constant of a composition or a sum from above, whatever their factors are."""
    return Kind.UPPER if a.certifies and b.certifies else Kind.ESTIMATE


def _kind_of_max(a: Kind, b: Kind) -> Kind:
    """The norm of a block-diagonal map *is* the larger one, so every side that both parts know survives."""
    kinds = {a, b}
    if kinds == {Kind.EXACT}:
        return Kind.EXACT
    if kinds <= {Kind.EXACT, Kind.UPPER}:
        return Kind.UPPER
    return Kind.LOWER if kinds <= {Kind.EXACT, Kind.LOWER} else Kind.ESTIMATE


_KINDS: dict[Rule, Callable[[Kind, Kind], Kind]] = {
    Rule.COMPOSE: _kind_of_product,
    Rule.SUM: _kind_of_product,
    Rule.MAX: _kind_of_max,
    # Both are EXACT or UPPER, and this is the smaller one, entry by entry.
    Rule.BEST: lambda a, b: Kind.EXACT if a is b is Kind.EXACT else Kind.UPPER,
}

_FOLDS: dict[Rule, Callable[[Tensor, Tensor, float], Tensor]] = {
    Rule.COMPOSE: log_product,
    Rule.SUM: log_sum,
    Rule.MAX: lambda a, b, _: torch.maximum(a, b),
    Rule.BEST: lambda a, b, _: torch.minimum(a, b),
}


def _made(rule: Rule, a: Bound, b: Bound, metric: Metric, region: Region) -> Bound:
    if (a.of, a.log_value.shape) != (b.of, b.log_value.shape):
        raise ShapeError(
            f"Cannot combine a bound for {a.of}, shape {tuple(a.log_value.shape)}, "
            f"with one for {b.of}, shape {tuple(b.log_value.shape)}."
        )
    kind = _KINDS[rule](a.kind, b.kind)
    failure = a.failure + b.failure
    if failure >= 1.0:
        raise ArgumentError(f"The failure probabilities add up to {failure:g}; ask each part for a smaller one.")
    log_value = _FOLDS[rule](a.log_value, b.log_value, kind.side)
    return Bound(log_value, kind, rule, metric, region, a.of, failure, parts=(a, b))


def _common_subject(a: Fingerprint | None, b: Fingerprint | None) -> Fingerprint | None:
    """The common subject of two bounds of one constant; None if one of them does not say it."""
    if a is None or b is None:
        return None
    # Two that were taken of one network at one time are equal without a look at its weights.
    if a != b and (a.source != b.source or a.network != b.network):
        raise ArgumentError("Cannot take the smaller bound: they are of two networks, or of inputs of two shapes.")
    return a


def _from_below(bound: Bound) -> Bound:
    """The lower bound in a statement: an EXACT number is rounded up, so without its `lower` only 0 is safe."""
    if bound.kind is Kind.LOWER:
        return bound
    if bound.lower is not None:
        return bound.lower
    nothing = torch.full_like(bound.log_value, -math.inf)
    return replace(bound, log_value=nothing, kind=Kind.LOWER, witness=None, state=None)


def _same_question(a: Bound, b: Bound, verb: str) -> tuple[Bound, Bound, Region]:
    """Both bounds on one region: the smaller of the two where one is everywhere."""
    if a.metric != b.metric:
        raise MetricError(f"Cannot {verb} a bound in {a.metric} and one in {b.metric}.")
    if a.region == b.region:
        return a, b, a.region
    if a.region == Everywhere():
        return replace(a, kind=a.kind.restricted, lower=None), b, b.region
    if b.region == Everywhere():
        return a, replace(b, kind=b.kind.restricted, lower=None), a.region
    raise RegionError(f"Cannot {verb} bounds on two regions, {a.region} and {b.region}.")
