"""`lipkit train` and `lipkit report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words as names
from lipkit.cli.inputs.device import device_of
from lipkit.cli.runs.folder_identity import command_in
from lipkit.cli.runs.result_files import plain, write_json
from lipkit.cli.runs.run import Order, ordered, run
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError
from lipkit.report.results.contents import Contents
from lipkit.report.write_page import write


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
        write_json(asked.json, plain(found))
    team.leave()


def redraw(run: Path, out: Path | None, json: Path | None = None) -> None:
    """The page of a report.json again, beside it or elsewhere; its shares go to a file as those of a training do."""
    names.check_json(json)
    source = run / "report.json" if run.is_dir() else run
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        if run.is_dir() and (begun := command_in(run)):
            raise ArgumentError(f"{run} has no report.json ({why}); this command continues to it: {begun}") from error
        raise ArgumentError(f"{source} cannot be read ({why}); name the folder of a run.") from error
    contents = Contents.from_json(text)
    page, _ = write(contents, source.parent if out is None else out)
    write_json(json, plain(contents))
    terminal().print(f"report in {page}", soft_wrap=True, markup=False, highlight=False)
