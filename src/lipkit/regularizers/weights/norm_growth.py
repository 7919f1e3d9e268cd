"""The drift of a layer's norm: how far the loss gradient points along the direction in which the norm grows."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.norms import Norm
from lipkit.regularizers.linear_layers import LinearLayer, check_layers
from lipkit.regularizers.weights.training_norm import TrainingNorm


class SingularDirections(enum.Enum):
    """Whether the penalty is differentiated through the gradient of sigma_1."""

    LIVE = "differentiated, which follows the singular vectors"
    DETACHED = "held fixed, which drops that term"


class PenalizedDrift(enum.Enum):
    """The drifts that are penalised."""

    BOTH = "growth and decay of the norm"
    GROWTH = "growth of the norm"


@final
@dataclass(frozen=True)
class SpectrumAlignment:
    """sum over layers of |<d sigma_1/dW, grad_W L>| = |u_1' (grad_W L) v_1|, the first-order change of norms per rate.

    A gradient step of rate r changes sigma_1 by r times the drift -<d sigma_1/dW, grad_W L>. With `relative` drifts are
    divided by sigma_1 (so of log sigma_1, the mu of the reference), with `PenalizedDrift.GROWTH` only positive ones
    count. The derivative is exact: sign (H_sigma g + H_L d sigma_1) with the Hessians of sigma_1 and L; with
    `SingularDirections.DETACHED` the first term is dropped. `remove_growth_` changes gradients instead, without double
    backward. For parametrized weights W stands for the parameters.

    Guarantee: none proven; a zero penalty means no first-order change of any norm at this step. Cost: norms, a backward
    pass with a graph, and one through it. `norm` needs second derivatives for LIVE, which the default has; at
    sigma_1 = sigma_2 there are none. References: Luo 2025, section 7.3; growth only and detached are ours.

    Args:
        directions: Whether singular vectors are differentiated too.
        counted: Whether decay of a norm counts, or growth alone.
        relative: Whether drifts are divided by the norm.
        norm: Measures the layers.
    """

    directions: SingularDirections = SingularDirections.LIVE
    counted: PenalizedDrift = PenalizedDrift.BOTH
    relative: bool = False
    norm: Norm = field(default_factory=TrainingNorm)

    def __call__(self, loss: Float[Tensor, ""], layers: Sequence[LinearLayer]) -> Float[Tensor, ""]:
        """The penalty for a loss that still has its graph; `(loss + weight * penalty).backward()` is one call later."""
        check_layers(self, layers)
        drifts = self.drifts(loss, layers)
        terms = [drift.abs() if self.counted is PenalizedDrift.BOTH else drift.clamp(min=0) for drift in drifts]
        return torch.stack([term.to(terms[0]) for term in terms]).sum()

    def drifts(self, loss: Float[Tensor, ""], layers: Sequence[LinearLayer]) -> list[Float[Tensor, ""]]:
        """-<d sigma_1/dW, grad_W L> of each layer, over sigma_1 if `relative`: positive where a step makes it grow."""
        bounds = self.norm.many([layer.operator() for layer in layers])
        parameters = list({p: None for layer in layers for p in layer.parameters()})
        gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        by_parameter = dict(zip(parameters, gradients, strict=True))
        live = self.directions is SingularDirections.LIVE
        found: list[Tensor] = []
        for layer, bound in zip(layers, bounds, strict=True):
            own = layer.parameters()
            size = bound.log_value if self.relative else bound.value
            slopes = torch.autograd.grad(size, own, create_graph=live, retain_graph=True, materialize_grads=True)
            products = [(s * by_parameter[p]).sum() for s, p in zip(slopes, own, strict=True)]
            found.append(-torch.stack([one.to(products[0]) for one in products]).sum())
        return found


def remove_growth_(
    layers: Sequence[LinearLayer],
    share: float = 1.0,
    counted: PenalizedDrift = PenalizedDrift.BOTH,
    norm: Norm | None = None,
) -> None:
    """Gradient surgery, after backward() and before step(): g <- g - share <d, g> d / ||d||^2, d = d sigma_1/dW.

    For a matrix d = u_1 v_1' and ||d|| = 1. With share 1 a gradient step leaves sigma_1 of every layer as it is, to
    first order; with `PenalizedDrift.GROWTH` only gradients that would raise it are changed. Optimizers with momentum
    or preconditioning do not step along g, so for them the statement is about g.

    Guarantee: <d, g> = (1 - share) times what it was, up to rounding. Cost: one norm a layer. Ours, after Luo 2025.

    Args:
        layers: From `layers_of`; their parameters have gradients.
        share: Part of the component along d that is removed, in [0, 1].
        counted: Whether gradients that lower a norm are changed too.
        norm: Measures the layers; `TrainingNorm()` if None.
    """
    if not 0 <= share <= 1:
        raise ArgumentError(f"The share of the component to remove must lie in [0, 1], got {share}.")
    with torch.enable_grad():
        bounds = (TrainingNorm() if norm is None else norm).many([layer.operator() for layer in layers])
    for layer, bound in zip(layers, bounds, strict=True):
        own = [p for p in layer.parameters() if p.grad is not None]
        if not own:
            continue
        slopes = torch.autograd.grad(bound.value, own, retain_graph=True, materialize_grads=True)
        pairs = [(p.grad, s) for p, s in zip(own, slopes, strict=True) if p.grad is not None]
        along = sum(float((g * s).sum(dtype=torch.float64)) for g, s in pairs)
        size = sum(float(s.square().sum(dtype=torch.float64)) for _, s in pairs)
        # A gradient that points along d lowers the norm.
        if size > 0 and (counted is PenalizedDrift.BOTH or along < 0):
            for g, s in pairs:
                g.sub_(s, alpha=share * along / size)
