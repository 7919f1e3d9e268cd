"""A run from its recipe to its report: one folder, every step resumable."""

import datetime
import hashlib
import inspect
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import nn

from lipkit._files import write_whole
from lipkit.bound import Bound, Kind, Metric, Of
from lipkit.bounds.fingerprint import network_prints, row_hashes, sha256_of
from lipkit.certify import Evaluation, accuracy
from lipkit.cli.console import bar, progress
from lipkit.cli.recipe_file import recipe_class
from lipkit.cli.safetensors_file import tensors_to
from lipkit.cli.training import Recipe, Sets, checkpoint
from lipkit.cli.training.board import Board
from lipkit.cli.training.loop import train
from lipkit.cli.training.overrides import made
from lipkit.cli.training.place import Team
from lipkit.cli.training.recipe import plain_fields
from lipkit.data import Examples
from lipkit.errors import ArgumentError, RecordError
from lipkit.regions import Everywhere
from lipkit.report.contents import About, Prints
from lipkit.report.gather import gathered
from lipkit.report.writing import write
from lipkit.trace.capture import capture


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
    recipe = made(recipe_class(order.recipe), order.words)
    recipe = recipe.quick() if order.quick else recipe
    # A goal checks itself when it is made; after the training would be late.
    _ = recipe.goal
    return recipe


def device_of(name: str) -> torch.device:
    """A device by its name, if it is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(f"--device is cpu or cuda, got {name!r}.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ArgumentError(f"There is no device {name} here; use --device cpu.")
    return device


def run(order: Order, recipe: Recipe, team: Team) -> Result:
    """Train, certify and attack, and write the report; each from where an earlier run of the same order stopped.

    The folder then holds: run.json, journal.jsonl, checkpoint.safetensors, model.safetensors, evaluation/ with a line
    for each sample, report.html and report.json.
    """
    _settle(order, recipe, team)
    watch = Board(order.out / "tensorboard") if order.tensorboard and team.leads else None
    with bar(f"training {type(recipe).__name__}") as show:
        trained = train(recipe, order.out, team, lambda done, total, loss: show(done, total, f"loss {loss:.4f}"), watch)
    if team.leads:
        write_whole(order.out / "model.safetensors", tensors_to(_state(trained.model)))
    goal, test = recipe.goal, _tested(trained.sets, recipe)
    with progress() as doing:
        doing("bounding the trained model")
        bound = _bound(order.out / "bound.safetensors", recipe, trained.model, test.inputs[:1].to(team.device), team)
    with bar("certifying and attacking") as show:
        evaluation = accuracy(
            trained.model, test, bound, goal.eps, norm=goal.norm, attack=goal.attack,
            records=order.out / "evaluation", seed=recipe.seed,
            progress=lambda done, total: show(done, total, ""),
        )  # fmt: skip
    if team.leads:
        with progress() as doing:
            doing("writing the report")
            seconds = trained.journal[-1]["seconds"] if trained.journal else 0.0
            about = _about(order, recipe, seconds, team, _prints(order.out / "model.safetensors", test, recipe))
            write(gathered(trained.model, test, evaluation, bound, trained.journal, about), order.out)
    return Result(evaluation, bound, trained.model)


def source(recipe: Recipe) -> str:
    """A hash of the file that the recipe is written in; empty for one that is in no file."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(recipe))).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def _bound(path: Path, recipe: Recipe, model: nn.Module, example: torch.Tensor, team: Team) -> Bound:
    """The constant of the trained model, found by the first process and kept: a randomised one is drawn once."""
    network = capture(model, example)
    prints = [source(recipe), *row_hashes(network), *(one.sha256 for one in network_prints(network, ()))]
    if team.leads:
        stored = checkpoint.load(path) if path.exists() else {}
        if stored.get("model") != prints:
            with torch.no_grad():
                found = recipe.bound(model, example)
            if not isinstance(found.region, Everywhere):
                raise ArgumentError(f"The constant of a recipe holds everywhere, got one on a {found.region}.")
            checkpoint.save(path, {
                "model": prints, "log_value": found.log_value, "kind": found.kind.name, "of": found.of.name,
                "metric": list(found.metric), "failure": found.failure, "method": str(found.method),
            })  # fmt: skip
    state = team.told(checkpoint.load(path) if team.leads else None)
    return Bound(
        state["log_value"].to(torch.float64), Kind[state["kind"]], state["method"], Metric(*state["metric"]),
        of=Of[state["of"]], failure=state["failure"],
    )  # fmt: skip


def _tested(sets: Sets, recipe: Recipe) -> Examples:
    count = recipe.goal.samples
    return sets.test if count is None else sets.test.at(range(min(count, len(sets.test))))


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}


def _settle(order: Order, recipe: Recipe, team: Team) -> None:
    """Write down what is run; refuse a folder that holds another run."""
    path = order.out / "run.json"
    here = {"recipe": type(recipe).__name__, "source": source(recipe), "fields": plain_fields(recipe)}
    try:
        order.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--out {order.out} cannot be made a folder ({error.strerror}).") from error
    if path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            fields = dict(known["fields"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path} is damaged; give another --out, or remove the folder.") from error
        now = plain_fields(recipe)
        changed = sorted(name for name in fields.keys() | now.keys() if fields.get(name) != now.get(name))
        what = ", ".join(f"{name} was {fields.get(name)}" for name in changed)
        if known.get("recipe") != here["recipe"]:
            what = f"recipe was {known.get('recipe')}"
        elif known.get("source") != here["source"] and not changed:
            what = "the code of the recipe was another"
        if what:
            raise RecordError(f"{order.out} holds another run ({what}); continue that one, or give another --out.")
    elif team.leads:
        write_whole(path, json.dumps({**here, "command": order.command}, indent=1).encode())


def _prints(weights: Path, test: Examples, recipe: Recipe) -> Prints:
    stored = hashlib.sha256(weights.read_bytes()).hexdigest()
    return Prints(stored, sha256_of(test.inputs), sha256_of(test.labels), source(recipe))


def _about(order: Order, recipe: Recipe, seconds: float, team: Team, prints: Prints) -> About:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return About.here(
        command=order.command, date=now, seconds=seconds, seed=recipe.seed, device=_named(team.device),
        data="" if recipe.data is None else recipe.data.resolve().name,
        recipe=f"{type(recipe).__name__} ({order.recipe})", fields=plain_fields(recipe), prints=prints,
    )  # fmt: skip


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
