"""A first look, `lipkit demo --out DIR`: norms of layers, the constant of a network, a certified classifier."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import torch

from lipkit._seeds import check_seed
from lipkit.cli.console import terminal
from lipkit.cli.demo.digits import Classifier, Digits, train_classifier
from lipkit.cli.demo.ladder import EVERYWHERE, ON_A_REGION, Rung, climb, ladder_table, panel
from lipkit.cli.demo.norms import (
    convolution,
    draw_convergence,
    layer_norms,
    layer_table,
    method_norms,
    method_table,
)
from lipkit.cli.inputs import option_words
from lipkit.cli.options import option
from lipkit.cli.runs.result_files import plain, print_warnings, write_json
from lipkit.cli.runs.run import Order, Result, run
from lipkit.cli.training.processes import Team
from lipkit.errors import ArgumentError
from lipkit.regions import Ball, Everywhere, Region
from lipkit.report.method_figures import ladder
from lipkit.trace.capture import capture

# Radius of the ball around a digit: one pixel may move by a tenth of its range, or several by less.
_RADIUS = 0.1

Say = Callable[..., None]


@final
@dataclass(frozen=True)
class DemoRequest:
    """Norms of layers, bounds of a network, and a certified classifier with its report, on embedded data."""

    out: Path = option("Folder for the report and the figures, made if missing.")
    seed: int = option("Draws all weights.", 0)
    json: Path | None = option("File for all numbers that are printed.", None)


class Ladder(NamedTuple):
    """The results of all methods on the classifier, by region, and the figures that show them."""

    rungs: dict[str, list[Rung]]
    paths: tuple[Path, Path]


def climb_ladder(digits: Classifier, say: Say, stem: Path) -> Ladder:
    """The ladder of methods on a trained classifier, everywhere and around one digit: two tables and a figure."""
    network = capture(digits.model, digits.images[:1]).detach()
    regions: list[Region] = [Everywhere(), Ball(digits.images[0], _RADIUS)]
    headings = ("everywhere", f"on the {regions[1]} around a digit")
    found: dict[str, list[Rung]] = {}
    for heading, region in zip(headings, regions, strict=True):
        rungs = climb(network, region, EVERYWHERE if region == Everywhere() else ON_A_REGION)
        say(ladder_table(f"Lipschitz constant of a classifier of digits, {heading}", rungs))
        found[heading] = rungs
    title = f"A classifier of digits, 64-32-32-10, {digits.accuracy:.0%} right: what each method proves"
    panels = [panel(heading, rungs) for heading, rungs in found.items()]
    return Ladder(found, ladder(panels, title, stem, one_scale=True))


def certify_digits(folder: Path, seed: int, say: Say) -> tuple[Result, Path]:
    """The recipe of digits run to its report in the folder; an earlier run of the same seed is taken up."""
    recipe = Digits(seed=seed)
    order = Order(Path("recipes/digits.py"), folder / "digits", seed=seed)
    with torch.random.fork_rng(devices=[]):
        found = run(order, recipe, Team(torch.device("cpu")))
    say(str(found.evaluation), markup=False, highlight=False)
    print_warnings(found.warnings)
    say("Certified is proven, attacked is what the attack left: the truth lies between the two.\n")
    return found, order.out / "report.html"


def show_demo(request: DemoRequest) -> None:
    """The demonstration: tables on the terminal, figures and a report in the folder, the numbers in a file."""
    check_seed(request.seed, "--seed")
    option_words.check_json(request.json)
    folder = _check_writable(request.out)
    with _one_thread():
        found = _show_parts(folder, request.seed, terminal().print)
    write_json(request.json, {"seed": request.seed, **found})


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processor time on one thread compares methods fairly, whatever else the machine is doing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show_parts(folder: Path, seed: int, say: Say) -> dict[str, object]:
    """Everything in turn; what was printed, as plain data."""
    # First, because it needs the most packages: what is missing is missed before anything is printed.
    digits = train_classifier(seed)
    layers = layer_norms(seed)
    say(layer_table(layers))
    say("The true norm lies between lower bound and bound, so the gap is all there is left to know.")
    say("  [green]exact[/]        the norm itself, up to rounding and never below it")
    say("  [cyan]upper bound[/]  proven: the norm is not above (where it says so, with that probability of failure)")
    say("  [yellow]lower bound[/]  proven: the norm is not below")
    say("  [red]estimate[/]     proves nothing\n")
    methods = method_norms(seed)
    say(method_table(methods))
    say("ReshapedKernel is what many libraries call the norm of a convolution: it belongs to another map.\n")
    rungs, paths = climb_ladder(digits, say, folder / "ladder")
    say("If two digits differ by d in the l2 norm, the ten scores differ by at most the constant times d.")
    say("A lower bound is proven by two inputs that reach it, so the truth lies between it and the best upper bound.\n")
    drawn = draw_convergence(convolution(32, 28, seed), folder / "convergence", seed)
    say("And a network that is 1-Lipschitz by construction: trained, certified, attacked.")
    found, report = certify_digits(folder, seed, say)
    say(f"Wrote {', '.join(map(str, paths + drawn))} and {report}.", soft_wrap=True, markup=False)
    return {
        "layers": [one.plain() for one in layers],
        "convolution": [one.plain() for one in methods],
        "classifier": {region: [rung.plain() for rung in some] for region, some in rungs.items()},
        "digits": plain(found.evaluation, found.warnings),
    }


def _check_writable(folder: Path) -> Path:
    """The folder, made if missing; tried with a file now, because the figure comes last."""
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"--out {folder} is a file; name a folder instead.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(f"--out {folder} cannot be written ({error.strerror}); name another folder.") from error
    return folder
