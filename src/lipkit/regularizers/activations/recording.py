"""Recording of the inputs and outputs of chosen modules while a model runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn

from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True, eq=False)
class RecordedActivations:
    """First inputs and outputs of the recorded modules, in the order of the calls, with their graphs."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def input(self) -> Tensor:
        """The input of the only call there was."""
        if len(self.inputs) != 1:
            raise ArgumentError(
                f"Expected one call of the recorded module, got {len(self.inputs)}; "
                "run the model once inside the block, or read `inputs`."
            )
        return self.inputs[0]


@contextmanager
def recording(*modules: nn.Module) -> Iterator[RecordedActivations]:
    """Record the inputs and outputs of modules inside a block; the hooks are removed afterwards, also on errors.

        with recording(model.head) as seen:
            logits = model(x)
        loss = cross_entropy(logits, y) + ActivationDecay(0.1)(seen.input)

    Cost: none but the memory, which training keeps anyway. Limits: with `torch.compile`, put the block inside.
    """
    seen = RecordedActivations()

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, Tensor):
            seen.inputs.append(given)
        if isinstance(output, Tensor):
            seen.outputs.append(output)

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
