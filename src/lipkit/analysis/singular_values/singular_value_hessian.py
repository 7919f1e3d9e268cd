"""The second derivative of a singular value, as an operator: what every form of it answers."""

from abc import abstractmethod

from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import LinearOperator, Shape, rounding_is_bounded


class SingularValueHessian(LinearOperator):
    """X -> D^2 sigma_k(A)[X, .], a symmetric operator on what A is linear in: its entries, or the kernel of a layer.

    For the largest value it is positive semidefinite, because a norm is convex. Computed in float64. As an operator it
    has norms (ESTIMATE): that of a layer in its kernel says how much a step can bend the norm.
    """

    @property
    def out_shape(self) -> Shape:
        return self.in_shape

    @abstractmethod
    def form(self, x: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """D^2 sigma_k(A)[X, X], for any number of leading batch axes; cheaper than <X, apply(X)>."""

    @abstractmethod
    def triplet(self) -> tuple[float, Float64[Tensor, "..."], Float64[Tensor, "..."]]:
        """sigma_k and its left and right singular vectors."""

    @abstractmethod
    def trace(self) -> float:
        """The sum of the eigenvalues."""

    @abstractmethod
    def diagonal(self) -> Float64[Tensor, "..."]:
        """D^2 sigma_k(A)[E, E] for every unit E, in the shape of X."""

    @abstractmethod
    def spectrum(self) -> Float64[Tensor, " count"]:
        """All eigenvalues that are not zero, the largest first."""


@rounding_is_bounded.register(SingularValueHessian)
def _is_not_bounded(_: SingularValueHessian) -> bool:
    # Vectors are computed by decompositions and iterations, whose errors are not counted.
    return False
