"""Records and labels, looked at once, before anything is released: no step may fail because of a record."""

from typing import final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from lipkit.errors import ArgumentError, LipkitError, ShapeError
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.private_steps.accepted_labels import check_labels


@final
class Records:
    """All records as the model sees them, moved onto the ball, with labels that the loss accepts.

    Args:
        x: Records, in the type of the model.
        y: Their labels.
        inputs: What is applied to the records.
        loss: What the labels are for.
        outputs: The outputs of the model for two records; only their shape and type count.
        chunk: How many records are looked at in one piece.
    """

    def __init__(
        self,
        x: Shaped[Tensor, "..."],
        y: Shaped[Tensor, "..."],
        inputs: Inputs,
        loss: nn.Module,
        outputs: Tensor,
        chunk: int,
    ) -> None:
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise ShapeError(
                f"Records and labels are tensors of one length, got {tuple(x.shape)} and {tuple(y.shape)}."
            )
        if x.dtype != outputs.dtype:
            raise ArgumentError(f"Records are of the model's type {outputs.dtype}, got {x.dtype}; convert them.")
        # A copy, which no change of the caller's records reaches; filled piece by piece, so there is never another one.
        inputs(x[:0].detach())
        self.x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for at in range(0, len(x), chunk):
            self.x[at : at + chunk] = inputs(x[at : at + chunk].detach())
        self.y = y.detach().clone()
        check_labels(self.y, loss, tuple(outputs.shape[1:]))
        for part in self.y.split(chunk):
            _try_loss(loss, part.to(outputs.device), outputs)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, chosen: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some records with their labels, on a device."""
        # Whole rows are copied; indexing with a tensor goes entry by entry, which takes three times as long.
        x, y = (rows.index_select(0, chosen.to(rows.device)) for rows in (self.x, self.y))
        return x.to(device), y.to(device)


def two_tensors(records: object) -> tuple[Tensor, Tensor]:
    """Records and labels; loaders, data sets and iterators are refused before anything is asked of them."""
    match records:
        case (Tensor() as x, Tensor() as y):
            return x, y
        case _:
            raise ArgumentError(
                f"Records are a pair of tensors (inputs, labels), got {type(records).__name__}; batches are drawn by "
                "the plan, because those of a loader have another law than the one that is billed."
            )


def summed(loss: nn.Module, outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum over records of the loss of each record alone."""
    value = loss(outputs, labels)
    if getattr(loss, "reduction", "none") == "mean":
        return value * len(outputs)
    return value.sum()


def _try_loss(loss: nn.Module, labels: Tensor, outputs: Tensor) -> None:
    zeros = torch.zeros(len(labels), *outputs.shape[1:], dtype=outputs.dtype, device=outputs.device)
    if not len(labels):
        return
    try:
        # A loss may take labels of a type forward that its derivative does not.
        with torch.enable_grad():
            value = loss(zeros.requires_grad_(), labels)
            value.sum().backward()
    except LipkitError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ArgumentError(
            f"{type(loss).__name__} does not accept the labels, {labels.dtype} of shape {tuple(labels.shape)}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not hasattr(loss, "reduction") and tuple(value.shape) != (len(labels),):
        raise ShapeError(
            f"{type(loss).__name__} names no reduction, so it gives one number for each record, got the shape "
            f"{tuple(value.shape)}; give it an attribute reduction."
        )
