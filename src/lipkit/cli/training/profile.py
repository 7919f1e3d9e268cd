"""The profile of a training: a profiler around the loop, stored in checkpoints and in a file beside the journal."""

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from lipkit._files import write_whole
from lipkit.analysis import AsMatrix, AsOperator, History, Profiler
from lipkit.analysis.dynamics.followed_layers import find_layers
from lipkit.analysis.dynamics.grouped_kernels import blocks_of
from lipkit.analysis.dynamics.stored_history import CAUSES, StoredHistory, StoredSpectra
from lipkit.analysis.dynamics.tracked_layers import Reading, TrackedLayer
from lipkit.cli.inputs.option_words import parse_wrt
from lipkit.cli.training.recipe import Recipe
from lipkit.errors import ArgumentError, LipkitError

# The file of a profile in the folder of a run.
PROFILE = "profile.json"
# Singular values are recorded of matrices whose smaller side is at most this, and so many at even ranks.
_SIDE, _VALUES = 512, 32


# How a convolution is read: the words of --profile-convolutions.
_MATRIX, _OPERATOR = "matrix", "operator"


@final
@dataclass(frozen=True)
class ProfileSettings:
    """What `--profile` and the options beside it ask for: the arguments of `Profiler`, as words."""

    every: int
    convolutions: str = _MATRIX
    split: bool = False
    probes: int = 1
    wrt: tuple[str, ...] = ()
    amplification: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ArgumentError(f"--profile is a number of steps of at least 1, got {self.every}.")
        if self.convolutions not in (_MATRIX, _OPERATOR):
            raise ArgumentError(f"--profile-convolutions is {_MATRIX} or {_OPERATOR}, got {self.convolutions!r}.")
        if self.amplification and self.convolutions == _MATRIX:
            raise ArgumentError(
                "--profile-amplification is for layers that are followed as operators, and a matrix has its "
                f"amplification anyway; leave it out, or give --profile-convolutions {_OPERATOR}."
            )

    @property
    def reading(self) -> Reading:
        """How a convolution is read."""
        return AsMatrix() if self.convolutions == _MATRIX else AsOperator(self.amplification)

    @property
    def words(self) -> tuple[str, ...]:
        """The options that ask for it; those that say nothing new are left out."""
        found = ["--profile", str(self.every)]
        found += [] if self.convolutions == _MATRIX else ["--profile-convolutions", self.convolutions]
        found += ["--profile-amplification"] if self.amplification else []
        found += ["--profile-split"] if self.split else []
        found += [] if self.probes == 1 else ["--profile-probes", str(self.probes)]
        return *found, *itertools.chain.from_iterable(("--profile-wrt", name) for name in self.wrt)


