"""The network of a model, with weights that are computed once where no gradient is asked for."""

import contextlib
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lipkit.nn.computed import Computed
from lipkit.nn.freeze import frozen
from lipkit.trace.canonical import evaluating
from lipkit.trace.capture import capture
from lipkit.trace.casts import without_casts
from lipkit.trace.network import Network
from lipkit.trace.signature import first_samples


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
