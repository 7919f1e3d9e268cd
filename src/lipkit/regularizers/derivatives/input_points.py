"""Inputs that derivatives are taken at, and derivatives of each sample with respect to its own input."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


def points_between(
    real: Float[Tensor, "batch ..."], fake: Float[Tensor, "..."], generator: torch.Generator | None = None
) -> Float[Tensor, "batch ..."]:
    """Random points between pairs: e real + (1 - e) fake with e ~ U[0, 1] for each pair, without a graph.

    Where a critic separates two distributions, its slope matters between them, not only at the samples.
    Cost: one pass. Reference: Gulrajani et al. 2017.

    Args:
        real: One end of each segment.
        fake: The other end, of the same shape.
        generator: Source of the shares; torch's global one if None.
    """
    if real.shape != fake.shape:
        raise ShapeError(
            f"Segments join pairs, got {tuple(real.shape)} and {tuple(fake.shape)}; give as many real as fake points."
        )
    device = real.device if generator is None else generator.device
    share = torch.rand((real.shape[0], *(1,) * (real.ndim - 1)), generator=generator, device=device)
    return torch.lerp(fake.detach(), real.detach(), share.to(real))


def track_input(x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
    """The input with a graph: itself if it has one, otherwise a new leaf."""
    if not x.is_floating_point():
        raise ArgumentError(f"Derivatives need a floating-point input, got {x.dtype}; give embeddings for token ids.")
    return x if x.requires_grad else x.detach().requires_grad_()


def evaluate_flat(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """model(x) for a tracked x, flattened to (batch, outputs)."""
    y = model(x)
    if y.ndim == 0 or y.shape[0] != x.shape[0]:
        raise ShapeError(
            f"Expected one output for each of {x.shape[0]} samples, got shape {tuple(y.shape)}; keep the batch axis."
        )
    if not y.requires_grad:
        raise ArgumentError("The output does not depend on the input differentiably; check for detach or no_grad.")
    return y.reshape(y.shape[0], -1)


def pull_back(y: Tensor, x: Tensor, v: Tensor, graph: bool) -> Tensor:
    """J'v for each sample, as (batch, inputs), in float32 at least; samples must not influence each other."""
    (found,) = torch.autograd.grad(y, x, v, create_graph=graph, retain_graph=True, materialize_grads=True)
    return found.reshape(found.shape[0], -1).to(torch.promote_types(found.dtype, torch.float32))


def safe_root(squares: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The square root with derivative 0 at 0, of every order."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
