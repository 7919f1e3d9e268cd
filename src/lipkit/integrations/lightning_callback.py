"""A callback for Lightning: the only file that knows it."""

from collections.abc import Callable
from typing import Any

from torch import nn

from lipkit.errors import ArgumentError
from lipkit.integrations.training_watch import TrainingWatch


def lightning_callback(watch: TrainingWatch, model_of: Callable[[nn.Module], nn.Module] = lambda module: module) -> Any:
    """A callback that logs the numbers of a watch after each epoch of training, to whatever logger the trainer has.

    They are measured once before the first epoch too, so that a model without a constant is refused there. Cost: that
    of the watch, in the process that leads; the others wait for nothing.

    Args:
        watch: What is measured, and on which samples.
        model_of: The classifier in the LightningModule, such as `lambda module: module.net`; by default the module
            itself, called with a batch of inputs.
    """
    try:
        from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as missing:
        raise ArgumentError("This callback needs lightning; pip install 'lipkit[lightning]' brings it.") from missing

    if not callable(model_of):
        raise ArgumentError(
            f"`model_of` is a function that takes the module and gives the classifier in it, such as "
            f"lambda module: module.net, got {model_of!r}."
        )

    class Certify(Callback):  # pyright: ignore[reportUntypedBaseClass]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            # A model that has no constant is refused before the first epoch, not after it.
            if trainer.is_global_zero:
                watch(model_of(pl_module))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                pl_module.log_dict(watch(model_of(pl_module)), rank_zero_only=True)

    return Certify()
