"""The moving average of a model's parameters."""

from collections.abc import Mapping
from typing import final

from torch import Tensor, nn

from lipkit.optim._foreach import copy_all, move_all


@final
class Average:
    """theta_avg <- d theta_avg + (1 - d) theta after every step, d = min(decay, (1 + t) / (10 + t)).

    The smaller decay at the start forgets the initial weights sooner. Buffers are copied. Off for decay 0.
    Reference: the warm-up is TensorFlow's; averaging itself is Polyak and Juditsky 1992.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._values = {name: value.detach().clone() for name, value in model.state_dict().items()} if decay else {}

    def update(self, model: nn.Module, step: int) -> None:
        """Take the parameters after `step` steps into the average."""
        if not self._values:
            return
        decay = min(self._decay, (1 + step) / (10 + step))
        # A parameter with two names has two averages, which are the same.
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        now = {name: value.detach() for name, value in model.state_dict().items()}
        moving = [name for name in now if name in parameters]
        still = [name for name in now if name not in parameters]
        move_all([self._values[name] for name in moving], [now[name] for name in moving], 1 - decay)
        copy_all([self._values[name] for name in still], [now[name] for name in still])

    def into(self, model: nn.Module) -> None:
        """Put the average into a model; nothing if it is off."""
        if self._values:
            model.load_state_dict(self._values)

    def state(self) -> dict[str, Tensor]:
        """The averages, for a checkpoint."""
        return self._values

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take the averages of a checkpoint."""
        for name, value in state.items():
            self._values[name].copy_(value)
