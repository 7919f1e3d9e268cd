"""A first look, `lipkit demo --out DIR`: norms of layers, the constant of a network, a certified classifier."""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.cli.console import table as _table
from lipkit.cli.console import terminal
from lipkit.cli.digits import Classifier, trained
from lipkit.cli.digits_recipe import Digits
from lipkit.cli.ladder import COLOURS, EVERYWHERE, ON_A_REGION, climb, ladder_table, panel
from lipkit.cli.run import Order, run
from lipkit.cli.training.place import Team
from lipkit.errors import ArgumentError
from lipkit.linops import LinearOperator, Shape, of
from lipkit.norms import (
    SVD,
    Auto,
    Cholesky,
    Circulant,
    FantasticFour,
    Gram,
    Lanczos,
    LipGrid,
    Norm,
    Power,
    ReshapedKernel,
    SmallGrid,
    Toeplitz,
)
from lipkit.regions import Ball, Everywhere, Region
from lipkit.report.figures import Curve, convergence, ladder
from lipkit.trace.capture import capture

if TYPE_CHECKING:
    from lipkit.cli.console import Table

# Of the ball around a digit: one pixel may move by a tenth of its range, or several by less.
_RADIUS = 0.1


class Layer(NamedTuple):
    """A module with a name and the shape of one input."""

    name: str
    module: nn.Module
    in_shape: Shape

    @property
    def op(self) -> LinearOperator:
        """The operator it is, without gradient: this page only looks."""
        return of(self.module, self.in_shape).map(Tensor.detach)


def layers(seed: int) -> list[Layer]:
    """A handful of layers as they occur in networks, with weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        square = nn.Linear(256, 256, bias=False)
        nn.init.orthogonal_(square.weight)
        norm = nn.BatchNorm2d(64).eval()
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        assert norm.running_var is not None
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        plain = nn.Conv2d(64, 64, 3, padding=1)
        ring = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular")
        ring.weight = plain.weight
        wider = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        return [
            Layer("Linear 512 -> 256", nn.Linear(512, 256), (512,)),
            Layer("Linear 256, orthogonal", square, (256,)),
            Layer("Conv2d 3 -> 64, 7x7, stride 2", nn.Conv2d(3, 64, 7, stride=2, padding=3), (3, 64, 64)),
            Layer("Conv2d 64 -> 64, 3x3", plain, (64, 28, 28)),
            Layer("the same, circular padding", ring, (64, 28, 28)),
            Layer("Conv2d 64, 3x3, depthwise", nn.Conv2d(64, 64, 3, padding=1, groups=64), (64, 28, 28)),
            Layer("ConvTranspose2d 64 -> 32, 4x4, stride 2", wider, (64, 14, 14)),
            Layer("AvgPool2d 2x2", nn.AvgPool2d(2), (64, 28, 28)),
            Layer("BatchNorm2d, evaluation", norm, (64, 28, 28)),
        ]


def convolution(channels: int, size: int, seed: int) -> LinearOperator:
    """A 3x3 convolution with zero padding, as torch initialises it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Layer("", nn.Conv2d(channels, channels, 3, padding=1), (channels, size, size)).op


def layer_table(seed: int) -> "Table":
    """Each layer with the bound `Auto` gives, its kind, and the lower bound that shows how much it can be off."""
    headers = ("layer", "input", ">lower bound", ">bound", "kind", ">gap", ">ms", "+method, and why")
    table = _table("Norms of some layers, as Auto finds them", *headers)
    for layer in layers(seed):
        op = layer.op
        bound, milliseconds = _timed(Auto(), op)
        # With a seed of ours the result is LOWER, which is what is wanted here.
        lower = bound.lower or Lanczos(steps=60, rtol=1e-3, seed=seed)(op)
        chosen = Auto().select(op)
        table.add_row(
            layer.name,
            "x".join(map(str, layer.in_shape)),
            _digits(lower, Kind.EXACT if bound.kind is Kind.EXACT else Kind.LOWER),
            _digits(bound, bound.kind),
            _kind(bound),
            _gap(bound.value.item() / lower.value.item() - 1),
            f"{milliseconds:.0f}",
            f"{type(chosen.method).__name__}: {chosen.why}",
        )
    return table


