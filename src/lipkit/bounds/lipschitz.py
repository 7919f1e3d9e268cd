"""The front door: a model in, a number with its guarantee out."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lipkit.bound import Bound, Kind, Of
from lipkit.bounds._base import Method
from lipkit.bounds.auto import Auto
from lipkit.bounds.fold.pairwise import Pairwise, PairwiseLipLT
from lipkit.bounds.lower.sampling import Sampling
from lipkit.errors import ArgumentError, BrokenCertificateError
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.freeze import frozen
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.arithmetic_in_use import without_casts
from lipkit.trace.capture import capture
from lipkit.trace.model_signature import first_samples
from lipkit.trace.nodes import Pointwise
from lipkit.trace.torch_export import evaluating


def captured(
    model: nn.Module | ExportedProgram,
    *args: Any,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
    **kwargs: Any,
) -> Network:
    """`capture`; under `torch.no_grad()` of a model whose computed weights are held, as in `lipkit.nn.frozen`.

    What computes the weights is then not traced at all, which for networks of many constrained layers is nearly all
    there is to trace. Guarantee: the same network, without gradients to the free numbers. Cost: that of `capture` of
    plain layers, and one evaluation of one sample.
    """
    if isinstance(model, ExportedProgram) or torch.is_grad_enabled() or not _computes(model):
        return capture(model, *args, wrt=wrt, output=output, **kwargs)
    with frozen(model):
        one, named = pytree.tree_map(_copied, first_samples(args, kwargs))
        # What is wrong with the model or the example, `capture` says below.
        with contextlib.suppress(Exception), without_casts(), evaluating(model):
            model(*one, **named)
        return capture(model, *args, wrt=wrt, output=output, **kwargs)


def _computes(model: nn.Module) -> bool:
    return any(isinstance(part, Computed) for part in model.modules())


def _copied(leaf: object) -> object:
    """A copy of a tensor: a model may work in place."""
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


Model = nn.Module | ExportedProgram | Network
Example = Tensor | tuple[Any, ...] | Mapping[str, Any] | None


def lipschitz(
    model: Model,
    example: Example = None,
    method: Method = Auto(),
    region: Region = Everywhere(),
    *,
    lower: Method | None = None,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
) -> Bound:
    """The best Lipschitz constant of any model that `method` can prove on `region`, with a lower bound beside it.

        ||f(x) - f(y)|| <= bound.value ||x - y||   for all x, y of the region,

    for one sample, in evaluation mode, in real arithmetic. `example` is a tensor, a tuple of arguments or a mapping of
    them by name, each with a batch axis of which the first sample is used; a `Network` or an exported program needs
    none. `wrt` and `output` are those of `capture`. `bound.lower` comes from `lower`, by default `Sampling`; the true
    constant lies between the two. The bound is differentiable in the model's parameters where its method is.

    Guarantee: the kind of the bound; nothing but EXACT and UPPER certifies. Unknown operations are refused.
    Cost: about the budget of `Auto` (60 s), or what the method says; for the lower bound a thousand points of a
    small model, fewer of a larger one.
    """
    network = network_of(model, example, wrt, output)
    bound = method(network, region)
    if not bound.kind.certifies:
        return bound
    search = Sampling(_points(network), metric=bound.metric) if lower is None else lower
    below = search(network.detach(), region)
    if below.kind is not Kind.LOWER:
        if lower is not None:
            raise ArgumentError(f"`lower` must be a method that gives lower bounds, got {below}.")
        # Float64 could not prove what the search found: nothing is better than something that proves nothing.
        return bound
    if below.of is not bound.of:
        if bound.of is not Of.WHOLE:
            return bound
        # One number for a batch of regions: what is below the constant on one of them is below it.
        below = replace(below, log_value=below.log_value.max(), of=Of.WHOLE, state=None)
    if bound.lower is not None and bool((bound.lower.log_value > below.log_value).all()):
        below = bound.lower
    return with_lower(bound, below)


def with_lower(bound: Bound, below: Bound) -> Bound:
    """The bound with a lower one beside it, if that is proven; two that contradict each other are refused."""
    if below.kind is not Kind.LOWER:
        return bound
    if bound.kind.certifies and bool((below.log_value > bound.log_value).any()):
        raise BrokenCertificateError(
            f"A lower bound of {float(below.value.detach().max()):.6g} disproves the bound {bound}. If a module "
            "declares its constant (`declared_lipschitz`, `gain`), it does not have it; otherwise lipkit is wrong, "
            "please report it with the model."
        )
    return replace(bound, lower=below)


def _points(network: Network) -> int:
    """How many points to sample: each costs up to a backward pass for every output, through all values.

    One for a network without activations, whose Jacobian is the same everywhere.
    """
    if all(isinstance(node, Pointwise) and node.is_identity for node in network.nodes):
        return 1
    values = sum(math.prod(network.shape_of(j)) for j in range(network.sink))
    return max(1, min(1024, 2**32 // (values * min(64, math.prod(network.target)) + 1)))


def pairwise(
    model: Model,
    example: Example = None,
    method: Pairwise = PairwiseLipLT(),
    region: Region = Everywhere(),
    *,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
) -> Bound:
    """Constants of all differences z_a - z_b of a classifier's outputs: symmetric, zero diagonal, differentiable.

    A point x with label y keeps its label within min_b (z_y - z_b)(x) / K_yb. Arguments as in `lipschitz`.
    Guarantee and cost: those of the method.
    """
    found = method(network_of(model, example, wrt, output), region)
    if found.of is not Of.PAIR:
        raise ArgumentError(f"{method} gives one constant, not one for each pair; give a method like PairwiseLipLT().")
    return found


def network_of(model: Model, example: Example, wrt: str | tuple[str, ...] | None, output: str | int | None) -> Network:
    """The network of whatever a user calls a model."""
    if isinstance(model, Network):
        return model
    if isinstance(example, Mapping):
        return captured(model, wrt=wrt, output=output, **example)
    args = () if example is None else (example,) if isinstance(example, Tensor) else tuple(example)
    return captured(model, *args, wrt=wrt, output=output)
