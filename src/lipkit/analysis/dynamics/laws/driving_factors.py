"""The four factors that drive the norm of each layer, read off a profile."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float64
from torch import Tensor

from lipkit.analysis.dynamics.history import History, LayerHistory
from lipkit.bound import Kind
from lipkit.errors import UnsupportedError


@final
@dataclass(frozen=True, eq=False)
class DrivingFactors:
    """One layer: what moves log sigma_1, at the start of each interval of a history. A diagnostic (ESTIMATE).

    `alignment` is the drift of a whole interval; `directional_noise` is |lambda| and `curvature` is kappa, per unit of
    time; `amplification` is 1 / gap, the norm of the second derivative of sigma_1: how far it bends noise upwards (of a
    1 x 1 matrix, which does not bend, and of a kernel with groups, whose blocks do not mix, it may be above the norm).
    It is None where layers are followed as operators: the gap of an operator says nothing about its kernel, and
    `singular_value_hessian` does.
    """

    name: str
    alignment: Float64[Tensor, " changes"]
    directional_noise: Float64[Tensor, " changes"]
    curvature: Float64[Tensor, " changes"]
    amplification: Float64[Tensor, " changes"] | None

    @property
    def kind(self) -> Kind:
        """Always an estimate: a diagnostic proves nothing."""
        return Kind.ESTIMATE


def driving_factors(history: History) -> tuple[DrivingFactors, ...]:
    """Alignment, directional noise, curvature and amplification of every layer of a profiled training.

    The amplification 1 / (sigma_1 - sigma_2) is that of matrices with two rows and columns at least; with one, it is
    1 / sigma_1. A convolution that is read as a matrix has one too. Profiles without noise terms are refused.

    Guarantee: ESTIMATE, descriptive. Cost: none. Reference: Luo 2025, section 4.8.1; the amplification is ours.
    """
    return tuple(_factors(layer, history) for layer in history.layers)


def _factors(layer: LayerHistory, history: History) -> DrivingFactors:
    if layer.kappa is None or layer.diffusion is None:
        reason = history.refused.get("expected", "Not every step had noise terms.")
        raise UnsupportedError(f"Layer {layer.name!r} has no noise terms. {reason} Profile a training by plain SGD.")
    amplification = None if layer.gap is None else 1 / layer.gap[:-1]
    return DrivingFactors(layer.name, layer.drift, layer.diffusion.sqrt(), layer.kappa, amplification)
