"""Ways back to the manifold: from an orthonormal matrix and a tangent step to the next orthonormal matrix."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.optim._nearest import polar_factor
from lipkit.optim._rotation import rotate


class Retraction(ABC):
    """R(W, Z) with R(W, 0) = W and derivative Z at 0, for tall W with orthonormal columns and tangent Z.

    Matrices may come in batches of equal shape, and may be complex: ' is the conjugate transpose.
    """

    @abstractmethod
    def __call__(
        self, point: Inexact[Tensor, "*batch long short"], step: Inexact[Tensor, "*batch long short"]
    ) -> Inexact[Tensor, "*batch long short"]:
        """The next point."""


@final
@dataclass(frozen=True)
class QRRetraction(Retraction):
    """The orthonormal factor of W + Z, its triangle with a positive diagonal. Cost: one QR factorisation."""

    def __str__(self) -> str:
        return "QR retraction"

    def __call__(
        self, point: Inexact[Tensor, "*batch long short"], step: Inexact[Tensor, "*batch long short"]
    ) -> Inexact[Tensor, "*batch long short"]:
        q, r = torch.linalg.qr(point + step)
        diagonal = torch.diagonal(r, dim1=-2, dim2=-1)
        # The sign of 0 would erase a column; the diagonal of a nearly orthonormal matrix is far from it.
        return q * torch.where(diagonal == 0, 1.0, diagonal.sgn())[..., None, :]


@final
@dataclass(frozen=True)
class CayleyRetraction(Retraction):
    """(I - A/2)^-1 (I + A/2) W with the skew A = P Z W' - W Z' P, P = I - W W'/2: orthonormal at every length.

    A has rank 2p for p columns: U V' with U = [P Z, W], V = [W, -P Z], so a system of size 2p is solved (Woodbury):
        W + U (I - V'U/2)^-1 V'W.
    Rounding would accumulate over steps, and is large after long ones; two Björck steps square it away.
    Cost: products of n p^2 and one solve of size 2p.
    Reference: Wen and Yin 2013.
    """

    def __str__(self) -> str:
        return "Cayley retraction"

    def __call__(
        self, point: Inexact[Tensor, "*batch long short"], step: Inexact[Tensor, "*batch long short"]
    ) -> Inexact[Tensor, "*batch long short"]:
        moved = step - point @ (point.mH @ step) / 2
        left = torch.cat([moved, point], -1)
        right = torch.cat([point, -moved], -1)
        core = torch.eye(left.shape[-1], dtype=left.dtype, device=left.device) - right.mH @ left / 2
        return polar_factor(point + left @ torch.linalg.solve(core, right.mH @ point), 2)


@final
@dataclass(frozen=True)
class ExponentialRetraction(Retraction):
    """exp(A) W with the skew A of the Cayley retraction: the geodesic of the canonical metric, at every length.

    For square matrices it is W exp(W'Z), the geodesic of the orthogonal (or unitary) group. A has rank 2p for p
    columns, so the exponential is one of size min(n, 2p). A Björck step removes the rounding that would accumulate.
    Cost: products of n p^2, a QR factorisation of 2p columns and the exponential.
    Reference: Edelman, Arias and Smith 1998; Lezcano-Casado and Martínez-Rubio 2019 for the group.
    """

    def __str__(self) -> str:
        return "exponential retraction"

    def __call__(
        self, point: Inexact[Tensor, "*batch long short"], step: Inexact[Tensor, "*batch long short"]
    ) -> Inexact[Tensor, "*batch long short"]:
        return polar_factor(rotate(point, step - point @ (point.mH @ step) / 2, point), 1)


@final
@dataclass(frozen=True)
class PolarRetraction(Retraction):
    """The polar factor of W + Z by Björck steps, 3/2 Y - 1/2 Y Y'Y.

    After a tangent step of size h the singular values are in [1, (1 + h^2)^(1/2)]. Those of long steps are divided by a
    bound first, and grow by up to 3/2 a step; when ||I - Y'Y|| is below 2^-6, `steps` more follow: three leave 2^-50.
    Cost: two products a step, no factorisation; short steps take 1 + `steps`. The error does not accumulate.

    Args:
        steps: Björck steps after the matrix is near enough; each squares the error.
    """

    steps: int = 3

    def __str__(self) -> str:
        return f"polar retraction, {self.steps} steps"

    def __call__(
        self, point: Inexact[Tensor, "*batch long short"], step: Inexact[Tensor, "*batch long short"]
    ) -> Inexact[Tensor, "*batch long short"]:
        return polar_factor(point + step, self.steps)