def method_table(seed: int) -> "Table":
    """One small convolution by many methods, sorted by value: what is below the true norm, and what is above."""
    op = convolution(8, 12, seed)
    ours: list[Norm] = [SVD(), Power(steps=30), Lanczos(), Circulant(), SmallGrid(), Toeplitz()]
    methods: list[Norm] = [*ours, FantasticFour(), LipGrid(), ReshapedKernel()]
    found = sorted(((*_timed(method, op), method) for method in methods), key=lambda one: one[0].value.item())
    truth = next(bound for bound, _, _ in found if bound.kind is Kind.EXACT).value.item()
    title = f"One convolution by many methods: 8 -> 8, 3x3, on 12 x 12, true norm {truth:.5f}"
    table = _table(title, "method", "kind", "may certify", ">value", ">against the truth", ">ms")
    for bound, milliseconds, method in found:
        away = "the truth" if bound.kind is Kind.EXACT else f"{bound.value.item() / truth - 1:+.2%}"
        certifies = "yes" if bound.kind.certifies else "no"
        table.add_row(
            type(method).__name__, _kind(bound), certifies, _digits(bound, bound.kind), away, f"{milliseconds:.1f}"
        )
    return table


def draw(op: LinearOperator, stem: Path, seed: int) -> tuple[Path, Path]:
    """Distance to the true norm against time, for methods with a knob that buys accuracy."""
    # Both sides of this enclosure agree to ten digits, two more than the figure shows.
    truth = _lower(Lanczos(steps=400, rtol=1e-10)(op)).value.item()

    def curve(label: str, methods: Iterable[Norm], above: bool) -> Curve:
        runs = [_timed(method, op) for method in methods]
        away = [(bound.value.item() / truth - 1) * (1 if above else -1) for bound, _ in runs]
        # Two proven lower bounds of one norm may differ in their last digit.
        return Curve(label, tuple(ms for _, ms in runs), tuple(max(one, 0.0) for one in away), above)

    grids = [SmallGrid(rtol=r, inner=Cholesky(rtol=r / 10)) for r in (0.9, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3)]
    curves = [
        curve("Lanczos", [Lanczos(steps=k, rtol=0.0) for k in (8, 16, 32, 64, 96, 128, 192, 256)], above=True),
        curve("Gram on the torus", [Circulant(Gram(k)) for k in range(8)], above=True),
        curve("SmallGrid", grids, above=True),
        curve("Toeplitz", [Toeplitz(k) for k in (1, 2, 3)], above=True),
        # One start for all, known beforehand: LOWER.
        curve("Lanczos", [Lanczos(steps=k, rtol=0.0, seed=seed) for k in (8, 16, 24, 32, 48, 64, 96)], above=False),
        curve("power iteration", [Power(2**k, seed=seed) for k in range(9)], above=False),
    ]
    torus = Circulant()(op).value.item() / truth - 1
    title = "Norm of a convolution: 32 -> 32 channels, 3x3, zero padding, on 28 x 28"
    return convergence(curves, title, ("norm on the torus", torus), stem)


def climbed(digits: Classifier, say: Callable[..., None], stem: Path) -> tuple[Path, Path]:
    """The ladder of methods on a trained classifier, everywhere and around one digit: two tables and a figure."""
    network = capture(digits.model, digits.images[:1]).detach()
    regions: list[Region] = [Everywhere(), Ball(digits.images[0], _RADIUS)]
    headings = ("everywhere", f"on the {regions[1]} around a digit")
    panels = []
    for heading, region in zip(headings, regions, strict=True):
        rungs = climb(network, region, EVERYWHERE if region == Everywhere() else ON_A_REGION)
        say(ladder_table(f"Lipschitz constant of a classifier of digits, {heading}", rungs))
        panels.append(panel(heading, rungs))
    title = f"A classifier of digits, 64-32-32-10, {digits.accuracy:.0%} right: what each method proves"
    return ladder(panels, title, stem, one_scale=True)


