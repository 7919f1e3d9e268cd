"""Labels that a loss reads record by record, and for which its constant holds."""

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import Shape
from lipkit.losses import Hinge, TauBCE
from lipkit.privacy.fixed_prior_losses import BinaryKR

# Sums of float32 labels of 2^16 classes are off by less.
_SUM_OF_SHARES = 1e-4
# torch stretches the labels of these over the batch where the shapes differ: n outputs meet n labels each.
_ENTRYWISE = nn.L1Loss | nn.SmoothL1Loss | nn.HuberLoss | nn.MSELoss
# These read the sign of a label, so 7 would count as 1 and -0.5 as 0, without a word.
_SIGNED = BinaryKR | Hinge | TauBCE


def check_labels(y: Tensor, loss: nn.Module, outputs: Shape) -> None:
    """Refuse labels for which a loss has no constant, or compares a record with the labels of others.

    Args:
        y: The labels of all records.
        loss: What they are for.
        outputs: The shape of the outputs of one record.
    """
    if y.is_complex():
        raise ArgumentError(f"Labels are whole or real numbers, got {y.dtype}.")
    if isinstance(loss, _ENTRYWISE) and tuple(y.shape[1:]) != outputs:
        raise ShapeError(
            f"{type(loss).__name__} compares entry by entry, so labels have the shape {('rows', *outputs)} of the "
            f"outputs, got {tuple(y.shape)}; each record would meet the labels of all others; reshape them."
        )
    if isinstance(loss, _SIGNED) and y.dtype != torch.bool and not bool(((y == 0) | (y.abs() == 1)).all()):
        raise ArgumentError(f"Labels of {type(loss).__name__} are 0 or 1, or -1 or 1, and some are neither.")
    if y.is_floating_point():
        _check_real(y, loss)
    # One whole number a record is a class, where there are classes.
    elif y.ndim == 1 and len(outputs) == 1 and outputs[0] > 1:
        _check_classes(y, outputs[0])


def _check_real(y: Tensor, loss: nn.Module) -> None:
    if not bool(torch.isfinite(y).all()):
        raise NonFiniteError("Some label is NaN or infinite; remove such records by a rule for single records.")
    inside = bool(((y >= 0) & (y <= 1)).all())
    if isinstance(loss, nn.BCEWithLogitsLoss) and not inside:
        raise ArgumentError("Binary labels lie in [0, 1], and some do not; the loss has no constant for others.")
    shares = isinstance(loss, nn.CrossEntropyLoss) and y.ndim == 2
    if shares and not (inside and bool(((y.sum(1) - 1).abs() <= _SUM_OF_SHARES).all())):
        raise ArgumentError("Labels of a cross-entropy are class indices or probabilities; some rows are neither.")


def _check_classes(y: Tensor, classes: int) -> None:
    if y.dtype != torch.int64:
        raise ArgumentError(f"Class labels are torch.int64, got {y.dtype}; convert them with .long().")
    if len(y) and not bool(((y >= 0) & (y < classes)).all()):
        raise ArgumentError(
            f"Class labels lie in 0..{classes - 1}, the outputs of the model, got {int(y.min())}..{int(y.max())}."
        )
