"""Finding the channels of an input."""

from torch import Tensor

from lipkit.errors import ShapeError


def channels_of(x: Tensor, axis: int, name: str) -> int:
    """The number of channels; an axis that the input does not have is refused."""
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(
            f"{name}(axis={axis}) got an input of shape {tuple(x.shape)}, which has no such axis; set `axis` to the "
            "axis of the channels."
        )
    return x.shape[axis]


def same_channels(x: Tensor, axis: int, channels: int, name: str) -> None:
    """Refuse an input with another number of channels: torch would repeat a single one, which enlarges its norm."""
    if channels_of(x, axis, name) != channels:
        raise ShapeError(
            f"{name} with {channels} channels got an input of shape {tuple(x.shape)}, with {x.shape[axis]} on axis "
            f"{axis}."
        )


def per_channel(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector with one entry a channel, shaped so that it multiplies `x` along `axis`."""
    return values.reshape(values.shape[0], *(1,) * (x.ndim - 1 - axis % x.ndim))