def certified(folder: Path, seed: int, say: Callable[..., None]) -> Path:
    """The recipe of digits run to its report in the folder; an earlier run of the same seed is taken up."""
    recipe = Digits(seed=seed)
    order = Order(Path("recipes/digits.py"), folder / "digits", (f"--seed={seed}",))
    with torch.random.fork_rng(devices=[]):
        found = run(order, recipe, Team(torch.device("cpu"))).evaluation
    say(str(found), markup=False, highlight=False)
    say("Certified is proven, attacked is what the attack left: the truth lies between the two.\n")
    return order.out / "report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demonstration; 0 if all went well, 2 with one sentence on standard error if it cannot run."""
    parser = argparse.ArgumentParser(prog="lipkit demo", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for figures, made if missing")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws all weights (default 0)")
    chosen = parser.parse_args(arguments)
    try:
        if not 0 <= chosen.seed < 2**63:
            raise ArgumentError(f"--seed must lie in [0, 2^63), got {chosen.seed}.")
        folder = _writable(chosen.out)
        with _one_thread():
            _run(folder, chosen.seed)
    except ArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        print(
            f"The demonstration needs {missing.name}; pip install 'lipkit[cli,data,plot]' brings it.", file=sys.stderr
        )
        return 2
    return 0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processor time on one thread compares methods fairly, whatever else the machine is doing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(folder: Path, seed: int) -> None:
    say: Callable[..., None] = terminal().print
    # First, because it needs the most packages: what is missing is missed before anything is printed.
    digits = trained(seed)
    say(layer_table(seed))
    say("The true norm lies between lower bound and bound, so the gap is all there is left to know.")
    say("  [green]exact[/]        the norm itself, up to rounding and never below it")
    say("  [cyan]upper bound[/]  proven: the norm is not above (where it says so, with that probability of failure)")
    say("  [yellow]lower bound[/]  proven: the norm is not below")
    say("  [red]estimate[/]     proves nothing\n")
    say(method_table(seed))
    say("ReshapedKernel is what many libraries call the norm of a convolution: it belongs to another map.\n")
    paths = climbed(digits, say, folder / "ladder")
    say("If two digits differ by d in the l2 norm, the ten scores differ by at most the constant times d.")
    say("A lower bound is proven by two inputs that reach it, so the truth lies between it and the best upper bound.\n")
    paths += draw(convolution(32, 28, seed), folder / "convergence", seed)
    say("And a network that is 1-Lipschitz by construction: trained, certified, attacked.")
    paths += (certified(folder, seed, say),)
    say(f"Wrote {', '.join(map(str, paths[:-1]))} and {paths[-1]}.", soft_wrap=True, markup=False)


def _writable(folder: Path) -> Path:
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


def _timed(method: Norm, op: LinearOperator) -> tuple[Bound, float]:
    """The bound and its milliseconds of processor time, of the fastest of five runs where they are short."""
    times: list[float] = []
    while True:
        begin = time.process_time()
        bound = method(op)
        times.append(1e3 * (time.process_time() - begin))
        if len(times) == 5 or times[-1] > 100:
            return bound, min(times)


def _lower(bound: Bound) -> Bound:
    assert bound.lower is not None
    return bound.lower


def _kind(bound: Bound) -> str:
    sure = f", fails <= {bound.failure:.0e}" if bound.failure else ""
    return f"[{COLOURS[bound.kind]}]{bound.kind.value}[/]{sure}"


def _digits(bound: Bound, kind: Kind) -> str:
    """Five decimals; bounds are rounded outward, so that what is printed is a bound too, all else to nearest."""
    side = {Kind.UPPER: math.ceil, Kind.LOWER: math.floor}.get(kind, round)
    return f"{side(bound.value.item() * 1e5) / 1e5:.5f}"


def _gap(relative: float) -> str:
    return f"{relative:.2%}" if relative >= 1e-4 else f"{max(relative, 0.0):.0e}"


if __name__ == "__main__":
    raise SystemExit(main())
