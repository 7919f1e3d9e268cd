"""The stochastic model's prediction of the constant after a training, as plain numbers that the laws change."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from lipkit.analysis.dynamics.history import History, LayerHistory
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, UnsupportedError


class NoiseModel(enum.Enum):
    """Which covariance of the gradient a forecast takes. Covariances without variances are none, so no law has them."""

    FULL = "the covariance of all entries"
    DIAGONAL = "the variance of each entry, without covariances"
    SCALAR = "the mean variance in every entry, without covariances"


@final
@dataclass(frozen=True)
class Forecast:
    """The law of K after a training, as the stochastic model of plain SGD predicts it: log K is Gaussian.

        E[log K] = log K(0) + drift + curvature - diffusion / 2,      Var[log K] = diffusion,
        E[K] = K(0) exp(drift + curvature),      Var[K] = E[K]^2 (exp(diffusion) - 1).

    Guarantee: ESTIMATE, a model's prediction and never a bound. It is exact only if the three integrals are the same
    for every order of the samples. In trainings the drift answers to the noise: seeds scatter less than `diffusion`
    says, on small networks up to four times less in variance. So this is no confidence interval either.
    Reference: Luo 2025, theorem 4.6.8.

    Args:
        log_initial: log K before the first step.
        drift: Integral of mu over time, in which one step lasts its rate; weight decay is part of it.
        curvature: Integral of kappa >= 0.
        diffusion: Integral of lambda^2 >= 0.
    """

    log_initial: float
    drift: float
    curvature: float
    diffusion: float

    def __post_init__(self) -> None:
        numbers = (self.log_initial, self.drift, self.curvature, self.diffusion)
        if not all(map(math.isfinite, numbers)) or min(self.curvature, self.diffusion) < 0:
            raise ArgumentError(
                f"A forecast needs finite numbers, with curvature and diffusion at least 0, got {self!r}; "
                "check the training for NaN."
            )

    @property
    def kind(self) -> Kind:
        """Always an estimate: a forecast proves nothing."""
        return Kind.ESTIMATE

    @property
    def mean_log(self) -> float:
        """E[log K]."""
        return self.log_initial + self.drift + self.curvature - self.diffusion / 2

    @property
    def log_mean(self) -> float:
        """log E[K]."""
        return self.log_initial + self.drift + self.curvature

    @property
    def log_variance(self) -> float:
        """log Var[K]; -inf without diffusion."""
        if self.diffusion == 0:
            return -math.inf
        # log(e^d - 1), which neither overflows nor cancels.
        return 2 * self.log_mean + self.diffusion + math.log(-math.expm1(-self.diffusion))


def forecast(history: History, noise: NoiseModel = NoiseModel.FULL) -> Forecast:
    """What the model predicts of a training that a profiler recorded, with the drift of its own batches.

    Noise terms are those of the first step of each interval, held to its end, with the rate of each step. Its
    `mean_log` is the last value of `history.expected`, which gives no variance.

    Guarantee: ESTIMATE. Cost: sums. Reference: Luo 2025, theorem 4.6.8.

    Args:
        history: Of plain SGD, with noise terms, of a chain of layers.
        noise: Which covariance of the gradient; all but the full one need a profiler with `split`.
    """
    require_chain(history)
    kappa, diffusion = _TERMS[noise]
    return Forecast(
        float(history.log_constant[0]),
        sum(float((layer.drift + layer.decay).sum()) for layer in history.layers),
        float(sum_layers(history, kappa).sum()),
        float(sum_layers(history, diffusion).sum()),
    )


def require_chain(history: History) -> None:
    """Refuse a network in which log K is not the sum of log of the norms of its layers: the model is of that sum."""
    for layer in history.layers:
        shares = [] if layer.share is None else layer.share.tolist()
        other = next((share for share in shares if not math.isclose(share, 1.0, rel_tol=1e-9)), None)
        if other is not None:
            raise UnsupportedError(
                f"The model is of chains, where log K is the sum of log norms, and log K grows {other:.3g} times as "
                f"fast as the log norm of layer {layer.name!r}; read `history.layers` of this network instead."
            )


def sum_layers(history: History, term: Callable[[LayerHistory], Tensor | None]) -> Tensor:
    """The sum over all layers of what a noise term added in each interval; refuses a history that has none."""
    if len(history.steps) < 2:
        raise ArgumentError("This history has no step yet; train inside the block of its profiler first.")
    parts = [(term(layer), layer.time) for layer in history.layers]
    known = [part * time for part, time in parts if part is not None]
    if len(known) < len(parts):
        reason = history.refused.get("expected", history.refused.get("split", "Not every step had them."))
        raise UnsupportedError(
            f"This history has no such noise terms, so the model predicts nothing. {reason} Profile a training by "
            "plain SGD, with split=True for parts of them."
        )
    total = known[0]
    for part in known[1:]:
        total = total + part
    return total


_Term = Callable[[LayerHistory], Tensor | None]

_TERMS: dict[NoiseModel, tuple[_Term, _Term]] = {
    NoiseModel.FULL: (lambda layer: layer.kappa, lambda layer: layer.diffusion),
    NoiseModel.DIAGONAL: (lambda layer: layer.kappa_variance, lambda layer: layer.diffusion_variance),
    NoiseModel.SCALAR: (lambda layer: layer.kappa_scalar, lambda layer: layer.diffusion_scalar),
}
