"""A callback for the Trainer of HuggingFace: the only file that knows it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.integrations.training_watch import TrainingWatch

if TYPE_CHECKING:
    from transformers import TrainerCallback


def huggingface_callback(
    watch: TrainingWatch,
    model_of: Callable[[nn.Module], nn.Module],
    write: Callable[[Mapping[str, Any]], None] | None = None,
) -> "TrainerCallback":
    """A callback that adds the numbers of a watch to `state.log_history` after each epoch.

    They are measured once before the first epoch too, so that a model without a constant is refused there. Cost: that
    of the watch, in the process that leads.

    Args:
        watch: What is measured, and on which samples.
        model_of: The classifier in the model, which must give a tensor of scores; a model that returns a
            `ModelOutput` is wrapped in a module that takes its logits.
        write: Takes the numbers with their step too, such as a writer for TensorBoard; None for nothing.
    """
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError as missing:
        raise ArgumentError(
            "This callback needs transformers; pip install 'transformers[torch]' brings it, and what Trainer needs."
        ) from missing
    if not callable(model_of):
        raise ArgumentError(
            f"`model_of` is a function that takes the model and gives the classifier in it, such as "
            f"lambda model: model.core, got {model_of!r}."
        )

    class Certify(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            # A model that has no constant is refused before the first epoch, not after it.
            if state.is_world_process_zero and model is not None:
                watch(model_of(model))

        def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.is_world_process_zero and model is not None:
                numbers = {**watch(model_of(model)), "epoch": state.epoch, "step": state.global_step}
                state.log_history.append(numbers)
                if write is not None:
                    write(numbers)

    return Certify()
