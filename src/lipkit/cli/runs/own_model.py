"""A model and data that somebody brings: what they are, and the folder for what is found of them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import nn

from lipkit._files import write_whole
from lipkit.cli.commands.request import Wanted
from lipkit.cli.inputs.datasets import short_name
from lipkit.cli.inputs.device import told
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.runs.assessment import now, prints
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.report.results.contents import About, Prints


@final
@dataclass(frozen=True)
class Given:
    """The folder of `--out`, and hashes of what its results are about."""

    folder: Path
    prints: Prints

    @classmethod
    def settled(cls, wanted: Wanted, folder: Path, model: nn.Module, test: Examples, team: Team) -> "Given":
        """Write down what is evaluated, by its contents and not by its paths; refuse a folder of something else.

        Weights that come from no file are kept as model.safetensors, so that there is one to hash and to use again.
        Cost: one pass over weights and data.
        """
        made = model_to(model) if wanted.weights is None else wanted.weights.read_bytes()
        code = Path(wanted.model.rpartition(":")[0]).read_bytes()
        found = prints(hashlib.sha256(made).hexdigest(), test, hashlib.sha256(code).hexdigest())
        name = wanted.model.rpartition(":")[2]
        shas = {"weights": found.weights, "test inputs": found.inputs, "test labels": found.labels}
        hashes = {f"SHA-256 of the {what}": one for what, one in shas.items()}
        identity = Identity("", found.code, {"model": name, **wanted.options, **hashes}, wanted.command)
        identity.settle(folder, writes=team.leads)
        if team.leads and wanted.weights is None:
            write_whole(folder / "model.safetensors", made)
        return cls(folder, found)

    @property
    def bound(self) -> Path:
        """Where the constant is kept."""
        return self.folder / "bound.safetensors"

    @property
    def records(self) -> Path:
        """Where the results of single samples are."""
        return self.folder / "evaluation"

    def about(self, wanted: Wanted, team: Team) -> About:
        """What the page says of itself."""
        weights = "as the model's file makes them" if wanted.weights is None else str(wanted.weights)
        return About.here(
            command=wanted.command, date=now(), seconds=None, seed=wanted.seed, device=told(team.device),
            data=short_name(wanted.data), model=wanted.model, fields={"weights": weights, **wanted.options},
            prints=self.prints,
        )  # fmt: skip
