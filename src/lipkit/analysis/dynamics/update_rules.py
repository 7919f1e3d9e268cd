"""Reads from an optimizer what it holds and how it steps: its weight decay, and whether it is plain SGD."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.analysis.dynamics.followed_layers import join_names
from lipkit.analysis.dynamics.tracked_layers import TrackedLayer

# These shrink weights by rate * decay before their step, and have no setting that says so.
_DECOUPLED = ("Adafactor", "Muon")


@final
class DecayShares:
    """The part -f W of each step that is weight decay, as the factor f of each group of parameters.

    Decoupled decay: f = rate * decay. SGD: f = rate * b, b <- momentum b + (1 - dampening) decay, which takes the
    weights of the last 1 / (1 - momentum) steps for equal; what they differ by is booked as drift. Other optimizers
    scale decay and gradient together: f = 0, and `refusal` says so.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._momenta: dict[int, float] = {}
        self.refusal: str | None = None

    def advance(self) -> list[float]:
        """The factor of each group for the step that is about to be made."""
        return [self._factor(i, group) for i, group in enumerate(self.optimizer.param_groups)]

    def state(self) -> dict[str, Tensor]:
        """What momentum carries of the decay: the position of each group that has any, and the factor."""
        return {
            "groups": torch.tensor(list(self._momenta), dtype=torch.int64),
            "carried": torch.tensor(list(self._momenta.values()), dtype=torch.float64),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Carry on from what `state` gave."""
        self._momenta = dict(zip(state["groups"].tolist(), state["carried"].tolist(), strict=True))

    def why_not_of(self, layers: Sequence[TrackedLayer]) -> str | None:
        """None, or why decay of one of these layers is not told from drift: its weight is no parameter."""
        decaying = {id(p) for g in self.optimizer.param_groups if float(g.get("weight_decay", 0)) for p in g["params"]}
        for layer in layers:
            if layer.parameter() is None and any(id(p) in decaying for p in layer.module.parameters()):
                return (
                    f"The weight of {layer.name!r} is computed from other parameters, whose decay is booked as drift."
                )
        return None

    def _shrinks_first(self) -> bool:
        # By name, because not every version of torch has all of them.
        kind = type(self.optimizer)
        return kind.__name__ in _DECOUPLED and kind.__module__.split(".")[:2] == ["torch", "optim"]

    def _factor(self, index: int, group: dict[str, Any]) -> float:
        decay, rate = float(group.get("weight_decay", 0)), float(group.get("lr", 0))
        if not decay:
            return 0.0
        if group.get("decoupled_weight_decay", False) or self._shrinks_first():
            return rate * decay
        if type(self.optimizer) is not torch.optim.SGD:
            self.refusal = (
                f"{type(self.optimizer).__name__} scales weight decay together with the gradient, so both are booked "
                "as drift; use decoupled decay to tell them apart."
            )
            return 0.0
        momentum = float(group["momentum"])
        if not momentum:
            return rate * decay
        before = self._momenta.get(index)
        carried = decay if before is None else momentum * before + (1 - float(group["dampening"])) * decay
        self._momenta[index] = carried
        return rate * (decay + momentum * carried if group["nesterov"] else carried)


def group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter | None) -> int | None:
    """The position of the group that holds a parameter."""
    for index, group in enumerate(optimizer.param_groups):
        if any(parameter is one for one in group["params"]):
            return index
    return None


def why_not_plain_sgd(optimizer: torch.optim.Optimizer, layers: Sequence[TrackedLayer]) -> str | None:
    """None for SGD without momentum of the weights themselves, else a sentence: the model of noise is of that only."""
    if type(optimizer) is not torch.optim.SGD:
        return f"The model of noise is that of plain SGD, and the optimizer is {type(optimizer).__name__}."
    momenta = {float(group["momentum"]) for group in optimizer.param_groups} - {0.0}
    if momenta:
        return f"The model of noise is that of plain SGD, and the optimizer has momentum {max(momenta):g}."
    computed = [layer.name for layer in layers if layer.parameter() is None]
    if computed:
        return f"The weight of {computed[0]!r} is computed from other parameters, so its steps are not plain SGD."
    return None


def why_moved_elsewhere(
    optimizer: torch.optim.Optimizer, layers: Sequence[TrackedLayer], moved: Callable[[], Sequence[bool]]
) -> str | None:
    """None, or a sentence about layers that moved although the optimizer has none of their weights.

    Args:
        optimizer: The one whose steps are followed.
        layers: All layers.
        moved: Says whether each layer moved; asked only if the optimizer does not hold all.
    """
    strange = [not _is_held(optimizer, layer) for layer in layers]
    if not any(strange):
        return None
    both = zip(layers, strange, moved(), strict=True)
    names = [repr(layer.name) for layer, foreign, changed in both if foreign and changed]
    if not names:
        return None
    return (
        f"{type(optimizer).__name__} does not hold the weights of {join_names(names)}, and something else moved them, "
        "as a second optimizer does: their changes are booked as rest. Give all weights to one optimizer, in groups "
        "with settings of their own."
    )


def _is_held(optimizer: torch.optim.Optimizer, layer: TrackedLayer) -> bool:
    """Whether the optimizer has the weight of a layer, or a parameter that it is computed from."""
    parameter = layer.parameter()
    sources = {id(p) for p in (layer.module.parameters() if parameter is None else (parameter,))}
    return any(id(p) in sources for group in optimizer.param_groups for p in group["params"])
