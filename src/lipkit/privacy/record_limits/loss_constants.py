"""How large the gradient of a loss in the outputs of one record can be."""

import math
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.losses import (
    HKR,
    KR,
    FenchelYoung,
    Hinge,
    LipschitzMargin,
    LogitAnnealing,
    LseHKR,
    MulticlassHinge,
    MulticlassHKR,
    MulticlassKR,
    OffsetCrossEntropy,
    ReweightedKR,
    SoftHKR,
    TauBCE,
    TauCrossEntropy,
)
from lipkit.privacy.gradient_clipping import Clip
from lipkit.privacy.record_limits.gradient_fold import Cotangent

_SQRT_2 = math.sqrt(2.0)
_CLIP = "clip its gradient in the outputs, clip=privacy.Fixed(0.1) for example"


@runtime_checkable
class HasLogitConstant(Protocol):
    """A loss of single records that states its constant: one record's loss never reads another record."""

    def logit_constant(self, outputs: int) -> float:
        """The largest norm of d loss_i / d output_i for `outputs` numbers; math.inf if only clipping bounds it."""
        ...


def logit_gradient(loss: nn.Module, outputs: int, clip: Clip | None = None) -> Cotangent:
    """What is known of d loss_i / d output_i, where loss_i is the loss of a batch of record i alone, summed up.

    Cross-entropies of torch and of lipkit with any temperature, smoothing and offset; binary ones; hinges, absolute
    values and Huber's; fixed shares of classes (`privacy.FixedPriorHKR`), a cosine with a floor; any loss with a method
    `logit_constant`. With `clip` the smaller of both counts, so losses of single records may have no constant then.

    Guarantee: an upper bound for labels as the loss defines them: class indices, probabilities, signs. A loss that
    reads other records of the batch (class counts, class weights with a mean) is refused, clipped or not.
    """
    if getattr(loss, "reduction", None) not in (None, "none", "mean", "sum"):
        raise UnsupportedError(f"The reduction of {type(loss).__name__} must be 'none', 'mean' or 'sum'.")
    found = stated_gradient(loss, outputs)
    if clip is not None:
        return Cotangent(min(found.norm, clip.limit), found.spread)
    if not math.isfinite(found.norm):
        raise UnsupportedError(f"The gradient of {type(loss).__name__} in the outputs has no bound; {_CLIP}.")
    return found


def _mixed(loss: nn.Module, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(loss).__name__} {why}, so one record moves the gradients of all, clipped or not; use a loss of single "
        "records, such as privacy.FixedPriorHKR or losses.TauCrossEntropy."
    )


def _entries(loss: nn.Module, outputs: int, each: float) -> Cotangent:
    """A mean or a sum over all outputs of functions of one output with slopes of at most `each`."""
    return Cotangent(each * (outputs**-0.5 if loss.reduction == "mean" else outputs**0.5))


def _differences(spread: float) -> Cotangent:
    """spread (p - q) for probabilities p and q, of norm at most sqrt 2."""
    return Cotangent(spread * _SQRT_2, spread)


def stated_gradient(loss: nn.Module, outputs: int) -> Cotangent:
    """What is known or stated of the gradient of a loss, unclipped; its norm may be infinite."""
    found = _of_torch(loss, outputs) or _of_lipkit(loss, outputs)
    if found is not None:
        return found
    if isinstance(loss, HasLogitConstant):
        return Cotangent(float(loss.logit_constant(outputs)))
    raise UnsupportedError(
        f"Nothing is known of the gradient of {type(loss).__name__}: use losses.TauCrossEntropy or "
        "nn.CrossEntropyLoss, or give it a method logit_constant(outputs) if it reads one record at a time."
    )


def _of_torch(loss: nn.Module, outputs: int) -> Cotangent | None:
    match loss:
        case nn.CrossEntropyLoss():
            return _differences(_class_weights(loss))
        case nn.NLLLoss():
            return Cotangent(_class_weights(loss))
        case nn.BCEWithLogitsLoss():
            # The slope is w (sigmoid - y), times the weight of positive labels or 1.
            given = (_largest(weight) for weight in (loss.weight, loss.pos_weight))
            return _entries(loss, outputs, math.prod(max(1.0, weight) for weight in given))
        case nn.L1Loss() | nn.SmoothL1Loss():
            return _entries(loss, outputs, 1.0)
        case nn.HuberLoss():
            return _entries(loss, outputs, float(loss.delta))
        case nn.MultiMarginLoss(p=1):
            # (1/K) sum_{j != y} (margin - z_y + z_j)+ has the gradient sum over active j of (e_j - e_y) / K.
            share, weight = (outputs - 1) / outputs, _largest(loss.weight)
            return Cotangent(weight * math.sqrt(share), weight * share)
        case nn.MSELoss() | nn.MultiMarginLoss():
            return Cotangent(math.inf)
        case _:
            return None


def _of_lipkit(loss: nn.Module, outputs: int) -> Cotangent | None:
    match loss:
        case TauCrossEntropy():
            return _differences(1.0 if loss.divided else loss.tau)
        case TauBCE():
            return _entries(loss, outputs, 1.0 if loss.divided else loss.tau)
        case OffsetCrossEntropy() | FenchelYoung() | LipschitzMargin():
            # Predicted probabilities less those of the label; the constants of a margin are fixed inside a step.
            return _differences(1.0)
        case LogitAnnealing():
            # (1 - p)^b - b p (1 - p)^(b-1) log p is at most 1 + b / e, and multiplies p - e_y.
            return _differences(1.0 + loss.beta / math.e)
        case Hinge(balanced=False):
            return _entries(loss, outputs, 1.0)
        case MulticlassHinge():
            # All hinges active: ((K - 1)^2 + K - 1) / K^2.
            return Cotangent(math.sqrt((outputs - 1) / outputs))
        case LseHKR():
            # Slopes of at most scale (1 + alpha), in z_y and along a vector of probabilities.
            return Cotangent(_SQRT_2 * loss.scale * (1 + loss.alpha))
        case SoftHKR():
            # The derivative of the shares is multiplied by values that nothing bounds.
            return Cotangent(math.inf)
        case KR() | HKR() | MulticlassKR() | MulticlassHKR() | ReweightedKR() | Hinge():
            raise _mixed(loss, "weighs by the class counts of the batch")
        case _:
            return None


def _class_weights(loss: nn.CrossEntropyLoss | nn.NLLLoss) -> float:
    if loss.ignore_index >= 0:
        raise _mixed(loss, f"with ignore_index={loss.ignore_index} divides by the number of records that count")
    if loss.weight is not None and loss.reduction == "mean":
        raise _mixed(loss, "with class weights divides by the weights of the batch")
    return _largest(loss.weight)


def _largest(weight: Tensor | None) -> float:
    return 1.0 if weight is None else float(weight.abs().max())
