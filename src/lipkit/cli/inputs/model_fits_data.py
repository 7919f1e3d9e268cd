"""A check on one input that a model and data belong together, before anything long begins."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.data import Examples
from lipkit.errors import ArgumentError, NonFiniteError

_OTHER_COLUMN = ", or name the column of its labels by --label, without which it is the last one"


def fit_to_model(model: nn.Module, test: Examples, target: str, data: str) -> Examples:
    """The examples with a name for every class that the model tells apart; numbers for those the data do not have.

    Refuses a model that does not take the inputs, that gives no scores or not finite ones for the first of them, and
    labels that it has no score for. `target` and `data` name the two in messages. Cost: one input through the model.
    """
    scores = run_on_first(model, test.inputs, target, data)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 1 or scores.shape[1] < 2:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise ArgumentError(
            f"{target} gives {got} for one input of {data}, expected a tensor of shape (1, classes) with one score for "
            "each of at least two classes; wrap the model in one that does."
        )
    classes, last = scores.shape[1], int(test.labels.max())
    if last >= classes:
        raise ArgumentError(
            f"{data} has labels up to {last}, but {target} gives {classes} scores, for the classes 0..{classes - 1}; "
            f"give the data that the model was made for{_OTHER_COLUMN if data.endswith('.csv') else ''}."
        )
    require_finite(scores, target, data)
    rest = range(len(test.classes), classes)
    return replace(test, classes=(*test.classes[:classes], *map(str, rest)))


def require_finite(scores: Tensor, target: str, data: str) -> None:
    """Refuse a model whose first answer is no number."""
    if not bool(torch.isfinite(scores).all()):
        raise NonFiniteError(
            f"{target} gives {scores[0].tolist()} for the first input of {data}; check the weights for NaN, "
            "infinities or overflow."
        )


def run_on_first(model: nn.Module, inputs: Tensor, target: str, data: str) -> object:
    """The output of the model for the first input; an error of it becomes one sentence."""
    parameter = next(model.parameters(), None)
    first = inputs[:1] if parameter is None else inputs[:1].to(parameter.detach())
    with torch.no_grad(), evaluating(model):
        try:
            return model(first)
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ArgumentError(
                f"{target} does not take one input of {data}, of shape {tuple(first.shape)} with the batch in front "
                f"({type(error).__name__}: {said}); give inputs as the model takes them."
            ) from error
