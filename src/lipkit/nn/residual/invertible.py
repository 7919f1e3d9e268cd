"""Residual blocks that can be inverted, and chains of them: normalising flows."""

import math
from abc import abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.combinators.sums import same_shape
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.nn.residual.fixed_point import Preimage, implicit_solution
from lipkit.nn.residual.log_determinant import DenseJacobian, LogDeterminant, LogDeterminantMethod
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_4, MILLIONS_OF_ROUNDINGS, ROUNDINGS_32


class Invertible(Stated):
    """A layer with an inverse: least_gain ||x - y|| <= ||F(x) - F(y)|| <= gain ||x - y|| with least_gain > 0."""

    @property
    @abstractmethod
    def least_gain(self) -> float:
        """A positive lower bound of ||F(x) - F(y)|| / ||x - y||, for inputs of every shape."""

    @abstractmethod
    def inverse(self, y: Float[Tensor, "batch *shape"], tolerance: float | None = None) -> Preimage:
        """The point that is mapped to y, with a bound of its error for each sample; differentiable once."""

    @abstractmethod
    def log_determinant(
        self,
        x: Float[Tensor, "batch *shape"],
        method: LogDeterminantMethod = DenseJacobian(),  # noqa: B008 - immutable
    ) -> LogDeterminant:
        """log |det| of the Jacobian at each sample, and F(x)."""


@final
class InvertibleResidual(Invertible):
    """F(x) = x + s f(x) with the factor s = min(1, contraction / gain f): s f has a constant c < 1.

    (1 - c) ||x - y|| <= ||F(x) - F(y)|| <= (1 + c) ||x - y||, so F is one to one, onto, and its inverse has constant
    1/(1 - c). The branch must treat samples alone, as all layers do in evaluation. Its constant must be known.

    Guarantee: constant 1 + c. `inverse` iterates x <- y - s f(x) until c/(1 - c) times the last step, which bounds the
    error, is small enough (`Preimage` says how rounding counts), and is differentiated implicitly. `log_determinant` is
    exact for small inputs, and estimated for large ones. A condensed block has no constant for all time, so it has none
    of both: invert the block that it was made from. Cost: that of the branch; an inverse takes
    log(error)/log(c) evaluations at most. Reference: Behrmann et al. 2019; Chen et al. 2019.

    Args:
        branch: The module f, whose constant is known; its output has the shape of its input.
        contraction: The largest constant of s f, in (0, 1).
    """

    def __init__(self, branch: nn.Module, contraction: float = 0.9) -> None:
        super().__init__()
        if not 0 < contraction < 1:
            raise ArgumentError(
                f"InvertibleResidual.contraction must lie in (0, 1), got {contraction}: x + g(x) need not be one to "
                "one where g has constant 1 or more; use ScaledResidual or ConvexResidual if no inverse is needed."
            )
        self.branch = branch
        self.most = contraction
        gain = gain_of(branch)
        self.factor = contraction / gain * SAFE if gain > contraction else 1.0

    @property
    def contraction(self) -> float:
        """A bound c of the constant of s f; 1 or more, and no inverse, only if the branch was exchanged or rounded."""
        gain = gain_of(self.branch) * self.factor
        return gain if self.factor == 1 else gain * (1 + FLOAT32_ROUNDINGS_4)

    @property
    def gain(self) -> float:
        """1 + c, rounded up."""
        return (1 + self.contraction) * (1 + ROUNDINGS_32)

    @property
    def least_gain(self) -> float:
        """1 - c, rounded down."""
        return (1 - self._invertible()) * (1 - ROUNDINGS_32)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """x + s f(x)."""
        return x + self._residual(x)

    def inverse(self, y: Float[Tensor, "batch *shape"], tolerance: float | None = None) -> Preimage:
        """The point x with F(x) = y, with the bound c/(1 - c) ||last step|| of its error for each sample.

        Derivatives in y and in the parameters are those of the inverse function, by the same iteration.

        Args:
            tolerance: Largest allowed error of each sample; None: as near as the type allows.
        """
        constant = self._invertible()
        _samples(y)
        wanted = y.requires_grad or any(p.requires_grad for p in self.parameters())
        return implicit_solution(self._residual, y, constant, tolerance, wanted and torch.is_grad_enabled())

    def log_determinant(
        self,
        x: Float[Tensor, "batch *shape"],
        method: LogDeterminantMethod = DenseJacobian(),  # noqa: B008 - immutable
    ) -> LogDeterminant:
        """log det(I + s J) at each sample, with its kind, and F(x); the determinant is positive.

        Args:
            method: `DenseJacobian` for the exact number, `PowerSeries` or `RussianRoulette` for estimates.
        """
        constant = self._invertible()
        _samples(x)
        if torch.is_inference_mode_enabled():
            raise UnsupportedError(
                "A log-determinant takes derivatives, which torch.inference_mode() forbids; use torch.no_grad()."
            )
        inner = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad and inner else x.detach().requires_grad_()
            residual = self._residual(at)

        def pullback(w: Tensor, differentiable: bool) -> Tensor:
            return torch.autograd.grad(residual, at, w, retain_graph=True, create_graph=differentiable)[0]

        value, kind, truncation = method(pullback, at.detach(), constant)
        image = at + residual
        return LogDeterminant(value, kind, truncation, image if inner else image.detach())

    def extra_repr(self) -> str:
        """The largest constant of the branch."""
        return f"contraction={self.most:g}"

    def _residual(self, x: Tensor) -> Tensor:
        image = self.branch(x)
        same_shape((x, image))
        # Under autocast the branch may answer in fewer digits, for which there are no derivatives in those of x.
        return (image if self.factor == 1 else image * self.factor).to(x.dtype)

    def _invertible(self) -> float:
        try:
            constant = self.contraction
        except UnsupportedError as error:
            raise UnsupportedError(
                "The branch of this InvertibleResidual has no constant that is sure to stay below 1: it was condensed "
                "or exchanged; for inverses and densities use the model it was made of, inside lipkit.nn.frozen."
            ) from error
        if not constant < 1:
            raise UnsupportedError(
                f"The branch of this InvertibleResidual has constant {constant:.4g} now, and only one below 1 makes "
                "x + g(x) invertible; build the block anew from its branch, in the type it is used in."
            )
        return constant


