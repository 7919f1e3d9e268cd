"""Ways back to the manifold: from an orthonormal matrix and a tangent step to the next orthonormal matrix."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

# When the polar factor is near enough for a fixed number of steps, each of which squares the error.
_NEAR = 2.0**-6
# Steps before that: from the smallest singular value that float64 can tell from zero, each times 3/2, it takes 89.
_MOST = 100


class Retraction(ABC):
    """R(W, Z) with R(W, 0) = W and derivative Z at 0, for tall W with orthonormal columns and tangent Z."""

    @abstractmethod
    def __call__(
        self, point: Float[Tensor, "long short"], step: Float[Tensor, "long short"]
    ) -> Float[Tensor, "long short"]:
        """The next point."""


@final
@dataclass(frozen=True)
class QRRetraction(Retraction):
    """The orthonormal factor of W + Z, its triangle with a positive diagonal. Cost: one QR factorisation."""

    def __str__(self) -> str:
        return "QR retraction"

    def __call__(
        self, point: Float[Tensor, "long short"], step: Float[Tensor, "long short"]
    ) -> Float[Tensor, "long short"]:
        q, r = torch.linalg.qr(point + step)
        # sign(0) would erase a column; the diagonal of a nearly orthonormal matrix is far from it.
        return q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0).to(q)


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
        self, point: Float[Tensor, "long short"], step: Float[Tensor, "long short"]
    ) -> Float[Tensor, "long short"]:
        moved = step - point @ (point.mT @ step) / 2
        left = torch.cat([moved, point], -1)
        right = torch.cat([point, -moved], -1)
        core = torch.eye(left.shape[-1], dtype=left.dtype, device=left.device) - right.mT @ left / 2
        return _polar(point + left @ torch.linalg.solve(core, right.mT @ point), 2)


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
        self, point: Float[Tensor, "long short"], step: Float[Tensor, "long short"]
    ) -> Float[Tensor, "long short"]:
        return _polar(point + step, self.steps)


def _polar(moved: Float[Tensor, "long short"], steps: int) -> Float[Tensor, "long short"]:
    """The polar factor: Björck steps until ||I - Y'Y|| is below 2^-6, and `steps` more, each of which squares it."""
    gram = moved.mT @ moved
    square = gram.abs().sum(-1).amax()
    # From a norm of 3^(1/2) on a step leads beyond the other end of the range.
    scale = torch.where(square > 3, square, 1.0)
    moved, gram = moved / scale.sqrt(), gram / scale
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    for _ in range(_MOST):
        # NaN never comes near: the comparison ends the loop.
        if not float(torch.linalg.matrix_norm(identity - gram)) > _NEAR:
            break
        moved = 1.5 * moved - 0.5 * moved @ gram
        gram = moved.mT @ moved
    for _ in range(steps):
        moved = 1.5 * moved - 0.5 * moved @ (moved.mT @ moved)
    return moved
