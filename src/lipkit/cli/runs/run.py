"""A run from its recipe to its report: one folder, every step resumable."""

import hashlib
import inspect
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import nn

from lipkit._files import write_whole
from lipkit.bound import Bound
from lipkit.certify import Evaluation, find_warnings
from lipkit.cli.console import bar, progress
from lipkit.cli.inputs.device import describe_device
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.options import argument, option
from lipkit.cli.runs.assessment import current_date, evaluate_goal, hash_sources, publish_report, take_samples
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.stored_bound import load_or_find_bound
from lipkit.cli.runs.stored_privacy import read_privacy
from lipkit.cli.training import Goal, Recipe
from lipkit.cli.training.journal import Board, seconds_in
from lipkit.cli.training.loop import Trained, train
from lipkit.cli.training.overrides import make_quick_recipe, make_recipe
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import ProfileSettings, read_profile
from lipkit.cli.training.recipe import plain_fields
from lipkit.cli.training.wandb_log import WandbRun
from lipkit.data import Examples
from lipkit.errors import ArgumentError, LipkitError, ShapeError
from lipkit.report.html.profile_section import write_profile_page
from lipkit.report.results.about import About, Prints
from lipkit.report.results.gather import describe_error


@final
@dataclass(frozen=True)
class Order:
    """Train by a recipe, certify and attack the result, and write the report.

    Every field of the recipe can be set as --key=value. Ctrl-C leaves a checkpoint; the same command continues.
    """

    recipe: Path = argument("A recipe's Python file (it is EXECUTED).", "RECIPE")
    out: Path = option("Folder of the run; the same one again continues it.")
    words: tuple[str, ...] = argument("Fields of the recipe.", "[--KEY=VALUE]...", ())
    data: Path | None = option("Folder with the files of the data set.", None)
    seed: int | None = option("Draws weights, batches and attacks.", None)
    device: str = option("cpu or cuda; under torchrun each process takes its own.", "cpu")
    quick: bool = option("A tiny version, to see that all is in place.", False, "--quick")
    json: Path | None = option("File for the figures.", None)
    tensorboard: bool = option("Log for TensorBoard too.", False, "--tensorboard")
    wandb: str | None = option("Log to this project of Weights & Biases too.", None)
    profile: int | None = option("Record why the constant grows, measured every so many steps.", None, least=1)
    profile_convolutions: str = option("How a profile reads convolutions: matrix or operator.", "matrix")
    profile_amplification: bool = option(
        "Find how far a step can bend the norm of an operator.", False, "--profile-amplification"
    )
    profile_split: bool = option("Split noise terms by variances too.", False, "--profile-split")
    profile_probes: int = option("Random signs at each measurement of a profile.", 1, least=1)
    profile_wrt: tuple[str, ...] = option("A module whose result a profile starts from; may be repeated.", ())

    def __post_init__(self) -> None:
        _ = self.profiled

    @property
    def profiled(self) -> ProfileSettings | None:
        """What is asked of a profile; None if none is asked for."""
        beside = (self.profile_split, self.profile_probes, self.profile_wrt, self.profile_amplification)
        if self.profile is not None:
            return ProfileSettings(self.profile, self.profile_convolutions, *beside)
        if (self.profile_convolutions, *beside) != ("matrix", False, 1, (), False):
            raise ArgumentError("Options of a profile need one; give --profile 10, say, beside them.")
        return None

    @property
    def settings(self) -> tuple[str, ...]:
        """The fields of the recipe that were given, as `--key=value` words."""
        named = {"data": self.data, "seed": self.seed}
        return (*(f"--{key}={value}" for key, value in named.items() if value is not None), *self.words)

    @property
    def command(self) -> str:
        """The command that does it again."""
        words = ["lipkit", "train", str(self.recipe), "--out", str(self.out), "--device", self.device, *self.settings]
        profile = () if self.profiled is None else self.profiled.words
        return shlex.join([*words, *profile, *(["--quick"] if self.quick else [])])