@final
class InvertibleSequential(Invertible):
    """The chain of invertible layers, itself invertible: a normalising flow.

    log p(x) = log p_Z(F(x)) + log |det| is the density of x if F(x) has density p_Z.

    Guarantee: constants are products of those of the parts. The error of an inverse counts those of later parts,
    enlarged by the parts before them. log-determinants add up, and are as exact as the least exact part.

    Args:
        blocks: Invertible layers, the first one first.
    """

    def __init__(self, *blocks: Invertible) -> None:
        super().__init__()
        wrong = [block for block in blocks if not isinstance(block, Invertible)]
        if wrong or not blocks:
            given = type(wrong[0]).__name__ if wrong else "none"
            raise ArgumentError(
                f"InvertibleSequential takes one or more invertible layers, got {given}; make one of a branch by "
                "InvertibleResidual(branch)."
            )
        self.blocks = nn.ModuleList(blocks)

    @property
    def gain(self) -> float:
        """The product of the constants, rounded up."""
        return math.prod(block.gain for block in self._parts()) * (1 + ROUNDINGS_32 * len(self.blocks))

    @property
    def least_gain(self) -> float:
        """The product of the least gains, rounded down."""
        return math.prod(block.least_gain for block in self._parts()) * (1 - ROUNDINGS_32 * len(self.blocks))

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """All parts, one after another."""
        for block in self._parts():
            x = block(x)
        return x

    def inverse(self, y: Float[Tensor, "batch *shape"], tolerance: float | None = None) -> Preimage:
        """The inverses of the parts in reverse order; an error e behind a part is one of e / least_gain before it.

        Args:
            tolerance: Largest allowed error of each sample, of the whole chain; None: as near as the type allows.
        """
        _samples(y)
        parts, share = self._parts(), None if tolerance is None else tolerance / len(self.blocks)
        # An error of a part grows by the inverses of all parts before it, so it may be smaller by that much.
        growth = [1.0]
        for block in parts[:-1]:
            growth.append(growth[-1] / block.least_gain)
        error, steps = torch.zeros(len(y), dtype=torch.float64, device=y.device), 0
        for block, factor in zip(reversed(parts), reversed(growth), strict=True):
            found = block.inverse(y, None if share is None else share / factor * (1 - MILLIONS_OF_ROUNDINGS))
            error = (error / block.least_gain + found.error) * (1 + MILLIONS_OF_ROUNDINGS)
            y, steps = found.point, steps + found.steps
        return Preimage(y, error, steps)

    def log_determinant(
        self,
        x: Float[Tensor, "batch *shape"],
        method: LogDeterminantMethod = DenseJacobian(),  # noqa: B008 - immutable
    ) -> LogDeterminant:
        """The sum over the parts, and F(x).

        Args:
            method: `DenseJacobian` for the exact number, `PowerSeries` or `RussianRoulette` for estimates.
        """
        found = [self._parts()[0].log_determinant(x, method)]
        for block in self._parts()[1:]:
            found.append(block.log_determinant(found[-1].image, method))
        kind = Kind.EXACT if all(one.kind is Kind.EXACT for one in found) else Kind.ESTIMATE
        value = torch.stack([one.value for one in found]).sum(0)
        return LogDeterminant(value, kind, math.fsum(one.truncation for one in found), found[-1].image)

    def _parts(self) -> list[Invertible]:
        parts = list(self.blocks)
        if not all(isinstance(part, Invertible) for part in parts):
            raise UnsupportedError(
                "A part of InvertibleSequential was exchanged for one without an inverse; rebuild it."
            )
        return parts  # pyright: ignore[reportReturnType] - checked


def _samples(x: Tensor) -> None:
    if x.ndim < 2 or not len(x) or not x.is_floating_point():
        raise ShapeError(
            f"A batch of floating-point samples is needed, (batch, ...), got shape {tuple(x.shape)} of {x.dtype}; give "
            "one sample as x[None]."
        )
