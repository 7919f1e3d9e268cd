"""The temperature of a classifier, fitted to data: a convex problem in one number."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, ShapeError
from lipkit.rounding.slacks import UNIT

_ROUNDS = 200


class Where(enum.Enum):
    """Where the best temperature lies; the value is how it is said."""

    INSIDE = "between 0 and the cap"
    CAP = "at the cap: the loss still falls there"
    ZERO = "at 0: the scores say nothing of the labels"


@final
@dataclass(frozen=True)
class Temperature:
    """The minimiser tau of the mean cross-entropy of tau f, with the interval [low, high] that is proven to hold it.

    Inside, the derivative is negative at `low` and positive at `high` beyond its rounding error. beta = 1/tau is the
    temperature of the softmax.
    """

    tau: float
    low: float
    high: float
    loss: float
    where: Where

    @property
    def beta(self) -> float:
        """1/tau; inf at tau = 0."""
        return 1 / self.tau if self.tau else math.inf


def temperature(
    logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], cap: float = 1e4, *, rtol: float = 1e-9
) -> Temperature:
    """argmin over 0 <= tau <= cap of the mean of log sum_j exp(tau (f_j - f_y)).

    The loss is convex in tau: its second derivative is the mean variance of f under softmax(tau f). So the sign of
    the derivative, mean of E_p[f] - f_y, tells on which side the minimum lies: Newton's method inside an interval whose
    ends have opposite signs, bisection where Newton would leave it. Data that is classified without error has its
    minimum at infinity: the cap is returned, and `where` says so.

    Guarantee: the minimiser lies in [low, high] (Kind EXACT up to `rtol`, wider only where rounding hides the sign);
    loss evaluated in float64. Cost: about ten passes over the logits. Reference: algorithm 4, step 2, in chapter 4 of
    Béthune 2024 and Guo et al. 2017 for the problem; the solver is ours.
    """
    problem = _Problem.of(logits, labels, cap)
    if not 0 < rtol < 1:
        raise ArgumentError(f"rtol lies in (0, 1), got {rtol}.")
    at_zero, at_cap = problem.at(0.0), problem.at(cap)
    if at_zero.slope >= -at_zero.error:
        return Temperature(0.0, 0.0, 0.0 if at_zero.slope > at_zero.error else cap, at_zero.loss, Where.ZERO)
    if at_cap.slope <= at_cap.error:
        return Temperature(cap, problem.falls_at(cap), cap, at_cap.loss, Where.CAP)
    low, high, tau = 0.0, cap, min(1.0, cap / 2)
    for _ in range(_ROUNDS):
        seen = problem.at(tau)
        low, high = (tau, high) if seen.slope < 0 else (low, tau)
        # Halving logarithms: the minimum may lie many orders below the cap.
        middle = math.sqrt(low * high) if low > 0 else high / 16
        step = tau - seen.slope / seen.curvature if seen.curvature > 0 else middle
        step = step if low < step < high else middle
        if abs(step - tau) <= rtol * tau / 8 or high - low <= rtol * high / 8:
            return _proven(problem, step, rtol, cap)
        tau = step
    raise NotProvenError(f"The temperature was not found in {_ROUNDS} steps; it lies in [{low:g}, {high:g}].")


@final
@dataclass(frozen=True)
class SelfCalibration:
    """Fits a model and its temperature in turns: the model on one data set, the temperature on another.

        repeat   f   <- fit(tau)                              (training at temperature tau, from where f is)
                 tau <- argmin of the cross-entropy of tau f on the calibration set
        until    |log tau - log tau_previous| <= rtol, or `rounds` are done.

    Unlike scaling after training, f is refitted. A `fit` of a few gradient steps makes it the joint descent; one that
    trains to the end makes it the alternation. Promises no limit: each half-step minimises another data set's loss.
    Reference: algorithm 4 in chapter 4 of Béthune 2024.
    """

    rounds: int = 20
    rtol: float = 0.02
    cap: float = 1e4

    def __post_init__(self) -> None:
        if self.rounds < 1 or not self.rtol >= 0:
            raise ArgumentError(f"Needs rounds >= 1 and rtol >= 0, got {self.rounds} and {self.rtol}.")

    def __call__(
        self,
        fit: Callable[[float], None],
        outputs: Callable[[], tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]],
        start: float = 1.0,
    ) -> tuple[Temperature, ...]:
        """The temperatures of all rounds, the last one final. `outputs` gives logits and labels of the calibration set.

        A minimum at 0 would end training, so the next fit then uses a tenth of the last temperature.
        """
        if not (math.isfinite(start) and start > 0):
            raise ArgumentError(f"The first temperature is a finite number > 0, got {start}.")
        history: list[Temperature] = []
        tau = start
        for _ in range(self.rounds):
            fit(tau)
            history.append(temperature(*outputs(), self.cap))
            previous, tau = tau, history[-1].tau or tau / 10
            if abs(math.log(tau / previous)) <= self.rtol:
                break
        return tuple(history)


class _Seen(NamedTuple):
    loss: float
    slope: float
    curvature: float
    error: float


@final
@dataclass(frozen=True, eq=False)
class _Problem:
    """Differences f_j - f_y, with which the loss, its slope and its curvature are sums of positive weights."""

    gaps: Float64[Tensor, "n classes"]
    spread: float

    @staticmethod
    def of(logits: Tensor, labels: Tensor, cap: float) -> "_Problem":
        if logits.ndim != 2 or not logits.numel():
            raise ShapeError(f"Needs logits of shape (samples, classes), got {tuple(logits.shape)}.")
        if not bool(torch.isfinite(logits).all()):
            raise NonFiniteError("Some logits are NaN or infinite, so that no temperature fits them; check the model.")
        if not (math.isfinite(cap) and cap > 0):
            raise ArgumentError(f"The cap is a finite number > 0, got {cap}.")
        if labels.shape != logits.shape[:1]:
            raise ShapeError(f"One label for each row of logits is needed, got {tuple(labels.shape)}.")
        if not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
            raise ArgumentError(
                f"Labels must lie in 0..{logits.shape[1] - 1}, got {int(labels.min())}..{int(labels.max())}."
            )
        f = logits.detach().to(torch.float64)
        gaps = f - f.gather(1, labels.long()[:, None])
        return _Problem(gaps, float(gaps.abs().max()))

    def falls_at(self, cap: float) -> float:
        """The cap halved until the slope is negative for certain; 0 at the latest."""
        tau = cap
        while tau > 0 and not (seen := self.at(tau)).slope < -seen.error:
            tau /= 2
        return tau

    def at(self, tau: float) -> _Seen:
        scaled = tau * self.gaps
        p = torch.softmax(scaled, 1)
        mean = (p * self.gaps).sum(1)
        curvature = (p * (self.gaps - mean[:, None]).square()).sum(1).mean()
        # Weights exp(tau gap) are off by the rounding of their exponents, sums by their number of terms.
        n, classes = self.gaps.shape
        error = 2 * UNIT * self.spread * (8 * tau * self.spread + 3 * classes + n + 32)
        return _Seen(float(torch.logsumexp(scaled, 1).mean()), float(mean.mean()), float(curvature), error)


def _proven(problem: _Problem, tau: float, rtol: float, cap: float) -> Temperature:
    """An interval around tau at whose ends the slope has a sign for certain; doubled until it has."""
    width = rtol / 2
    while True:
        low, high = max(0.0, tau * (1 - width)), min(cap, tau * (1 + width))
        left, right = problem.at(low), problem.at(high)
        if left.slope < -left.error and right.slope > right.error:
            return Temperature(tau, low, high, problem.at(tau).loss, Where.INSIDE)
        if low == 0.0 and high == cap:
            raise NotProvenError(f"No sign of the slope is certain around tau = {tau:g}; the scores hardly differ.")
        width *= 2
