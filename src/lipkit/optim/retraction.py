"""Ways back to the manifold: from an orthonormal matrix and a tangent step to the next orthonormal matrix."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor


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
    Cost: products of n p^2 and one solve of size 2p. Rounding accumulates over steps: repair with `lipkit.nn.project`.
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
        return point + left @ torch.linalg.solve(core, right.mT @ point)


@final
@dataclass(frozen=True)
class PolarRetraction(Retraction):
    """`steps` Björck steps on W + Z, towards its polar factor: 3/2 Y - 1/2 Y Y'Y takes an error e to 3/4 e^2.

    Cost: two products a step, no factorisation. After a tangent step of size h the error is h^2 before the first of
    them, so it is of order h^(2^(steps + 1)) in the end; it does not accumulate, the next retraction corrects it.
    """

    steps: int = 3

    def __str__(self) -> str:
        return f"polar retraction, {self.steps} steps"

    def __call__(
        self, point: Float[Tensor, "long short"], step: Float[Tensor, "long short"]
    ) -> Float[Tensor, "long short"]:
        moved = point + step
        # (W + Z)'(W + Z) = I + Z'Z; beyond a norm of 5^(1/2) the iteration diverges, so long steps are shortened first.
        square = (moved.mT @ moved).abs().sum(-1).amax()
        moved = moved / torch.where(square > 4, square, 1.0).sqrt()
        for _ in range(self.steps):
            moved = 1.5 * moved - 0.5 * moved @ (moved.mT @ moved)
        return moved
