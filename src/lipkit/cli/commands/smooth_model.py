"""`lipkit smooth` and `lipkit recertify`: certificates by votes under noise, and others from the same votes."""

import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds.certificates.json_codec import from_plain
from lipkit.bounds.lipschitz import lipschitz
from lipkit.certify import smoothing as rs
from lipkit.certify.attacks import TwoClasses
from lipkit.cli.commands.evaluation_request import parse_norm, parse_radii
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.console import bar, progress, terminal
from lipkit.cli.inputs import load, option_words
from lipkit.cli.inputs.device import device_of
from lipkit.cli.inputs.smoothing_words import parse_smoothing_method
from lipkit.cli.options import argument, option
from lipkit.cli.runs.claimed_folder import ClaimedFolder
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.result_files import print_warnings, write_json
from lipkit.cli.runs.smoothing_files import (
    CERTIFICATES,
    VOTES,
    gather_report,
    plain_smoothing,
    publish_smoothing,
    read_certificates,
    write_certificates,
)
from lipkit.cli.runs.stored_bound import StoredBound, load_or_find_bound
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import ArgumentError
from lipkit.regions import Everywhere

# Of a log that no command wrote, which has no alpha on record.
_ALPHA = 0.001


def smooth_model(request: SmoothRequest) -> None:
    """Certify by votes under noise; print the shares, and write them and the report where wanted.

    The folder of `--out` then holds: run.json, the weights where no file was named for them, bound.safetensors with
    --lipschitz, votes/ with a line for each image, certificates.json, report.html and report.json. Under torchrun the
    processes share the images. Cost: n + n0 forward passes for each image.
    """
    option_words.check_json(request.json)
    check_seed(request.seed, "--seed")
    request.check()
    device = device_of(request.device)
    own = load.model_with_weights(request.model, request.weights, request.seed)
    if not isinstance(own, nn.Module):
        raise ArgumentError("Noisy copies are evaluated by a model of a Python file; a .pt2 program has a fixed batch.")
    model, test = request.adaptation.adapt(own.eval(), request.test_set(), request.model, request.data)
    if isinstance(model, TwoClasses) and not isinstance(own, TwoClasses):
        print(f"{request.model} gives one score: above 0 it says class 1, below class 0.", file=sys.stderr)
    team = Team.join(device)
    folder = None if request.out is None else ClaimedFolder.claim(request, request.out, own, test, team)
    with nullcontext() if folder is None else lock_folder(folder.path, team.leads):
        _certify(request, model.to(team.device), test, team, folder)
    team.leave()


def _certify(
    request: SmoothRequest, model: nn.Module, test: Examples, team: Team, folder: ClaimedFolder | None
) -> None:
    smoothed = make_smoothed(request, model, test)
    bound = None
    if request.lipschitz is not None:
        example = test.inputs[:1].to(team.device)

        def find() -> Bound:
            return find_constant(request, model, example)

        with progress() as doing, torch.no_grad():
            doing(f"bounding the model by {request.lipschitz}")
            path = None if folder is None else folder.path / "bound.safetensors"
            code = "" if folder is None else folder.hashes.code
            bound = find() if path is None else load_or_find_bound(path, model, example, code, find, team)
    if team.leads:
        load.print_weights_source(request.model, request.weights, model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            smoothed.warn_if_hopeless(request.n, request.alpha, request.statistics, bound)
        print_warnings([str(one.message) for one in caught])
    with bar("certifying") as show, warnings.catch_warnings(), casts(request, team.device):
        # Said above, in the words of this program.
        warnings.simplefilter("ignore", rs.TooFewSamplesWarning)
        found = rs.certify_data(
            smoothed, test, request.radii, n0=request.n0, n=request.n, alpha=request.alpha, method=request.statistics,
            bound=bound, p=request.p, seed=request.seed, block=request.block,
            records=None if folder is None else folder.path / VOTES,
            progress=lambda done, total: show(done, total, ""),
        )  # fmt: skip
    if team.leads:
        _print(found, request.json)
        if folder is not None:
            write_certificates(folder.path, found, team.device)
            contents = gather_report(
                folder.path, request.radii, request.alpha, request.method, request.statistics, bound
            )
            page = publish_smoothing(folder.path, contents)
            terminal().print(f"report in {page}", soft_wrap=True, markup=False, highlight=False)


def make_smoothed(request: SmoothRequest, model: nn.Module, test: Examples) -> rs.Smoothed:
    """The smoothed classifier that a request is about."""
    return rs.Smoothed(model, num_classes=len(test.classes), noise=request.law, simplex=request.votes)


def find_constant(request: SmoothRequest, model: nn.Module, example: Tensor) -> Bound:
    """The constant of --lipschitz: one for all logits together, l2 to l2, everywhere."""
    assert request.lipschitz is not None
    method = option_words.parse_method(request.lipschitz, option_words.parse_metric("2"), Everywhere(), None)
    return lipschitz(model, example, method)


def casts(request: SmoothRequest, device: torch.device) -> torch.autocast:
    """The casts of --precision, within which the model is evaluated."""
    return torch.autocast(device.type, request.autocast, request.autocast is not None)


@final
@dataclass(frozen=True)
class RecertifyRequest:
    """Other certificates from the votes of `lipkit smooth --out`, without running the model.

    Choose alpha and method before you see what they give: the best of several is no certificate.
    """

    run: Path = argument("The --out of smooth.", "RUN")
    alpha: float | None = option(
        "Probability that a radius is wrong, for each image; that of the run by default.", None
    )
    method: str | None = option(
        "intersection-union (the default), cohen, class-partition, bonferroni, low-variance or anytime:RADIUS; votes "
        "that anytime ended early are for it alone.",
        None,
    )
    eps: str = option("Radii of the table, in increasing order.", "0,0.25,0.5,0.75,1")
    norm: str | None = option("Norm of the radii; another one than the noise's is through that: 2, 1 or inf.", None)
    lipschitz: bool = option("Use the Lipschitz bound that the run found.", False, "--lipschitz")
    json: Path | None = option("File for the shares.", None)


def recertify_run(request: RecertifyRequest) -> None:
    """Print the shares by other settings; the folder of the run stays as it is."""
    option_words.check_json(request.json)
    votes = request.run / VOTES if (request.run / VOTES).is_dir() else request.run
    stop = rs.Log.read(votes).settings["stop"]
    if request.method is None:
        method = rs.IntersectionUnion() if stop is None else from_plain(stop["method"], rs.Method)
    else:
        method = parse_smoothing_method(request.method)
    alpha = request.alpha
    if alpha is None:
        alpha = float(read_certificates(request.run)["alpha"]) if (request.run / CERTIFICATES).is_file() else _ALPHA
    bound = None
    if request.lipschitz:
        path = request.run / "bound.safetensors"
        if not path.is_file():
            raise ArgumentError(f"{request.run} has no bound.safetensors; run smooth with --lipschitz first.")
        bound = StoredBound.read(path).bound
    found = rs.recertify(
        votes, parse_radii(request.eps), alpha=alpha, method=method, bound=bound,
        p=None if request.norm is None else parse_norm(request.norm),
    )  # fmt: skip
    _print(found, request.json)


def _print(found: rs.SmoothedEvaluation, json: Path | None) -> None:
    terminal().print(str(found), markup=False, highlight=False, soft_wrap=True)
    write_json(json, plain_smoothing(found))
