"""Whether a model treats the samples of a batch independently."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from lipkit.errors import CaptureError
from lipkit.linops import Shape
from lipkit.trace.export_failures import name_module

# Batches that a model is tried with; some insist on an even split into groups.
_BATCHES = (2, 4)
# How much of its largest entry an answer may differ in a batch of another size.
_PERCENT = 0.01
Repeat = Callable[[Tensor], bool]


def refuse_mixing(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, shape: Shape
) -> None:
    """Refuse a model whose answer for one sample depends on another one, as with batch statistics.

    The network of one sample would be blind to it. Tested by running the model on several samples, among them the given
    one, first and last, with all others replaced: its answer must not change, and must be the one it has alone. `args`
    hold one sample; the answer is the tensor number `position` of the model's results, of this `shape` for one sample.
    A model that takes several samples but none of the replacements is refused, for nothing is known of it. One that
    raises for every batch of several samples has no answers that could be mixed; see `takes_one_sample_only`.
    """
    # A parametrized weight is the same for all of these runs.
    with torch.no_grad(), parametrize.cached():
        way = _batch(model, args, kwargs)
        if way is None:
            return
        repeat, count, copies = way
        alone = _tensors(_run(model, args, kwargs, repeat, 1, torch.clone))[position]
        changed = list(_changed_batches(model, args, kwargs, repeat, count))
    if not changed:
        raise CaptureError(
            f"The model takes a batch of {count} samples, but none with other entries than the example's, so whether "
            "one sample changes the answer for another cannot be tested; give an example whose entries may be moved, "
            "exchanged or halved, or capture the part of the model behind the check that refuses them."
        )
    hint = _other_axes(model)
    both = (0, count - 1)
    before = {place: _answer(_tensors(copies)[position], shape, count, place) for place in both}
    for place, batch in changed:
        # The same kernels on the same shapes: nothing but a few roundings on a parallel machine may differ.
        digits = 64 * torch.finfo(before[place].dtype).eps
        _same(before[place], _answer(_tensors(batch)[position], shape, count, place), digits, hint)
    if all(answer.shape == alone.shape for answer in before.values()):
        for place in both:
            # Kernels for other shapes round in other ways, and deep networks enlarge that.
            _same(alone, before[place], _PERCENT, hint)


def _other_axes(model: nn.Module) -> str:
    """A hint at modules whose samples lie along axis 1, or that take a sequence without an axis of samples."""
    sequences = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    for path, module in model.named_modules():
        if isinstance(module, sequences):
            name = name_module(path, module)
            # Layers of a transformer keep it in their attention.
            first = getattr(module, "batch_first", getattr(getattr(module, "self_attn", None), "batch_first", False))
            if not first:
                return (
                    f"The module {name} has batch_first=False: it takes axis 0 as time and axis 1 as the samples. Make "
                    "it with batch_first=True, or let the model exchange the axes, x.transpose(0, 1), and give samples "
                    "along axis 0. Otherwise: "
                )
            return (
                f"The module {name} takes an input without batch axis as one sequence: give an example of shape "
                "(1, time, features). Otherwise: "
            )
    return ""


def _same(one: Tensor, other: Tensor, digits: float, hint: str) -> None:
    """Refuse two answers for one sample that differ by more than this share of the largest entry."""
    size = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    if not torch.allclose(one, other, rtol=0, atol=digits * size, equal_nan=True):
        raise CaptureError(
            "The output for one sample changes with another sample of the batch, with their number, or from call to "
            "call, so it has no "
            f"constant of its own. {hint}Batch statistics, a contrastive head, a loss, and a sum, a mean or a running "
            "sum over axis 0 do that: use running statistics, reduce over the other axes only (x.flatten(1).sum(1)), "
            "or capture the part of the model before the samples meet."
        )


def takes_one_sample_only(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the model raises for every batch of several samples that is tried: copies of the one in `args`."""
    with torch.no_grad():
        return _batch(model, args, kwargs) is None


def _batch(model: nn.Module, args: Any, kwargs: Any) -> tuple[Repeat, int, object] | None:
    """How arguments of one sample become a batch that the model takes, how large it is, and the answer for copies."""
    # An axis of 1 in front may be one of samples or not: of all tensors, or of the floating-point ones alone.
    for repeat in (_leading, lambda leaf: _leading(leaf) and leaf.is_floating_point()):
        if not any(map(repeat, _tensors((args, dict(kwargs))))):
            continue
        for count in _BATCHES:
            try:
                return repeat, count, _run(model, args, kwargs, repeat, count, torch.clone)
            except Exception:  # noqa: BLE001 - whatever a model raises, it does not take this batch
                continue
    return None


def _changed_batches(
    model: nn.Module, args: Any, kwargs: Any, repeat: Repeat, count: int
) -> Iterator[tuple[int, object]]:
    """Where the given sample is, first or last, and the answers to it and others; a model may refuse some of them."""
    for change in (_move, _reverse, _halve):
        if not any(repeat(leaf) and not torch.equal(change(leaf), leaf) for leaf in _tensors((args, dict(kwargs)))):
            continue
        for place in (0, count - 1):
            try:
                yield place, _run(model, args, kwargs, repeat, count, change, place)
            except Exception:  # noqa: BLE001 - an entry out of the range that the model checks
                continue


def _leading(leaf: Tensor) -> bool:
    return bool(leaf.ndim) and leaf.shape[0] == 1


def _run(
    model: nn.Module, args: Any, kwargs: Any, repeat: Repeat, count: int, change: Callable[[Tensor], Tensor],
    place: int = 0,
) -> object:  # fmt: skip
    """The model on the given sample at a place among changed copies of it; on copies, for a model may work in place."""

    def several(leaf: object) -> object:
        if isinstance(leaf, Tensor) and repeat(leaf):
            return torch.cat([leaf if i == place else change(leaf) for i in range(count)])
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    args, kwargs = pytree.tree_map(several, (args, dict(kwargs)))
    return model(*args, **kwargs)


def _move(x: Tensor) -> Tensor:
    """Another sample of the same sort: floats moved, integers in another order, so that they stay in range."""
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
        return x + noise * (1 + x.abs())
    return _reverse(x)


def _reverse(x: Tensor) -> Tensor:
    """The same entries in another order: none leaves the range of the others."""
    return x.flatten().flip(0).reshape(x.shape)


def _halve(x: Tensor) -> Tensor:
    """A constant sample has no other order; halves stay between 0 and it, and instead of 0 there is 1/2, or 1."""
    if x.dtype == torch.bool:
        return ~x
    whole = not (x.is_floating_point() or x.is_complex())
    return torch.where(x == 0, 1, x // 2) if whole else torch.where(x == 0, 0.5, x / 2)


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _answer(batch: Tensor, one: Shape, count: int, place: int) -> Tensor:
    """The part of a result for several samples that belongs to one of them; all of it if it has no axis of samples."""
    if batch.ndim == len(one):
        for axis, (every, single) in enumerate(zip(batch.shape, one, strict=True)):
            if every == count * single and every:
                return batch.narrow(axis, place * single, single)
    elif batch.ndim and batch.shape[0] == count:
        # A squeeze took the batch axis of the single sample.
        return batch[place]
    return batch
