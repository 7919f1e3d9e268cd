"""`lipkit bound` and `lipkit verify`: a model from a file, its constant on the terminal, a certificate on disk."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds import Method
from lipkit.bounds.certificates.certificate import Certificate
from lipkit.bounds.certificates.issue import certified, table_on, winner
from lipkit.bounds.certificates.provenance import Subject
from lipkit.bounds.certificates.verify import verify
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.bounds.lipschitz import with_lower
from lipkit.bounds.model_to_network import Program, call_of
from lipkit.cli.console import escaped, progress, table, terminal
from lipkit.cli.inputs import load
from lipkit.cli.inputs import option_words as names
from lipkit.cli.inputs.device import device_of
from lipkit.cli.runs.result_files import write_json
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.regions import Everywhere, Region
from lipkit.report.html.numbers import constant, layer_norm

Say = Callable[..., None]
# Columns that the table of layers needs.
_WIDE = 76


@final
@dataclass(frozen=True)
class Request:
    """What was asked for on the command line, as it was written."""

    model: str
    shapes: tuple[str, ...] = ()
    weights: Path | None = None
    method: str = names.DEFAULT
    norm: str = "2"
    ball: float | None = None
    at: Path | None = None
    box: str | None = None
    budget: float | None = None
    lower: str = "sampling"
    wrt: tuple[str, ...] = ()
    output: str | None = None
    seed: int = 0
    json: Path | None = None
    device: str = "cpu"

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
        names.check_json(self.json)
        names.lower(self.lower, names.metric(self.norm), self.seed)
        if self.box is not None:
            names.ends(self.box)


@final
@dataclass(frozen=True, eq=False)
class Task:
    """A request with its model loaded: nothing that is wrong with the command line is found after this."""

    request: Request
    model: Program
    example: tuple[Tensor, ...]
    center: Tensor | None

    @classmethod
    def of(cls, request: Request) -> "Task":
        """Load what the request names; refuses with an `ArgumentError`."""
        device = device_of(request.device)
        model = loaded(request.model, request.weights, request.seed)
        if isinstance(model, nn.Module):
            model.to(device)
            if not request.shapes:
                raise ArgumentError("--shape is missing: the shape of one input without batch axis, such as 3,32,32.")
        elif device.type != "cpu":
            raise ArgumentError(f"A .pt2 program stays where it was made; leave out --device {request.device}.")
        example = tuple(one.to(device) for one in names.example(list(request.shapes), _dtype(model)))
        names.method(request.method, names.metric(request.norm), Everywhere(), request.budget)
        return cls(request, model, example, None if request.at is None else load.array(request.at).to(device))

    def region(self, source: Shape) -> Region:
        """The region asked for, in the input space of the network."""
        if self.request.ball is not None:
            assert self.center is not None
            p = names.metric(self.request.norm).p_in
            return names.ball(self.request.ball, self.center, source, p)
        return Everywhere() if self.request.box is None else names.box(self.request.box, source)


def loaded(target: str, weights: Path | None, seed: int) -> Program:
    """The model of a file with its weights; what it draws is drawn from `seed`."""
    torch.manual_seed(check_seed(seed, "--seed"))
    model = load.model(target)
    if weights is not None:
        if not isinstance(model, nn.Module):
            raise ArgumentError("A .pt2 program has its own weights; leave out --weights.")
        load.weights(model, weights)
    return model


def say_weights(target: str, weights: Path | None, model: Program) -> None:
    """Say on standard error where weights come from that no file was named for."""
    # Figures of a random network look like those of a trained one.
    if weights is None and isinstance(model, nn.Module) and model.state_dict():
        print(f"No --weights: the weights are those that {target} makes.", file=sys.stderr)


def run(task: Task) -> None:
    """Bound the model, print what was found, and write the certificate."""
    request, begin = task.request, time.perf_counter()
    metric = names.metric(request.norm)
    with progress() as doing:
        doing("capturing the model")
        call = call_of(task.model, task.example)
        subject = Subject.of(task.model, call, names.wrt(list(request.wrt)), names.output(request.output))
        region = task.region(subject.network.source)
        method = names.method(request.method, metric, region, request.budget)
        doing(f"bounding {len(subject.network.nodes)} operations by {request.method}")
        with torch.no_grad():
            bound = method(subject.network, region)
        seconds = time.perf_counter() - begin
        search = names.lower(request.lower, metric, request.seed)
        if search is not None and bound.lower is None and bound.kind.certifies:
            doing("searching for a lower bound")
            bound = with_lower(bound, search(subject.network.detach(), region))
        doing("measuring layer by layer")
        rows = table_on(subject.network, metric, region, savings=True)
    say_weights(request.model, request.weights, task.model)
    console = terminal()
    layers(rows, console.print, console.width)
    _summary(console.print, task, subject, bound, method, seconds)
    if request.json is not None:
        certified(bound, subject, method, region, rows, seconds).save(request.json)
        console.print(f"certificate in {request.json}", soft_wrap=True, markup=False, highlight=False)


def layers(rows: list[LayerRow], say: Say, width: int) -> None:
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
            made.add_row(str(row.row), escaped(row.origin), escaped(row.operator), norm, row.kind.value, share, saved)
            continue
        say(f"{row.row}  {row.origin}: {row.operator}", markup=False, highlight=False)
        parts = [f"norm {norm} ({row.kind.value})", share and f"share {share}", saved and f"fusing saved {saved}"]
        say(f"   {', '.join(part for part in parts if part)}", markup=False, highlight=False)
    if width >= _WIDE:
        say(made)


def _summary(say: Say, task: Task, subject: Subject, bound: Bound, method: Method, seconds: float) -> None:
    lines = {
        "model": f"{task.request.model}, {len(subject.network.nodes)} operations, inputs {subject.network.source}",
        "bound": f"{_digits(bound)} ({bound.kind.value}, {bound.metric})",
        "lower bound": "not known" if bound.lower is None else f"{_digits(bound.lower)} ({bound.lower.kind.value})",
        "ratio": "not known" if bound.lower is None else f"{math.exp(_log(bound) - _log(bound.lower)):.4g}",
        "region": str(bound.region),
        "method": str(winner(bound, method)),
        "failure": f"at most {bound.failure:.0e}" if bound.failure else "none: deterministic",
        "seconds": f"{seconds:.2f}",
    }
    for name, text in lines.items():
        say(f"{name:>12}  {text}", soft_wrap=True, markup=False, highlight=False)


def check(path: Path, target: str, weights: Path | None, seed: int, json: Path | None = None) -> None:
    """Verify a certificate against a model and say so, to a file too; a `CertificateError` otherwise."""
    check_seed(seed, "--seed")
    names.check_json(json)
    paper = Certificate.load(path)
    model = loaded(target, weights, seed)
    with progress() as doing:
        doing("computing the bound anew")
        found = verify(paper, model)
    say = terminal().print
    say(f"The certificate holds: {paper}", soft_wrap=True, markup=False)
    say(f"Computed anew: {_digits(found)} ({found.kind.value})", soft_wrap=True, markup=False)
    anew = {"bound": _digits(found), "kind": found.kind.value, "norms": str(found.metric), "region": str(found.region)}
    write_json(json, {"certificate": str(path), "model": target, "holds": True, "anew": anew})


def _dtype(model: Program) -> torch.dtype:
    """The precision of the parameters, in which an example is drawn."""
    tensors = [] if not isinstance(model, nn.Module) else [*model.parameters(), *model.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


def _digits(bound: Bound) -> str:
    """Six digits, rounded to the safe side, so that what is printed is a bound too."""
    return constant(_log(bound), bound.kind, 6)


def _log(bound: Bound) -> float:
    return float(bound.log_value.detach())
