"""Gram iteration: an upper bound of the spectral norm at every step."""

import enum
import math
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.norms._base import BlockNorm, Enclosure, positive_int
from lipkit.norms.svd import rayleigh, select_blocks
from lipkit.rounding.float64 import inverse_scale, norm_up, normalize, product_error, sums_up, undo_squarings
from lipkit.rounding.slacks import ROUNDINGS_4


class Readout(enum.Enum):
    """The norm taken of the last iterate, a Hermitian matrix."""

    FROBENIUS = "Frobenius read-out"
    ROW_SUM = "row-sum read-out"


@final
@dataclass(frozen=True)
class Gram(BlockNorm):
    """Upper bound of the spectral norm by repeated Gram products W <- W* W.

    After `steps` products the Frobenius read-out is the Schatten-p norm,
        s = (sum_i sigma_i^p)^(1/p) >= sigma_1,   p = 2^(steps + 1),
    so every step is a bound and the excess is at most rank^(1/p) - 1; with distinct sigma_2 < sigma_1 it falls like
    (sigma_2/sigma_1)^p / p. The row-sum read-out (the 1-norm and the inf-norm of a Hermitian matrix) is linear in
    2^-steps.

    Guarantee: UPPER, float64 with all rounding counted. Cost: `steps` products of the smaller side; the gradient, of
    the returned value, another 2 `steps` and no memory beyond one iterate. Real and complex.
    Slow on near-isometries, where the excess is rank^(1/p) - 1 exactly: use `NearIsometry` or `Cholesky` there.
    Reference: Delattre, Barthelemy, Araujo, Allauzen, ICML 2023.
    """

    steps: int = 8
    readout: Readout = Readout.FROBENIUS

    def __post_init__(self) -> None:
        positive_int("Gram.steps", self.steps, least=0)
        if self.steps == 0 and self.readout is Readout.ROW_SUM:
            raise ArgumentError("Gram with a row-sum read-out needs steps >= 1: a row sum of W itself is no bound.")

    def __str__(self) -> str:
        tail = "" if self.readout is Readout.FROBENIUS else f", {self.readout.value}"
        return f"Gram iteration, {self.steps} steps{tail}"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        scaled, exponent = normalize(blocks, self)
        tall = _tall(scaled)
        log_blocks, iterate = _iterate(tall, self.steps, self.readout)
        log_upper, block = log_blocks.max(1)
        last = select_blocks(iterate, block)
        # Columns of the last iterate lean towards the top right singular vector, the longest one most.
        longest = torch.linalg.vector_norm(last, dim=-2).argmax(-1)
        start = last[torch.arange(len(last), device=last.device), :, longest]
        if self.steps == 0:
            start = torch.linalg.vector_norm(last, dim=-2).to(last.dtype)
        flipped = blocks.shape[-1] > blocks.shape[-2]
        log_lower, left, right = rayleigh(select_blocks(tall, block), start, exponent)
        if flipped:
            left, right = right, left
        return Enclosure(log_upper + _shift(exponent), log_lower, block, left, right)

    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        tall = _tall(matrices)
        if self.readout is Readout.FROBENIUS:
            return _Schatten.apply(tall, enclosure.log_upper, self.steps)  # pyright: ignore[reportReturnType]
        # The row sum has no closed-form gradient worth writing: differentiate the iteration itself.
        scaled, exponent = normalize(tall, self)
        log_value = _iterate(scaled.unsqueeze(1), self.steps, self.readout)[0].squeeze(1) + _shift(exponent)
        return enclosure.log_upper + log_value - log_value.detach()


def _shift(exponent: Tensor) -> Tensor:
    return exponent * math.log(2) * (1 + torch.sign(exponent) * ROUNDINGS_4)


def _tall(blocks: Tensor) -> Tensor:
    return blocks.mH if blocks.shape[-1] > blocks.shape[-2] else blocks


def _iterate(x: Tensor, steps: int, readout: Readout) -> tuple[Tensor, Tensor]:
    """Logarithm of an upper bound of each block's norm, and the last iterate.

    Forward: X_{k+1} = fl(Y* Y) with Y = X_k / 2^e_k, an exact division with ||Y||_F <= 1. So
    sigma(Y)^2 <= sigma(X_{k+1}) + c_k, with c_k >= ||Y* Y - X_{k+1}||; the bound walks back along this chain.
    """
    units: list[Tensor] = []
    errors: list[float] = []
    for _ in range(steps):
        unit = inverse_scale(norm_up(x.detach(), 2))
        units.append(unit)
        errors.append(product_error(x.shape[-2], x.dtype))
        x = x * unit[..., None, None]
        x = x.mH @ x
    size = norm_up(x, 2) if readout is Readout.FROBENIUS else sums_up(x)
    return undo_squarings(size, units, errors), x


class _Schatten(torch.autograd.Function):
    """log s with the gradient of log s: W (W*W)^(2^N - 1) / s^(2^(N+1)), from N squarings of (W/s)* (W/s).

    Saves W and log s only, so memory does not depend on N; differentiable again, because the backward pass is written
    in terms of W and of this function.
    """

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, log_value: Tensor, steps: int) -> Tensor:
        ctx.save_for_backward(matrices, log_value)
        ctx.steps = steps
        return log_value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        matrices, log_value = ctx.saved_tensors
        if torch.is_grad_enabled():
            log_value = _Schatten.apply(matrices, log_value, ctx.steps)
        # Where the matrix is zero any subgradient will do; take zero.
        inverse = torch.where(torch.isfinite(log_value), -log_value, -math.inf).exp()[:, None, None]
        product = matrices * inverse
        power = product.mH @ product
        for step in range(ctx.steps):
            product = product @ power
            if step + 1 < ctx.steps:
                power = power @ power
        return grads[0][:, None, None] * inverse * product, None, None
