"""The course of a run for Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from lipkit.errors import ArgumentError


@final
class WandbRun:
    """Writes the numbers of every entry of a journal to a run of a project; `WANDB_MODE=offline` keeps it in `folder`.

    Takes the entries that `Board` takes.
    """

    def __init__(self, folder: Path, project: str) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as missing:
            raise ArgumentError("--wandb needs wandb; pip install 'lipkit[wandb]' brings it.") from missing
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run: Any = wandb.init(project=project, dir=str(folder))
        except wandb.Error as error:
            raise ArgumentError(
                f"--wandb {project} cannot begin a run: {str(error).removesuffix('.')}. "
                "WANDB_MODE=offline in the environment needs no account."
            ) from error

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; what is not there is left out."""
        given = {name: value for name, value in entry.items() if name != "step" and value is not None}
        self._run.log(given, step=entry["step"])

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
