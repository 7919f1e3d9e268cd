"""The folder of `--out` for a model that is given as it is, and what it belongs to."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final, runtime_checkable

from torch import nn

from lipkit._files import write_whole
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.runs.assessment import hash_sources
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.report.results.about import Prints


@runtime_checkable
class ModelRequest(Protocol):
    """A request about a model from a file."""

    @property
    def model(self) -> str:
        """The model, `path/to/file.py:name`."""
        ...

    @property
    def weights(self) -> Path | None:
        """Its weights; None for those that it is made with."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes the results, as text."""
        ...

    @property
    def command(self) -> str:
        """The command that does it again."""
        ...


@final
@dataclass(frozen=True)
class ClaimedFolder:
    """The folder of `--out`, and hashes of the model and the data whose results it holds."""

    path: Path
    hashes: Prints

    @classmethod
    def claim(cls, request: ModelRequest, path: Path, model: nn.Module, test: Examples, team: Team) -> "ClaimedFolder":
        """Write down what is evaluated, by its contents and not by its paths; refuse a folder of something else.

        Weights that come from no file are stored as model.safetensors, so that there is one to hash and to use again.
        Cost: one pass over weights and data.
        """
        weights = model_to(model) if request.weights is None else request.weights.read_bytes()
        file, _, name = request.model.rpartition(":")
        code = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        hashes = hash_sources(hashlib.sha256(weights).hexdigest(), test, code)
        identity = Identity("", code, {"model": name, **request.options, **describe_hashes(hashes)}, request.command)
        identity.settle(path, writes=team.leads)
        if team.leads and request.weights is None:
            write_whole(path / "model.safetensors", weights)
        return cls(path, hashes)


def describe_hashes(hashes: Prints) -> dict[str, str]:
    """The hashes by which a run knows its weights and samples, as settings of its run.json."""
    named = {"weights": hashes.weights, "test inputs": hashes.inputs, "test labels": hashes.labels}
    return {f"SHA-256 of the {what}": one for what, one in named.items()}
