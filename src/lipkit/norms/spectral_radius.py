"""The spectral radius from above, by squaring."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64, Inexact
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError
from lipkit.norms._base import positive_int
from lipkit.rounding.float64 import gamma, log_up, norm_up, normalize, product_error


@final
@dataclass(frozen=True, eq=False)
class Eigenpair:
    """An eigenvalue and a unit vector with ||W vector - value vector|| = residual: estimates that the residual checks.

    (value, vector) is an exact eigenpair of a matrix within `residual` of W in norm.
    """

    value: Inexact[Tensor, ""]
    vector: Inexact[Tensor, " n"]
    residual: Float64[Tensor, ""]


@final
@dataclass(frozen=True)
class SpectralRadius:
    """Upper bound of the spectral radius, rho(W) <= ||W^(2^steps)||_F^(2^-steps), by repeated squaring (Gelfand).

    Not a Lipschitz constant in l2 (it is below every induced norm), so it is no `Norm`. The error of each square is
    carried along in absolute terms, since eigenvalues of a matrix that is not normal may move far under small errors.

    Guarantee: UPPER. Cost: `steps` products. Converges like (n^(1/2) kappa)^(2^-steps) for a condition number kappa of
    the eigenvectors.
    """

    steps: int = 10

    def __post_init__(self) -> None:
        positive_int("SpectralRadius.steps", self.steps, least=0)
        if self.steps > 60:
            raise ArgumentError(f"SpectralRadius.steps above 60 changes no digit of float64, got {self.steps}.")

    def __str__(self) -> str:
        return f"spectral radius by squaring, {self.steps} steps"

    def __call__(self, matrix: Inexact[Tensor, "rows cols"], /) -> Bound:
        """The bound for one square matrix; without gradient."""
        scaled, exponent = normalize(_wide(matrix).unsqueeze(0), self)
        x, log_scale = scaled[0], torch.zeros_like(exponent)
        error = torch.zeros_like(exponent)
        relative = product_error(x.shape[0], x.dtype)
        for _ in range(self.steps):
            size = norm_up(x, 2)
            e = torch.frexp(size + error[0]).exponent.to(torch.float64)
            x, error, size = x * torch.exp2(-e), error * torch.exp2(-e), size * torch.exp2(-e)
            # (X + D)^2 = X^2 + X D + D X + D^2, and fl(X^2) is off by its own rounding.
            error = (2 * size * error + error**2 + relative * size**2) * (1 + gamma(8))
            x = x @ x
            log_scale = 2 * (log_scale + e)
        value = (norm_up(x, 2) + error) * (1 + gamma(4))
        log_value = log_up(value, log_scale) / 2**self.steps
        return Bound(log_up(torch.ones_like(exponent), exponent)[0] + log_value[0], Kind.UPPER, self)

    def dominant(self, matrix: Inexact[Tensor, "rows cols"], /) -> Eigenpair:
        """The eigenpair of the largest eigenvalue in size, from the largest column of W^(2^steps); without gradient.

        Every column tends to the first eigenvector if |l_1| > |l_2|, by the factor |l_2 / l_1|^(2^steps); the value is
        the quotient v* W v. Where several eigenvalues have the largest size (a conjugate pair, for example), there is
        no such limit, and the residual is not small.
        Guarantee: ESTIMATE; the residual says how good it is. Cost: `steps` products.
        """
        wide = _wide(matrix)
        x, _ = normalize(wide.unsqueeze(0), self)
        x = x[0]
        for _ in range(self.steps):
            size = torch.linalg.matrix_norm(x)
            x = x / torch.where(size > 0, size, 1.0)
            x = x @ x
        sizes = torch.linalg.vector_norm(x, dim=0)
        column = x[:, sizes.argmax()]
        if not bool(sizes.max() > 0):
            # A nilpotent matrix: the column that vanished last is not known any more, but a null vector is.
            column = torch.linalg.svd(wide).Vh[-1].conj()
        vector = column / torch.linalg.vector_norm(column)
        image = wide @ vector
        value = torch.vdot(vector, image)
        return Eigenpair(value, vector, torch.linalg.vector_norm(image - value * vector))


def _wide(matrix: Inexact[Tensor, "rows cols"]) -> Inexact[Tensor, "rows cols"]:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"The spectral radius needs a square matrix, got shape {tuple(matrix.shape)}.")
    return matrix.detach().to(torch.complex128 if matrix.is_complex() else torch.float64)
