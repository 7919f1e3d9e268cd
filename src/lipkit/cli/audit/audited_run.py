"""A run as its folder describes it: the model with its weights, the data, the goal and the method, built anew."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.cli.audit.findings import Findings
from lipkit.cli.commands.evaluate import find_constants, methods_of
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.smooth_model import find_constant
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.inputs import load
from lipkit.cli.inputs.device import device_of
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.runs.assessment import hash_sources, take_samples
from lipkit.cli.runs.claimed_folder import describe_hashes
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.run import Order, load_recipe, name_after_folder, source
from lipkit.cli.training import Goal, Recipe
from lipkit.cli.training.recipe import plain_fields
from lipkit.data import Examples
from lipkit.errors import ArgumentError
from lipkit.report.results.about import Prints

ANEW = "the run was changed or is of other code: take the original, or run the command of run.json again"


@final
@dataclass(frozen=True)
class Places:
    """Where an auditor has the parts of a run, None where they lie as the command of the run says."""

    model: str | None
    weights: Path | None
    data: str | None
    device: str | None


@final
@dataclass(frozen=True, eq=False)
class AuditedRun:
    """The parts of a run; `recipe` is None for a model that was given as it is."""

    folder: Path
    command: str
    recipe: Recipe | None
    model: nn.Module
    weights: Path
    test: Examples
    goal: Goal
    seed: int
    prints: Prints
    fields: Mapping[str, str]
    device: torch.device
    # Whether it was made on a device of this type.
    at_home: bool
    find: Callable[[], Bound]

    @property
    def example(self) -> Tensor:
        """The input that the model is captured with."""
        return self.test.inputs[:1].to(self.device)

    @classmethod
    def rebuild(cls, folder: Path, places: Places, findings: Findings) -> "AuditedRun":
        """The run of a folder; what contradicts its run.json is noted. Executes the file of the recipe or model."""
        identity = Identity.read(folder)
        request = read_command(identity.command)
        make = _of_recipe if isinstance(request, Order) else _of_model
        found = make(folder, identity, request, places, findings)  # pyright: ignore[reportArgumentType]
        for what, says, here in (
            ("the hash of the code", identity.source, found.prints.code),
            ("the recipe", identity.recipe, "" if found.recipe is None else type(found.recipe).__name__),
        ):
            if says != here:
                findings.differ(folder / "run.json", what, says, here, ANEW)
        check_settings(folder, found.fields, findings, leave_out="data")
        return found


def check_settings(folder: Path, found: Mapping[str, str], findings: Findings, leave_out: str = "") -> None:
    """Note every setting, and every hash, in which the run.json of a folder differs from what was found."""
    said = Identity.read(folder).fields
    for name in sorted({*said, *found} - {leave_out}):
        if said.get(name) != found.get(name):
            findings.differ(folder / "run.json", f"the setting {name}", said.get(name), found.get(name), ANEW)


def _of_recipe(folder: Path, identity: Identity, order: Order, places: Places, findings: Findings) -> AuditedRun:
    file = order.recipe if places.model is None else Path(places.model)
    if not file.is_file():
        raise ArgumentError(f"The recipe {file} is not here; name its file with --model.")
    recorded = order.data
    order = replace(order, recipe=file, data=recorded if places.data is None else Path(places.data))
    recipe, device = load_recipe(order), device_of(places.device or order.device)
    goal = recipe.goal
    if goal is None:
        raise ArgumentError(
            f"{folder} holds the weights of {type(recipe).__name__} and claims nothing of them; name the --out of "
            "`lipkit smooth`."
        )
    torch.manual_seed(recipe.seed)
    sets = recipe.sets()
    test = name_after_folder(take_samples(recipe.evaluated(sets.test), goal), recorded)
    model = recipe.model()
    weights = folder / "model.safetensors"
    with findings.reading(weights):
        load.weights(model, weights)
    model.to(device).eval()
    return AuditedRun(
        folder, identity.command, recipe, model, weights, test, goal, recipe.seed,
        hash_sources(_hash(weights), test, source(recipe)), plain_fields(recipe), device,
        device.type == device_type(order.device), lambda: recipe.bound(model, test.inputs[:1].to(device)),
    )  # fmt: skip


def _of_model(
    folder: Path, identity: Identity, request: EvaluationRequest | SmoothRequest, places: Places, findings: Findings
) -> AuditedRun:
    own, recorded = request.weights is None, Path(request.data).name
    request = replace(request, model=places.model or request.model, data=places.data or request.data)
    weights = places.weights or request.weights or folder / "model.safetensors"
    device = device_of(places.device or request.device)
    made = load.model_with_weights(request.model, None, request.seed)
    if not isinstance(made, nn.Module):
        raise ArgumentError("Data are evaluated on a model of a Python file; a .pt2 program has a fixed batch.")
    model = made.eval()
    if own and weights.is_file() and model_to(model) != weights.read_bytes():
        findings.refuse(weights, f"{weights} has other weights than {request.model} makes; {ANEW}.")
    with findings.reading(weights):
        load.weights(model, weights)
    goal = request.goal
    model, test = request.adaptation.adapt(model, request.test_set(), request.model, request.data)
    # The file of a table gives it its name, and may have another now.
    test = replace(test, name=recorded) if recorded.endswith((".npz", ".csv")) else test
    model.to(device)
    file, _, name = request.model.rpartition(":")
    prints = hash_sources(_hash(weights), test, _hash(Path(file)))
    fields = {"model": name, **request.options, **describe_hashes(prints)}
    example = test.inputs[:1].to(device)
    if isinstance(request, SmoothRequest):
        smooth = request
        find = lambda: find_constant(smooth, model, example)  # noqa: E731 - beside its twin below
    else:
        methods = methods_of(request)
        find = lambda: find_constants(model, example, methods, goal.p)  # noqa: E731
    return AuditedRun(
        folder, identity.command, None, model, weights, test, goal, request.seed, prints, fields, device,
        device.type == device_type(request.device), find,
    )  # fmt: skip


def device_type(name: str) -> str:
    """The type in the name of a device."""
    return name.partition(":")[0]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def plain_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state on the CPU."""
    return {name: value.detach().cpu() for name, value in state.items() if isinstance(value, Tensor)}
