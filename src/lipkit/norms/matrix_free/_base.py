"""Operators that can only be applied: a batch of them made ready for iteration, and the lower side a vector proves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError
from lipkit.linops import Compose, LinearOperator, Reshape, depth, magnitude, stack
from lipkit.linops.queries.prepare import prepare
from lipkit.norms.matrix_free.krylov import gaussian
from lipkit.rounding.float64 import gamma, log_down, normalize, product_error


@final
@dataclass(frozen=True, eq=False)
class Iteration:
    """Operators of one signature in float64, seen from their smaller side and divided by 2^exponent, so A* A is near 1.

    An application is off by at most gamma_depth || |A| || ||v||, where
    || |A| || <= absolute + relative ||A||.
    """

    side: LinearOperator
    forward: bool
    depth: int
    absolute: Float[Tensor, " batch"]
    relative: float
    exponent: Float[Tensor, " batch"]
    moderate: bool

    @classmethod
    def of(cls, ops: Sequence[LinearOperator]) -> "Iteration":
        """Joins the operators and finds their scale: powers of two, so exact, and nothing over- or underflows."""
        wide = [one.to(torch.float64).map(Tensor.detach) for one in ops]
        # On CUDA small steps wait for launches, and stacked operators can be recorded; here arithmetic counts.
        alone = len(wide) == 1 and wide[0].device.type == "cpu"
        frozen = _as_batch(prepare(wide[0])) if alone else stack(wide)
        forward = ops[0].in_size <= ops[0].out_size
        side = frozen if forward else frozen.T
        sizes = [magnitude(op) for op in ops]
        absolute = torch.stack([one.absolute for one in sizes]).to(frozen.device)
        relative = max(one.relative for one in sizes)
        if not bool(torch.isfinite(absolute).all()):
            raise NonFiniteError(f"{ops[0]} has NaN, infinite or overflowing weights; repair or rescale them first.")
        exponent = torch.frexp(absolute).exponent if relative == 0 else _probe(side)
        exponent = exponent.to(torch.float64)
        moderate = bool((exponent.abs() <= 64).all())
        exponent = torch.zeros_like(exponent) if moderate else exponent
        return cls(side, forward, max(map(depth, ops)), absolute, relative, exponent, moderate)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of operators, and of unknowns on the smaller side."""
        return self.side.in_shape[0], math.prod(self.side.in_shape[1:])

    def gram(self, v: Inexact[Tensor, "batch n"]) -> Inexact[Tensor, "batch n"]:
        """A* A v / 4^exponent."""
        x = v.reshape(self.side.in_shape)
        if self.moderate:
            return self.side.adjoint(self.side.apply(x)).reshape(v.shape)
        half = torch.floor(self.exponent / 2)
        first, second = (torch.exp2(-e).reshape(-1, *(1,) * (x.ndim - 1)) for e in (half, self.exponent - half))
        y_axes = (-1, *(1,) * (len(self.side.out_shape) - 1))
        y = self.side.apply(x * first) * second.reshape(y_axes)
        return (self.side.adjoint(y * first.reshape(y_axes)) * second).reshape(v.shape)

    def start(self, state: Tensor | None, seed: int, own: bool) -> Inexact[Tensor, "batch n"]:
        """The given state, checked, or random vectors: the same for all operators, or one of its `own` for each.

        The same, so that a value does not depend on the rest of the batch; their own, so that failures do not.
        """
        like = torch.empty(0, dtype=self.side.dtype, device=self.side.device)
        if state is None:
            count, n = self.shape
            return gaussian(seed, (count, n), like) if own else gaussian(seed, (n,), like).repeat(count, 1)
        if state.shape != self.shape:
            raise ArgumentError(
                f"The state of this operator has {self.shape[1]} entries, got {tuple(state.shape[1:])}."
            )
        if state.is_complex() and not like.is_complex():
            raise ArgumentError("The state is complex but the operator is real; give a state of the same operator.")
        length = torch.linalg.vector_norm(state, dim=1)
        if not bool((torch.isfinite(length) & (length > 0)).all()):
            raise ArgumentError("The state must be finite and not zero; leave it out to start afresh.")
        return state.to(like)

    def spread(self, exponent: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """absolute / 2^exponent, in two halves: neither factor leaves the range of float64."""
        half = torch.floor(exponent / 2)
        return self.absolute * torch.exp2(-half) * torch.exp2(half - exponent)

    def lower(self, vector: Inexact[Tensor, "batch n"]) -> tuple[Tensor, Tensor, Tensor]:
        """log ||A v|| rounded down past its worst-case error, and unit vectors with Re <left, A right> = ||A v||."""
        length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        unit = (vector / torch.where(length > 0, length, 1.0)).reshape(self.side.in_shape)
        # Normalised by powers of two, so that squares neither over- nor underflow.
        image, exponent = normalize(self.side.apply(unit), "The operator's image of a vector")
        norm = torch.linalg.vector_norm(image.flatten(1), dim=1)
        other = image / torch.where(norm > 0, norm, 1.0).reshape(-1, *(1,) * (image.ndim - 1))
        error = product_error(self.depth, self.side.dtype)
        slack = gamma(2 * (unit[0].numel() + image[0].numel()) + 8)
        spread = self.spread(exponent)
        lower = (norm * (1 - 2 * slack) - 2 * error * spread) / (1 + 2 * error * self.relative) * (1 - slack)
        left, right = (other, unit) if self.forward else (unit, other)
        return log_down(lower, exponent), left, right


def _as_batch(op: LinearOperator) -> LinearOperator:
    """One operator as a stack of one."""
    into, out = Reshape((1, *op.in_shape), op.in_shape), Reshape(op.out_shape, (1, *op.out_shape))
    return Compose(out, Compose(op, into))


def _probe(side: LinearOperator) -> Tensor:
    """The size of an operator of which nothing is known, as a binary exponent: that of its image of a random vector."""
    like = torch.empty(0, dtype=side.dtype, device=side.device)
    v = gaussian(0, side.in_shape, like)
    # A second look far up, for operators so small that the first image vanishes.
    for lift in (0, 900):
        image = side.apply(v * 2.0**lift).flatten(1)
        largest = image.abs().amax(1)
        if not bool(torch.isfinite(largest).all()):
            raise NonFiniteError("The operator returned NaN or infinity; repair or rescale it first.")
        if bool((largest > 0).all()):
            break
    return torch.frexp(largest).exponent - lift
