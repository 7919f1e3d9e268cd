"""A penalty on the constant of a whole network, as a method proves it."""

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.bounds import Method, Product
from lipkit.bounds.lipschitz import Example, network_of
from lipkit.errors import NonFiniteError
from lipkit.regions import Everywhere, Region
from lipkit.regularizers.weights.training_norm import TrainingNorm


@final
@dataclass(frozen=True)
class BoundPenalty:
    """log of a bound of the network's Lipschitz constant: log K, differentiable in the parameters of any model.

    The logarithm, because products of norms span hundreds of orders of magnitude and their raw gradient is unstable.
    Every operation counts: shortcuts, normalisation in evaluation mode, pooling, attention (on a bounded `region`).

    Guarantee: the kind of the method's bound, at the current weights (`bound` gives it). Cost: one capture (an export
    of the model) at every call, since weights that are computed are read there, then the method. One core, value and
    gradient: 0.17 s for a 784-256-256-10 MLP, 0.37 s for six convolutions and two matrices on 32 x 32 (capture 0.08 and
    0.15 s of it; `LogNormSum`, which needs none, 0.08 and 0.23 s). Limits: a network whose constant is proven to be 0
    has no logarithm and is refused. Reference: Araujo et al. 2021 for the logarithm.

    Args:
        method: Bounds the constant of the network.
        region: Set of inputs on which the bound holds.
    """

    method: Method = field(default_factory=lambda: Product(TrainingNorm()))
    region: Region = Everywhere()

    def __call__(self, model: nn.Module, example: Example) -> Float64[Tensor, ""]:
        """log K at the current weights; for a bound per sample or class, the largest."""
        log_value = self.bound(model, example).log_value.max()
        if not bool(log_value > -math.inf):
            raise NonFiniteError("The network's constant is 0, whose logarithm is no number; check for zero weights.")
        return log_value

    def bound(self, model: nn.Module, example: Example) -> Bound:
        """The bound itself, with its kind. Cost: one capture and the method."""
        with torch.enable_grad():
            return self.method(network_of(model, example), self.region)
