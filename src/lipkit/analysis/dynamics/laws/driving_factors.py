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
    time; `amplification` is the norm of the second derivative of sigma_1 in the weight: how far it bends noise upwards.
    Where layers are followed as operators it is that in the kernel, not 1 / gap, and None unless
    `AsOperator(amplification=True)` asks for it.
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

    The amplification of matrices with two rows and columns at least is 1 / (sigma_1 - sigma_2); with one, it is
    1 / sigma_1; of a kernel with groups it is that of the block with the largest value. Profiles without noise terms
    are refused: `LayerHistory.amplification` is known without them.

    Guarantee: ESTIMATE, descriptive. Cost: none. Reference: Luo 2025, section 4.8.1; the amplification is ours.
    """
    return tuple(_factors(layer, history) for layer in history.layers)


def _factors(layer: LayerHistory, history: History) -> DrivingFactors:
    if layer.kappa is None or layer.diffusion is None:
        reason = history.refused.get("expected", "Not every step had noise terms.")
        raise UnsupportedError(f"Layer {layer.name!r} has no noise terms. {reason} Profile a training by plain SGD.")
    amplification = None if layer.amplification is None else layer.amplification[:-1]
    return DrivingFactors(layer.name, layer.drift, layer.diffusion.sqrt(), layer.kappa, amplification)
