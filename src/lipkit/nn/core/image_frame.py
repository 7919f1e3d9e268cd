"""Channels and pixels that are added to images, or left out of them."""

from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Shape
from lipkit.linops.padding import Sides

# (*batch, channels, *spatial).
Images = Shaped[Tensor, "..."]


def resize_groups(x: Images, axes: int, groups: int, channels: int) -> Images:
    """As many channels in each group as asked for: the first ones, and zeros behind them where there are fewer."""
    axis = x.ndim - axes - 1
    present = x.shape[axis] // groups
    if present == channels:
        return x
    found = x.unflatten(axis, (groups, present))
    if present > channels:
        return found.narrow(axis + 1, 0, channels).flatten(axis, axis + 1)
    return functional.pad(found, [0, 0] * axes + [0, channels - present]).flatten(axis, axis + 1)


def resize_images(x: Images, sides: Sides) -> Images:
    """Zeros on both sides of every axis, or pixels left out where a number is negative."""
    for axis, (left, right) in enumerate(sides, start=x.ndim - len(sides)):
        start, end = max(0, -left), max(0, -right)
        if start or end:
            x = x.narrow(axis, start, x.shape[axis] - start - end)
    added = [max(0, n) for pair in reversed(sides) for n in pair]
    return functional.pad(x, added) if any(added) else x


def keep_every(x: Images, steps: Shape) -> Images:
    """Every so manieth pixel of each axis, from the first on."""
    if all(step == 1 for step in steps):
        return x
    return x[(..., *(slice(None, None, step) for step in steps))]


def spread_out(x: Images, steps: Shape) -> Images:
    """The adjoint of `keep_every`: pixels so far apart, zeros between them, and none behind the last."""
    for axis, step in enumerate(steps, start=x.ndim - len(steps)):
        if step > 1:
            length = x.shape[axis]
            apart = functional.pad(x.unsqueeze(axis + 1), [0, 0] * (x.ndim - axis - 1) + [0, step - 1])
            x = apart.flatten(axis, axis + 1).narrow(axis, 0, (length - 1) * step + 1)
    return x


def wrap_ends(x: Images, sides: Sides) -> Images:
    """The adjoint of circular padding: what lies beyond an end of an axis is added at its other end.

    Written without indices, so that a model that is read has operations of which the tracer knows the operator.
    """
    for axis, (left, right) in enumerate(sides, start=x.ndim - len(sides)):
        size, behind = x.shape[axis] - left - right, [0, 0] * (x.ndim - axis - 1)
        found = x.narrow(axis, left, size)
        if left:
            found = found + functional.pad(x.narrow(axis, 0, left), [*behind, size - left, 0])
        if right:
            found = found + functional.pad(x.narrow(axis, left + size, right), [*behind, 0, size - right])
        x = found
    return x