def check_profile(asked: ProfileSettings | None, recipe: Recipe, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse trainings that a profiler cannot follow, in every process alike."""
    if asked is None:
        return
    if len(optimizers) != 1:
        raise ArgumentError(
            f"--profile follows one optimizer, and {type(recipe).__name__} has {len(optimizers)}; give it one with "
            "groups of parameters, or train without --profile."
        )
    if recipe.graph:
        raise ArgumentError("--profile looks at each step, which a recorded one does not show; give --graph=false.")


def require_same_profile(state: Mapping[str, Any] | None, asked: ProfileSettings | None, file: Path) -> None:
    """Refuse to continue the run of a checkpoint with another profile than it was begun with."""
    found = None if state is None else state.get("words", "--profile of an earlier version")
    if found != (None if asked is None else shlex.join(asked.words)):
        raise ArgumentError(
            f"{file} is of a run {'without --profile' if found is None else f'with {found}'}; continue it so, or give "
            "another folder."
        )


@final
class TrainingProfile:
    """Profiles a training, of the weights that the optimizer moves (no averages), and records singular values.

    Each process of a team has one, for sums over their samples; the one that `leads` records and writes.
    The training is the same to the bit: draws of torch's generators are put back. Cost: that of `Profiler`, and
    eigenvalues of a Gram matrix of at most 512 x 512 for each layer at each measurement.
    """

    def __init__(
        self, path: Path, asked: ProfileSettings, recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer,
        inputs: Tensor, watch: Callable[[Mapping[str, Any]], None] | None, leads: bool,
    ) -> None:  # fmt: skip
        self._path, self._asked, self._watch, self._leads = path, asked, watch, leads
        with _same_draws(inputs.device):
            example = recipe.augmented(inputs)
            try:
                self._profiler = Profiler(
                    model, optimizer, example, asked.every, convolutions=asked.reading, seed=recipe.seed,
                    probes=asked.probes, split=asked.split, synchronise=True, wrt=parse_wrt(asked.wrt),
                )  # fmt: skip
                layers = find_layers(model, example, AsMatrix())
            except LipkitError as error:
                raise type(error)(f"This model cannot be profiled, so train without --profile: {error}") from error
        small = [layer for layer in layers if min(_blocks(layer).shape[1:]) <= _SIDE]
        self._spectra = {layer.name: _Spectra(layer) for layer in small}
        # Steps that were made, and the last one whose measurement was passed on.
        self._step, self._told = 0, -1

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a checkpoint; the model has its weights already."""
        self._profiler.load_state_dict(state["profiler"])
        for name, spectra in self._spectra.items():
            spectra.restore(state["spectra"][name])
        self._step, self._told = state["step"], state["told"]

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, between two steps."""
        spectra = {name: one.state() for name, one in self._spectra.items()}
        counts = {"step": self._step, "told": self._told, "words": shlex.join(self._asked.words)}
        return {"profiler": self._profiler.state_dict(), "spectra": spectra, **counts}

    def __enter__(self) -> Self:
        self._profiler.__enter__()
        if not self._step:
            self._record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.__exit__(kind, error, trace)
        if kind is None and self._leads:
            if self._step % self._asked.every:
                self._record()
            self.write()
            self.tell()

    def after_step(self) -> None:
        """Count a step, and record singular values where the profiler measured."""
        self._step += 1
        if self._step % self._asked.every == 0:
            self._record()

    @property
    def history(self) -> StoredHistory:
        """Everything so far."""
        spectra = {name: one.stored() for name, one in self._spectra.items()}
        return StoredHistory.of(self._profiler.history, self._asked.every, spectra)

    def write(self) -> None:
        """Write the file beside the journal, whole or not at all."""
        write_whole(self._path, self.history.to_json())

    def tell(self) -> None:
        """Pass on each measurement since the last call to whoever watches, as entries of a journal are."""
        if self._watch is None:
            return
        history = self._profiler.history
        steps = history.steps.tolist()
        for at, step in enumerate(steps):
            if step > self._told:
                self._watch({"step": step, **{f"profile/{name}": v for name, v in _numbers_at(history, at).items()}})
        self._told = steps[-1]

    def _record(self) -> None:
        if self._leads:
            for spectra in self._spectra.values():
                spectra.measure()


@final
class _Spectra:
    """The singular values of one layer as they are measured."""

    def __init__(self, layer: TrackedLayer) -> None:
        self._layer = layer
        self._blocks, self._rows, self._columns = _blocks(layer).shape
        values = self._blocks * min(self._rows, self._columns)
        self._ranks = torch.linspace(0, values - 1, min(values, _VALUES), dtype=torch.float64).round().long()
        self._values: list[Tensor] = []
        self._energy: list[Tensor] = []

    @torch.no_grad()
    def measure(self) -> None:
        wide = _blocks(self._layer).to(torch.float64)
        wide = wide if self._rows <= self._columns else wide.mT
        squares = torch.linalg.eigvalsh(wide @ wide.mT).flatten().sort(descending=True).values.clamp(min=0).cpu()
        self._values.append(squares.sqrt()[self._ranks])
        self._energy.append(squares.sum())

    def state(self) -> dict[str, Tensor]:
        return {"values": torch.stack(self._values), "energy": torch.stack(self._energy)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._values, self._energy = list(state["values"].unbind()), list(state["energy"].unbind())

    def stored(self) -> StoredSpectra:
        # Six digits are more than a picture shows, and a third of the file.
        values = tuple(tuple(float(f"{v:.6g}") for v in row.tolist()) for row in self._values)
        return StoredSpectra(self._rows, self._columns, values, tuple(map(float, self._energy)), self._blocks)


def _blocks(layer: TrackedLayer) -> Tensor:
    return blocks_of(layer.operator(layer.weight()))


def _numbers_at(history: History, at: int) -> dict[str, float]:
    """What is known at a measurement: log K and its trackers; of each layer log norm, gap, and causes of the change."""
    totals = {
        "log constant": history.log_constant,
        "log constant, tracked": history.realised,
        "log constant, expected": history.expected,
        "log constant, sampled": history.sampled,
    }
    found = {name: float(row[at]) for name, row in totals.items() if row is not None}
    for layer in history.layers:
        found[f"log norm of {layer.name}"] = float(layer.norm[at].log())
        if layer.gap is not None:
            found[f"gap of {layer.name}"] = float(layer.gap[at])
        if layer.amplification is not None:
            found[f"amplification of {layer.name}"] = float(layer.amplification[at])
        if at:
            found.update({f"{cause} of {layer.name}": float(getattr(layer, cause)[at - 1]) for cause in CAUSES})
    return found


def _same_draws(device: torch.device) -> Any:
    """Puts the generators back as they were; those of a CUDA device as well, if it is one."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def profiling(profile: TrainingProfile | None) -> Any:
    """The block in which steps are profiled; without a profile it does nothing."""
    return nullcontext() if profile is None else profile


def read_profile(folder: Path) -> StoredHistory | None:
    """The profile of a run; None if it has none, a `RecordError` if the file is damaged."""
    path = folder / PROFILE
    return StoredHistory.from_json(path.read_bytes(), str(path)) if path.is_file() else None
