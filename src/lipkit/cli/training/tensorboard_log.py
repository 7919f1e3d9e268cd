"""The course of a run for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from lipkit.errors import ArgumentError


@final
class Board:
    """Writes the numbers of every entry of a journal to `folder`; `tensorboard --logdir` shows them while it runs."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            raise ArgumentError(
                "--tensorboard needs tensorboard; pip install 'lipkit[logging]' brings it."
            ) from missing
        self._writer = SummaryWriter(str(folder))

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; what is not there is left out."""
        for name, value in entry.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, entry["step"])
        self._writer.flush()
