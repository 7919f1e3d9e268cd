"""Several views of each record, whose gradients are averaged: the record counts once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.record_limits.public_records import public_records

_TRIED = 6


@final
@dataclass(frozen=True, eq=False)
class Views:
    """The gradient of a record is the mean over `count` views of it, each moved onto the ball again:

        g_i = (1 / count) sum_v d loss(f(ball(change_v(x_i))), y_i) / d w,   |g_i| <= the limit of one view.

    So views cost no privacy. Gradients in the outputs are clipped view by view, before the mean. What `change` draws
    must not depend on the records; torch's generators are as good as any, because views need not be secret.

    Guarantee: none if `change` mixes records (mixtures of images, statistics of a batch); such ones are looked for
    before anything is released. Cost: a pass a view. Reference: De et al. 2022; Béthune 2024, section 6.5.

    Args:
        count: How many views each record has in a step.
        change: A batch of records, moved by the center of the inputs, to one view of each, in the same shape.
    """

    count: int
    change: Callable[[Float[Tensor, "batch ..."]], Float[Tensor, "batch ..."]]

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or self.count < 1:
            raise ArgumentError(f"Each record has 1 view or more, got {self.count}.")

    def each(self, x: Float[Tensor, "batch ..."], inputs: Inputs) -> Iterator[Float[Tensor, "batch ..."]]:
        """The views of these records, one view of all at a time, inside the ball."""
        ball = Inputs(inputs.shape, inputs.radius)
        for _ in range(self.count):
            # A view must not fail because of a record.
            yield ball(self.change(x).nan_to_num(0.0, 0.0, 0.0))

    def refuse_mixing(self, inputs: Inputs, like: Tensor) -> None:
        """Refuse a change that gives a record another view beside another record, or another shape."""
        x = public_records(inputs, _TRIED, like)
        other = torch.cat([x[:-1], public_records(inputs, 1, like, seed=1)])
        views: list[Tensor] = []
        with torch.random.fork_rng(devices=[like.device] if like.device.type == "cuda" else []):
            for batch in (x, other):
                torch.manual_seed(0)
                views.append(self.change(batch))
        if views[0].shape != x.shape or views[0].dtype != x.dtype:
            raise ShapeError(
                f"Views have the shape and type of the records, {tuple(x.shape)} and {x.dtype}, got "
                f"{tuple(views[0].shape)} and {views[0].dtype}."
            )
        if not torch.equal(views[0][:-1], views[1][:-1]):
            raise UnsupportedError(
                "The view of a record depends on the other records of the batch, or on numbers that torch's generators "
                "do not draw, so one record moves the gradients of all; change each record by itself."
            )
