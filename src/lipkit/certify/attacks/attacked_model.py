"""The model under attack: run as it is, watched for NaN, and left as it was found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit.certify.attacks.objectives import Objective, margins
from lipkit.errors import NonFiniteError, ShapeError

Classifier = Callable[[Tensor], Tensor]


# Units in the last place of the largest logit that two logits of a forward pass may easily be off by.
_ROUNDINGS = 8


class Seen(NamedTuple):
    """One evaluation of each sample: `Victim.margin` of its label, an objective, and the objective's gradient."""

    margin: Float[Tensor, " n"]
    value: Float[Tensor, " n"]
    gradient: Float[Tensor, "n ..."]


@final
@dataclass(frozen=True, eq=False)
class Victim:
    """A classifier and the true labels of the samples it is attacked on.

    Gradients are taken for the input alone: no parameter's `grad` or `requires_grad` changes, and none is needed.
    """

    model: Classifier

    def margin(self, points: Tensor, labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """z_y - max over j != y of z_j, and 8 units in the last place of the largest logit, without a gradient.

        So it is negative where the label has lost by more than the last digits of a forward pass, which prove nothing:
        a search that stopped there would stop too early.
        """
        with torch.no_grad():
            return _margin_with_slack(self._logits(points, labels), labels)

    def classes(self, points: Tensor, labels: Int[Tensor, " n"]) -> int:
        """The number of classes."""
        with torch.no_grad():
            return self._logits(points, labels).shape[1]

    def look(self, points: Tensor, labels: Int[Tensor, " n"], objective: Objective, round: int = 0) -> Seen:
        """Margin, objective and the objective's gradient in the points; one forward and one backward pass."""
        with torch.enable_grad():
            z = points.detach().clone().requires_grad_()
            logits = self._logits(z, labels)
            value = objective(logits, labels, round)
            (gradient,) = (
                torch.autograd.grad(value.sum(), z, allow_unused=True)
                if value.requires_grad
                else (torch.zeros_like(z),)
            )
        # A model that ignores its input has no path back to it; that is a zero gradient.
        gradient = torch.zeros_like(z) if gradient is None else gradient
        if not bool(torch.isfinite(gradient).all()):
            bad = (~torch.isfinite(gradient)).flatten(1).any(1)
            raise NonFiniteError(
                f"The gradient of the {objective} is NaN or infinite for {int(bad.sum())} of {len(bad)} inputs; "
                "look for a root, a norm or a quotient at 0 in the model."
            )
        return Seen(_margin_with_slack(logits.detach(), labels), value.detach(), gradient.detach())

    def _logits(self, points: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(points)
        if logits.ndim != 2 or len(logits) != len(points) or logits.shape[1] < 2:
            raise ShapeError(
                f"An attack needs logits of shape ({len(points)}, classes) with two classes or more, got "
                f"{tuple(logits.shape)}; wrap a model with a single score in `TwoClasses`."
            )
        if not logits.is_floating_point():
            raise ShapeError(f"An attack needs floating point logits, got {logits.dtype}; it follows their gradient.")
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
            seen = f"{int(labels.min())}..{int(labels.max())}"
            raise ShapeError(f"Labels must lie in 0..{logits.shape[1] - 1}, got {seen}.")
        if not bool(torch.isfinite(logits).all()):
            bad = (~torch.isfinite(logits)).any(1)
            raise NonFiniteError(
                f"The model gives NaN or infinite logits for {int(bad.sum())} of {len(bad)} inputs, so nothing can be "
                "said about them; check its weights and the range of the inputs."
            )
        return logits


def _margin_with_slack(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    return margins(logits, labels) + _ROUNDINGS * torch.finfo(logits.dtype).eps * logits.abs().amax(1)


@contextmanager
def attack_on(model: Classifier) -> Iterator[Victim]:
    """The model in evaluation mode (a sample is then attacked on its own); the mode of every submodule is put back."""
    if isinstance(model, nn.Module):
        with evaluating(model):
            yield Victim(model)
    else:
        yield Victim(model)


@contextmanager
def without_parameters(model: Classifier) -> Iterator[None]:
    """No parameter asks for a gradient: for other packages, which call `backward`. Put back afterwards."""
    asking = [p for p in model.parameters() if p.requires_grad] if isinstance(model, nn.Module) else []
    try:
        for parameter in asking:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


@final
class CallableModule(nn.Module):
    """Any callable as a module for other packages: setting a mode here does not reach the model.

    It has one empty parameter, because they ask the first parameter for the device.
    """

    def __init__(self, model: Classifier, device: torch.device) -> None:
        super().__init__()
        self._held = (model,)
        self.place = nn.Parameter(torch.empty(0, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The model itself."""
        return self._held[0](x)
