"""A run from its recipe to its report: one folder, every step resumable."""

import hashlib
import inspect
import shlex
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import nn

from lipkit._files import write_whole
from lipkit.bound import Bound
from lipkit.certify import Evaluation
from lipkit.cli.console import bar, progress
from lipkit.cli.inputs.device import told
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.runs.assessment import assessed, now, prints, published, tested
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.stored_bound import kept
from lipkit.cli.training import Recipe
from lipkit.cli.training.loop import Trained, train
from lipkit.cli.training.overrides import made, quickly
from lipkit.cli.training.processes import Team
from lipkit.cli.training.recipe import plain_fields
from lipkit.cli.training.tensorboard_log import Board
from lipkit.errors import ArgumentError, LipkitError, ShapeError
from lipkit.report.results.contents import About, Prints
from lipkit.report.results.gather import said


@final
@dataclass(frozen=True)
class Order:
    """What to run: a recipe's file, its settings as words, where, and on what device."""

    recipe: Path
    out: Path
    words: tuple[str, ...] = ()
    device: str = "cpu"
    quick: bool = False
    tensorboard: bool = False

    @property
    def command(self) -> str:
        """The command that does it again."""
        words = ["lipkit", "train", str(self.recipe), "--out", str(self.out), "--device", self.device, *self.words]
        return shlex.join([*words, *(["--quick"] if self.quick else [])])


@final
@dataclass(frozen=True, eq=False)
class Result:
    """What a run ends with."""

    evaluation: Evaluation
    bound: Bound
    model: nn.Module


def ordered(order: Order) -> Recipe:
    """The recipe with its settings; whatever is wrong with them is said here, before anything runs."""
    recipe = (quickly if order.quick else made)(recipe_class(order.recipe), order.words)
    # A goal checks itself when it is made; after the training would be late.
    _ = recipe.goal
    return recipe


def run(order: Order, recipe: Recipe, team: Team) -> Result:
    """Train, certify and attack, and write the report; each from where an earlier run of the same order stopped.

    The folder then holds: run.json, journal.jsonl, checkpoint.safetensors, model.safetensors, evaluation/ with a line
    for each sample, report.html and report.json.
    """
    here = Identity(type(recipe).__name__, source(recipe), plain_fields(recipe), order.command)
    here.check(order.out)
    trained = _trained(order, recipe, team, lambda: here.settle(order.out, writes=team.leads))
    if team.leads:
        write_whole(order.out / "model.safetensors", model_to(trained.model))
    test = tested(trained.sets.test, recipe.goal)
    with progress() as doing:
        doing("bounding the trained model")
        example = test.inputs[:1].to(team.device)
        bound = kept(
            order.out / "bound.safetensors", trained.model, example, source(recipe),
            lambda: recipe.bound(trained.model, example), team,
        )  # fmt: skip
    records = order.out / "evaluation"
    evaluation = assessed("certifying and attacking", trained.model, test, bound, recipe.goal, recipe.seed, records)
    if team.leads:
        seconds = trained.journal[-1]["seconds"] if trained.journal else 0.0
        weights = hashlib.sha256((order.out / "model.safetensors").read_bytes()).hexdigest()
        about = _about(order, recipe, seconds, team, prints(weights, test, source(recipe)))
        published(order.out, trained.model, test, evaluation, bound, trained.journal, about)
    return Result(evaluation, bound, trained.model)


def _trained(order: Order, recipe: Recipe, team: Team, settle: Callable[[], None]) -> Trained:
    """Train; the folder is settled by the first step, so that settings which do not get there leave it free."""
    begun: list[bool] = []

    def begin() -> None:
        settle()
        begun.append(True)

    watch = Board(order.out / "tensorboard") if order.tensorboard and team.leads else None
    try:
        with bar(f"training {type(recipe).__name__}") as show:
            told = lambda done, total, loss: show(done, total, f"loss {loss:.4f}")  # noqa: E731 - it fits the line
            return train(recipe, order.out, team, told, watch, begin)
    except (ArgumentError, ShapeError) as error:
        if begun or not order.words:
            raise
        raise type(error)(f"{error} The settings given are {shlex.join(order.words)}.") from error
    except LipkitError:
        raise
    except Exception as error:
        # Without settings it is the recipe that is wrong, and its author needs the traceback.
        if begun or not order.words:
            raise
        raise ArgumentError(_unfit(order, recipe, error)) from error


def _unfit(order: Order, recipe: Recipe, error: Exception) -> str:
    """That a recipe does not get through its first step, why, and in which of its lines."""
    file = inspect.getfile(type(recipe))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    return f"{type(recipe).__name__} does not run with {shlex.join(order.words)}: {said(error)}{place}."


def source(recipe: Recipe) -> str:
    """A hash of the file that the recipe is written in; empty for one that is in no file."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(recipe))).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def _about(order: Order, recipe: Recipe, seconds: float, team: Team, found: Prints) -> About:
    return About.here(
        command=order.command, date=now(), seconds=seconds, seed=recipe.seed, device=told(team.device),
        data="" if recipe.data is None else recipe.data.resolve().name,
        recipe=f"{type(recipe).__name__} ({order.recipe})", fields=plain_fields(recipe), prints=found,
        watched=recipe.watches,
    )  # fmt: skip
