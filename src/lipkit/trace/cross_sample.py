"""Whether a model treats the samples of a batch independently."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lipkit.errors import CaptureError
from lipkit.linops import Shape


def refuse_mixing(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, shape: Shape
) -> None:
    """Refuse a model whose answer for one sample depends on another one, as with batch statistics.

    The network of one sample would be blind to it. Tested by running the model on two samples, twice, the second one
    replaced: the first answer must not change. `args` hold one sample; the answer is the tensor number `position` of
    the model's results, of this `shape` for one sample. A model that accepts one sample only cannot mix any.
    """
    with torch.no_grad():
        try:
            before, after = (_tensors(_run(model, args, kwargs, change)) for change in (Tensor.clone, _other))
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return
    first, second = (_first(found[position], shape) for found in (before, after))
    size = float(first.nan_to_num().abs().max()) if first.numel() else 0.0
    # The same kernels on the same shapes: nothing but a few roundings on a parallel machine may differ.
    if not torch.allclose(first, second, rtol=0, atol=64 * torch.finfo(first.dtype).eps * size, equal_nan=True):
        raise CaptureError(
            "The output for one sample changes with another sample of the batch (batch statistics, a contrastive "
            "head, a mean over axis 0), so it has no constant of its own; use running statistics, or capture the part "
            "of the model before the samples meet."
        )


def _run(model: nn.Module, args: Any, kwargs: Any, change: Any) -> Any:
    """The model on two samples, the given one and a changed copy; on copies, for a model may work in place."""

    def two(leaf: object) -> object:
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == 1:
            return torch.cat([leaf, change(leaf)])
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    args, kwargs = pytree.tree_map(two, (args, dict(kwargs)))
    return model(*args, **kwargs)


def _other(x: Tensor) -> Tensor:
    """Another sample of the same sort: floats moved, integers in another order, so that they stay in range."""
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
        return x + noise * (1 + x.abs())
    return x.flip(-1) if x.ndim > 1 else x


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _first(pair: Tensor, one: Shape) -> Tensor:
    """The part of a result for two samples that belongs to the first; all of it if it has no axis of samples."""
    if pair.ndim == len(one):
        for axis, (both, single) in enumerate(zip(pair.shape, one, strict=True)):
            if both == 2 * single and both:
                return pair.narrow(axis, 0, single)
    elif pair.ndim and pair.shape[0] == 2:
        # A squeeze took the batch axis of the single sample.
        return pair[0]
    return pair
