"""The base of nonlinearities: all that methods read of them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import LinearOperator, Reshape, Shape
from lipkit.linops._base import Live
from lipkit.regions import Reach
from lipkit.rounding.float64 import exp_of


@final
@dataclass(frozen=True, eq=False)
class Split:
    """phi(z) = center z + scale psi(z), where psi is 1-Lipschitz in the norm asked for.

    `center` is None for zero; `scale` acts on the output.
    """

    center: LinearOperator | None
    scale: LinearOperator


class Node(Live, ABC):
    """A nonlinearity y = phi(z) from tensors of `shape` to tensors of `target`, for one input (no batch axis).

    A subclass is a frozen dataclass (`eq=False`); see `Live` for what its fields may be. Constants are float64, live
    in the node's tensors, and rounded up.
    """

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Shape of one input."""

    @property
    @abstractmethod
    def target(self) -> Shape:
        """Shape of one output."""

    @property
    def is_identity(self) -> bool:
        """Whether the node changes nothing."""
        return False

    @abstractmethod
    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """phi on a batch of inputs, in their dtype, differentiable."""

    @abstractmethod
    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        """log of an upper bound of Lip(phi) from l_p to l_p on the node's domain; +inf where there is none."""

    @abstractmethod
    def within(self, reach: Reach) -> "Node":
        """The same function, known to receive inputs in `reach` only: its constants may be smaller, never larger."""

    @abstractmethod
    def reach(self, reach: Reach) -> Reach:
        """Where phi(z) can lie for z in `reach`."""

    @property
    def roundings(self) -> float:
        """How exactly float64 evaluates it: n with |fl(phi(z)) - phi(z)|_2 <= n 2^-53 (|phi(z)|_2 + Lip |z|_2).

        By default a sum over all entries and a few elementary functions; nodes that only move entries say 0.
        """
        return 64.0 + 2.0 * math.prod(self.shape)

    def split(self, p: float) -> Split:
        """The function as a linear part and a bounded rest; by default the rest is everything."""
        factor = exp_of(self.log_constant(p), 1.0)
        return Split(None, Reshape(self.target, self.target) * factor)
