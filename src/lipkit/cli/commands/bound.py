"""`lipkit bound` and `lipkit verify`: a model from a file, its constant on the terminal, a certificate on disk."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from lipkit._runtime import Phase, report, reporting, time_limit
from lipkit._seeds import check_seed
from lipkit.bound import Bound, Metric
from lipkit.bounds import Method
from lipkit.bounds.certificates.certificate import Certificate
from lipkit.bounds.certificates.issue import make_certificate, table_on, winner
from lipkit.bounds.certificates.provenance import Subject
from lipkit.bounds.certificates.verify import verify
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.bounds.lipschitz import (
    Program,
    bound_in_time,
    budget_of,
    call_of,
    search_fits,
    with_lower,
    without_lower,
)
from lipkit.cli.console import escape_markup, progress, table, terminal
from lipkit.cli.inputs import load, option_words
from lipkit.cli.inputs.device import device_of
from lipkit.cli.options import ANY_MODEL, WEIGHTS, argument, option
from lipkit.cli.runs.result_files import write_json
from lipkit.errors import ArgumentError, NeedsRegion, NotProvenError
from lipkit.linops import Shape
from lipkit.regions import Everywhere, Region
from lipkit.report.html.numbers import constant, layer_norm
from lipkit.trace import Network

Say = Callable[..., None]
# Columns that the table of layers needs.
_WIDE = 76


@final
@dataclass(frozen=True)
class BoundRequest:
    """Bound the Lipschitz constant of a model, and certify it.

    Ends with 0 if all went well, 2 for a wrong command line, 3 for a model that cannot be captured, 4 if the
    model has a constant on bounded regions only, 6 if a proof does not go through, and 1 otherwise.
    """

    model: str = argument(ANY_MODEL, "MODEL")
    shape: tuple[str, ...] = option("One input without batch axis, 3,32,32 or 16:int64; one for each input.", ())
    weights: Path | None = option(WEIGHTS, None)
    method: str = option("Name of a method, or several with commas: the best counts.", option_words.DEFAULT)
    norm: str = option("2, 1 or inf; two with a comma for input and output.", "2")
    ball: float | None = option("Radius of a ball, in the norm of the input, around --at.", None)
    at: Path | None = option("Center of the ball, a .npy file.", None)
    box: str | None = option("low,high of every coordinate.", None)
    budget: float | None = option("Seconds to spend, for methods that have a budget.", None)
    lower: str = option("How to search a lower bound: sampling, gradientascent, none.", "sampling")
    wrt: tuple[str, ...] = option("An input, or the module whose output is one; may be repeated.", ())
    output: str | None = option("Which result, by name or position.", None)
    seed: int = option("Draws weights and examples where there are none.", 0)
    json: Path | None = option("File for the certificate.", None)
    device: str = option("cpu or cuda.", "cpu")

    def __post_init__(self) -> None:
        if (self.ball is None) != (self.at is None):
            raise ArgumentError("--ball and --at go together: a radius and the .npy file of the center.")
        if self.ball is not None and self.box is not None:
            raise ArgumentError("--ball and --box are two regions; give one of them.")
        if self.ball is not None and not (math.isfinite(self.ball) and self.ball >= 0):
            raise ArgumentError(f"--ball is a radius >= 0, got {self.ball}.")
        if self.budget is not None and not self.budget > 0:
            raise ArgumentError(f"--budget is a number of seconds > 0, got {self.budget}.")
        check_seed(self.seed, "--seed")
        option_words.check_json(self.json)
        option_words.parse_lower(self.lower, self.metric, self.seed)
        if self.box is not None:
            option_words.parse_ends(self.box)

    @property
    def metric(self) -> Metric:
        """The norms of `--norm`."""
        return option_words.parse_metric(self.norm)


@final
@dataclass(frozen=True)
class VerifyRequest:
    """Check a certificate against a model: reproduce its value from the recorded draws, and prove it by fresh ones.

    Ends with 0 if the value holds, 6 if it is reproduced but fresh draws prove only a larger one, 1 if it is neither,
    or if the model is another.
    """

    certificate: Path = argument("What `lipkit bound --json` wrote.", "CERTIFICATE")
    model: str = argument(ANY_MODEL, "MODEL")
    weights: Path | None = option(WEIGHTS, None)
    seed: int = option("Draws weights where there are none.", 0)
    json: Path | None = option("File for what was found.", None)


def bound_model(request: BoundRequest) -> None:
    """Bound the model, print what was found, and write the certificate."""
    device = device_of(request.device)
    model = load.model_with_weights(request.model, request.weights, request.seed)
    if isinstance(model, nn.Module):
        model.to(device)
        if not request.shape:
            raise ArgumentError("--shape is missing: the shape of one input without batch axis, such as 3,32,32.")
    elif device.type != "cpu":
        raise ArgumentError(f"A .pt2 program stays where it was made; leave out --device {request.device}.")
    example = tuple(one.to(device) for one in option_words.draw_example(request.shape, _dtype(model)))
    # Names of methods and the center are checked before the model is captured, which may take long.
    seconds_given = budget_of(option_words.parse_method(request.method, request.metric, Everywhere(), request.budget))
    center = None if request.at is None else load.array(request.at).to(device)
    begin = time.perf_counter()
    with (
        progress(seconds_given) as doing,
        reporting(lambda step: doing(str(replace(step, seconds_left=math.inf)))),
        time_limit(seconds_given),
    ):
        report(Phase.CAPTURE)
        wrt, output = option_words.parse_wrt(request.wrt), option_words.parse_output(request.output)
        subject = Subject.of(model, call_of(model, example), wrt, output)
        region = _region(request, center, subject.network.source)
        method = option_words.parse_method(request.method, request.metric, region, request.budget)
        try:
            with torch.no_grad():
                bound = bound_in_time(subject.network, method, region)
        except NeedsRegion as error:
            more = "Give a" if region == Everywhere() else "Give a smaller"
            raise NeedsRegion(error.problem, f"{more} region: --ball R --at x.npy, or --box low,high.") from error
        seconds = time.perf_counter() - begin
        search = option_words.parse_lower(request.lower, request.metric, request.seed)
        if search is not None and bound.lower is None and bound.kind.certifies:
            bound = _with_search(bound, search, subject.network, region)
        doing("measuring layer by layer")
        rows = table_on(subject.network, request.metric, region, savings=True, budget=seconds_given)
    load.print_weights_source(request.model, request.weights, model)
    console = terminal()
    print_layers(rows, console.print, console.width)
    _print_summary(console.print, request.model, subject, bound, method, seconds)
    if request.json is not None:
        make_certificate(bound, subject, method, region, rows, seconds).save(request.json)
        console.print(f"certificate in {request.json}", soft_wrap=True, markup=False, highlight=False)


def _with_search(bound: Bound, search: Method, network: Network, region: Region) -> Bound:
    """The bound with a lower one beside it, or a note that there was no time for one."""
    if not search_fits(network):
        return without_lower(bound)
    report(Phase.LOWER, search)
    return with_lower(bound, search(network.detach(), region))


def verify_certificate(request: VerifyRequest) -> None:
    """Verify a certificate against a model and say what is proven, to a file too; an error if the value is not."""
    check_seed(request.seed, "--seed")
    option_words.check_json(request.json)
    paper = Certificate.load(request.certificate)
    model = load.model_with_weights(request.model, request.weights, request.seed)
    with progress() as doing:
        doing("computing the bound anew")
        found = verify(paper, model)
    say = terminal().print
    anew = found.proven
    said = "The certificate holds" if found.holds else "The certificate is reproduced, and its value is not proven"
    say(f"{said}: {paper}", soft_wrap=True, markup=False)
    say(f"Reproduced: {found.replay.value}", soft_wrap=True, markup=False)
    say(f"Computed anew: {_digits(anew)} ({anew.kind.value})", soft_wrap=True, markup=False)
    numbers = {"bound": _digits(anew), "kind": anew.kind.value, "norms": str(anew.metric), "region": str(anew.region)}
    write_json(
        request.json,
        {
            "certificate": str(request.certificate), "model": request.model, "holds": found.holds,
            "reproduced": found.replay.value, "recorded": paper.value, "confirmed": found.value,
            "anew": {**numbers, "failure": anew.failure},
        },
    )  # fmt: skip
    if not found.holds:
        raise NotProvenError(
            f"Fresh draws prove {_digits(anew)}, more than the recorded {paper.value:.10g}; use the larger value."
        )


def print_layers(rows: list[LayerRow], say: Say, width: int) -> None:
    """Each block of the network with its norm, its part of the bound, and what fusing its operations saved.

    A window too narrow for the table gets lines: a number that is cut off would be another number.
    """
    made = table("Layer by layer", ">row", "+where", "+operator", ">norm", "kind", ">share", ">fusing saved")
    for row in rows:
        norm, share = (
            layer_norm(row.log_norm, row.kind, 5),
            "" if row.share is None else f"{round(row.share, 3) + 0.0:.1%}",
        )
        saved = "" if row.saved is None else f"x {row.saved:.4g}"
        if width >= _WIDE:
            made.add_row(
                str(row.row), escape_markup(row.origin), escape_markup(row.operator), norm, row.kind.value, share, saved
            )
            continue
        say(f"{row.row}  {row.origin}: {row.operator}", markup=False, highlight=False)
        parts = [f"norm {norm} ({row.kind.value})", share and f"share {share}", saved and f"fusing saved {saved}"]
        say(f"   {', '.join(part for part in parts if part)}", markup=False, highlight=False)
    if width >= _WIDE:
        say(made)


def _print_summary(say: Say, model: str, subject: Subject, bound: Bound, method: Method, seconds: float) -> None:
    lines = {
        "model": f"{model}, {len(subject.network.nodes)} operations, inputs {subject.network.source}",
        "bound": f"{_digits(bound)} ({bound.kind.value}, {bound.metric})",
        "lower bound": "not known" if bound.lower is None else f"{_digits(bound.lower)} ({bound.lower.kind.value})",
        "ratio": "not known" if bound.lower is None else f"{math.exp(_log(bound) - _log(bound.lower)):.4g}",
        "region": str(bound.region),
        "method": str(winner(bound, method)[0]),
        "failure": f"at most {bound.failure:.0e}" if bound.failure else "none: deterministic",
        "seconds": f"{seconds:.2f}",
    } | ({"note": bound.note} if bound.note else {})
    for name, text in lines.items():
        say(f"{name:>12}  {text}", soft_wrap=True, markup=False, highlight=False)


def _region(request: BoundRequest, center: Tensor | None, source: Shape) -> Region:
    """The region asked for, in the input space of the network."""
    if request.ball is not None:
        assert center is not None
        return option_words.make_ball(request.ball, center, source, request.metric.p_in)
    return Everywhere() if request.box is None else option_words.parse_box(request.box, source)


def _dtype(model: Program) -> torch.dtype:
    """The precision of the parameters, in which an example is drawn."""
    tensors = [] if not isinstance(model, nn.Module) else [*model.parameters(), *model.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


def _digits(bound: Bound) -> str:
    """Six digits, rounded to the safe side, so that what is printed is a bound too."""
    return constant(_log(bound), bound.kind, 6)


def _log(bound: Bound) -> float:
    return float(bound.log_value.detach())
