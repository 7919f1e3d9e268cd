"""`lipkit certify` and `lipkit attack`: a model from a file on data from a file."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import nn

from lipkit.certify import accuracy, head_pairwise
from lipkit.certify.attacks import PGD, EveryClass
from lipkit.cli import names
from lipkit.cli.bound import loaded, say_weights
from lipkit.cli.console import bar, progress, terminal
from lipkit.cli.datasets import test_set
from lipkit.cli.run import device_of
from lipkit.cli.shares import by_class, plain, write_json
from lipkit.data._seed import check_seed
from lipkit.errors import ArgumentError
from lipkit.regions import Everywhere


@final
@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line, as it was written."""

    model: str
    data: str
    eps: str
    weights: Path | None = None
    method: str = names.DEFAULT
    norm: str = "2"
    samples: int | None = None
    steps: int = 0
    restarts: int = 1
    every_class: bool = False
    box: str | None = None
    out: Path | None = None
    device: str = "cpu"
    seed: int = 0
    json: Path | None = None


def evaluate(wanted: Wanted) -> None:
    """Certify, and attack where steps are asked for; print the shares, and write them where wanted."""
    names.check_json(wanted.json)
    check_seed(wanted.seed, "--seed")
    eps, p = _radii(wanted.eps), _norm(wanted.norm)
    attack = _attack(wanted, eps, p)
    device = device_of(wanted.device)
    model = loaded(wanted.model, wanted.weights, wanted.seed)
    if not isinstance(model, nn.Module):
        raise ArgumentError("Data are evaluated on a model of a Python file; a .pt2 program has a fixed batch.")
    test = test_set(wanted.data)
    if wanted.samples is not None:
        test = test.at(range(min(wanted.samples, len(test))))
    model = model.to(device).eval()
    method = names.method(wanted.method, names.metric("2"), Everywhere(), None)
    with progress() as doing, torch.no_grad():
        doing(f"bounding the model by {wanted.method}")
        bound = head_pairwise(model, test.inputs[:1].to(device), method)
    say_weights(wanted.model, wanted.weights, model)
    with bar("evaluating") as show:
        found = accuracy(
            model, test, bound, eps, norm=p, attack=attack, records=wanted.out, seed=wanted.seed,
            progress=lambda done, total: show(done, total, ""),
        )  # fmt: skip
    say = terminal().print
    say(str(found), markup=False, highlight=False)
    say(by_class(found, test.classes), soft_wrap=True, markup=False, highlight=False)
    write_json(wanted.json, plain(found))


def _radii(text: str) -> list[float]:
    try:
        return [_fraction(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"--eps lists radii such as 0.1,0.5 or 36/255,72/255, got {text!r}.") from None


def _fraction(text: str) -> float:
    top, slash, bottom = text.partition("/")
    return float(top) / float(bottom) if slash else float(top)


def _norm(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if found not in (1.0, 2.0, math.inf):
        raise ArgumentError(f"--norm is 1, 2 or inf, got {text!r}.")
    return found


def _attack(wanted: Wanted, eps: list[float], p: float) -> PGD | None:
    if not wanted.steps:
        return None
    low, high = names.ends(wanted.box) if wanted.box else (-math.inf, math.inf)
    attack = PGD(max(eps), p, low, high, steps=wanted.steps, restarts=wanted.restarts)
    return replace(attack, objective=EveryClass()) if wanted.every_class else attack