@final
@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run."""

    evaluation: Evaluation
    bound: Bound
    model: nn.Module
    warnings: tuple[str, ...]


def load_recipe(order: Order) -> Recipe:
    """The recipe with its settings; whatever is wrong with them is said here, before anything runs."""
    recipe = (make_quick_recipe if order.quick else make_recipe)(recipe_class(order.recipe), order.settings)
    # A goal checks itself when it is made; its errors belong before the training, not after it.
    _ = recipe.goal
    return recipe


def run(order: Order, recipe: Recipe, team: Team) -> Result:
    """Train, certify and attack, and write the report; each from where an earlier run of the same order stopped.

    The folder then holds: run.json, journal.jsonl, checkpoint.safetensors, model.safetensors, evaluation/ with a line
    for each sample, report.html and report.json; and profile.json where a profile is asked for.
    """
    goal = recipe.goal
    if goal is None:
        raise ArgumentError(f"{type(recipe).__name__} has no goal to certify; its run ends with the weights.")
    with _own_folder(order, recipe, team) as here:
        return _run(order, recipe, goal, team, here)


def run_without_goal(order: Order, recipe: Recipe, team: Team) -> Path:
    """Train and write the weights, from where an earlier run of the same order stopped; returns where they are.

    The folder then holds: run.json, journal.jsonl, checkpoint.safetensors and model.safetensors, and with a profile
    profile.json and profile.html. Nothing is certified.
    """
    with _own_folder(order, recipe, team) as here:
        _train_and_store(order, recipe, team, here)
        profile = read_profile(order.out) if team.leads else None
        if profile is not None:
            write_profile_page(profile, type(recipe).__name__, order.out)
        return order.out / "model.safetensors"


@contextmanager
def _own_folder(order: Order, recipe: Recipe, team: Team) -> Iterator[Identity]:
    """The folder of a run, free or of this very run, while nobody else writes there."""
    here = Identity(type(recipe).__name__, source(recipe), plain_fields(recipe), order.command)
    here.check(order.out)
    with lock_folder(order.out, team.leads):
        yield here


def _train_and_store(order: Order, recipe: Recipe, team: Team, here: Identity) -> Trained:
    trained = _train(order, recipe, team, lambda: here.settle(order.out, writes=team.leads))
    if team.leads:
        write_whole(order.out / "model.safetensors", model_to(trained.model))
    return trained


def _run(order: Order, recipe: Recipe, goal: Goal, team: Team, here: Identity) -> Result:
    trained = _train_and_store(order, recipe, team, here)
    test = name_after_folder(take_samples(recipe.evaluated(trained.sets.test), goal), recipe.data)
    with progress() as doing:
        doing("bounding the trained model")
        example = test.inputs[:1].to(team.device)
        bound = load_or_find_bound(
            order.out / "bound.safetensors", trained.model, example, source(recipe),
            lambda: recipe.bound(trained.model, example), team,
        )  # fmt: skip
    records = order.out / "evaluation"
    evaluation = evaluate_goal("certifying and attacking", trained.model, test, bound, goal, recipe.seed, records)
    if team.leads:
        seconds = seconds_in(trained.journal)
        weights = hashlib.sha256((order.out / "model.safetensors").read_bytes()).hexdigest()
        about = _about(order, recipe, seconds, team, hash_sources(weights, test, source(recipe)))
        publish_report(
            order.out, trained.model, test, evaluation, bound, trained.journal, about, goal.attack,
            read_profile(order.out), read_privacy(recipe, order.out),
        )  # fmt: skip
    return Result(evaluation, bound, trained.model, find_warnings(evaluation, test.inputs, bound, test.classes))


def name_after_folder(test: Examples, data: Path | None) -> Examples:
    """The examples; without a name of their own they are called by the folder they came from."""
    return replace(test, name=test.name or ("" if data is None else data.resolve().name))


def _train(order: Order, recipe: Recipe, team: Team, settle: Callable[[], None]) -> Trained:
    """Train; the folder is settled by the first step, so that settings which do not get there leave it free."""
    begun: list[bool] = []

    def begin() -> None:
        settle()
        begun.append(True)

    board = Board(order.out / "tensorboard") if order.tensorboard and team.leads else None
    online = WandbRun(order.out / "wandb", order.wandb) if order.wandb is not None and team.leads else None

    def watch(entry: Mapping[str, Any]) -> None:
        for write in (board, online):
            if write is not None:
                write(entry)

    try:
        with bar(f"training {type(recipe).__name__}") as show:
            return train(recipe, order.out, team, show, watch, begin, order.profiled)
    except (ArgumentError, ShapeError) as error:
        if begun or not order.settings:
            raise
        raise type(error)(f"{error} The settings given are {shlex.join(order.settings)}.") from error
    except LipkitError:
        raise
    except Exception as error:
        # Without settings it is the recipe that is wrong, and its author needs the traceback.
        if begun or not order.settings:
            raise
        raise ArgumentError(_explain_misfit(order, recipe, error)) from error
    finally:
        if online is not None:
            online.close()


def _explain_misfit(order: Order, recipe: Recipe, error: Exception) -> str:
    """The message for a recipe that fails before its first step ends: the settings, the error, and its line."""
    file = inspect.getfile(type(recipe))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    return f"{type(recipe).__name__} does not run with {shlex.join(order.settings)}: {describe_error(error)}{place}."


def source(recipe: Recipe) -> str:
    """A hash of the file that the recipe is written in; empty for one that is in no file."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(recipe))).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def _about(order: Order, recipe: Recipe, seconds: float | None, team: Team, found: Prints) -> About:
    return About.here(
        command=order.command, date=current_date(), seconds=seconds, seed=recipe.seed,
        device=describe_device(team.device), recipe=type(recipe).__name__, fields=plain_fields(recipe), prints=found,
        watched=recipe.watches,
    )  # fmt: skip
