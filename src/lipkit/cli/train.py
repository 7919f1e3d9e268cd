"""`lipkit train` and `lipkit report`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit._files import write_whole
from lipkit.cli import names
from lipkit.cli.console import terminal
from lipkit.cli.run import Order, device_of, ordered, run
from lipkit.cli.shares import plain
from lipkit.cli.training.place import Team
from lipkit.errors import ArgumentError
from lipkit.report.contents import Contents
from lipkit.report.writing import write


@final
@dataclass(frozen=True)
class Asked:
    """What was asked for on the command line, as it was written."""

    recipe: Path
    out: Path
    data: Path | None = None
    seed: int | None = None
    device: str = "cpu"
    quick: bool = False
    json: Path | None = None
    words: tuple[str, ...] = ()
    tensorboard: bool = False


def train(asked: Asked) -> None:
    """Run a recipe to its report, and print the shares. Settings, device and recipe are checked first."""
    names.check_json(asked.json)
    named = {"data": asked.data, "seed": asked.seed}
    words = (*(f"--{key}={value}" for key, value in named.items() if value is not None), *asked.words)
    order = Order(asked.recipe, asked.out, words, asked.device, asked.quick, asked.tensorboard)
    recipe, device = ordered(order), device_of(asked.device)
    team = Team.join(device)
    found = run(order, recipe, team).evaluation
    if team.leads:
        say = terminal().print
        say(str(found), markup=False, highlight=False)
        say(f"report in {asked.out / 'report.html'}", soft_wrap=True, markup=False, highlight=False)
        if asked.json is not None:
            write_whole(asked.json, (json.dumps(plain(found), indent=1) + "\n").encode())
    team.leave()


def redraw(run: Path, out: Path | None) -> None:
    """The page of a report.json again, beside it or elsewhere."""
    source = run / "report.json" if run.is_dir() else run
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{source} cannot be read ({error.strerror}); name the folder of a run.") from error
    write(Contents.from_json(text), source.parent if out is None else out)
