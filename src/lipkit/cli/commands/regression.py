"""`lipkit certify --regression`: how far each output can move when the input moves, for all inputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.certify import Forward
from lipkit.certify.evaluate.disproof import refuse_disproved
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.console import progress, terminal
from lipkit.cli.inputs.model_fits_data import require_finite, run_on_first
from lipkit.cli.runs.result_files import write_json
from lipkit.errors import ArgumentError
from lipkit.report.html.numbers import digits


@final
class WithZero(nn.Module):
    """The outputs of a model, flattened, and a zero: differences of two of them have the outputs themselves among them.

    So constants of pairs are constants of single outputs, and every method for pairs bounds a regression.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Outputs and zero."""
        return nn.functional.pad(self.model(x).flatten(1), (0, 1))


@final
@dataclass(frozen=True)
class Movement:
    """How far the outputs move: a constant for each, and with it the change within each radius, all upper bounds."""

    constants: tuple[float, ...]
    eps: tuple[float, ...]
    p: float
    failure: float
    how: str

    def within(self, output: int, eps: float) -> float:
        """The most that an output moves while the input moves by `eps`, rounded up: K eps."""
        return math.nextafter(self.constants[output] * eps, math.inf)

    def __str__(self) -> str:
        lines = [f"Within each radius in l{self.p:g}, for all inputs, the outputs move by at most:"]
        for i, constant in enumerate(self.constants):
            most = [digits(self.within(i, e), Kind.UPPER, 6) for e in self.eps]
            moved = ", ".join(f"{one} within {said_radius(e)}" for one, e in zip(most, self.eps, strict=True))
            lines.append(f"output {i}: {moved} (constant {digits(constant, Kind.UPPER, 6)})")
        if self.failure:
            lines.append(f"The constants come from a randomised method and fail with probability {self.failure:.1g}.")
        return "\n".join(lines)

    def plain(self) -> dict[str, object]:
        """As JSON."""
        outputs = [
            {"constant": constant, "moves": [{"eps": e, "at_most": self.within(i, e)} for e in self.eps]}
            for i, constant in enumerate(self.constants)
        ]
        norm = "inf" if math.isinf(self.p) else self.p
        return {"norm": norm, "kind": "upper", "failure": self.failure, "method": self.how, "outputs": outputs}


def bound_outputs(
    request: EvaluationRequest, model: nn.Module, inputs: Tensor, find: Callable[[nn.Module, Tensor], Bound]
) -> Movement:
    """The constant of each output, and what it says within the radii asked for; printed, and written where wanted.

    `find` gives the constants of all pairs of outputs of a model. The first inputs are tried against them.
    Cost: `find`.
    """
    if request.out is not None or request.steps or request.local or request.classes is not None:
        raise ArgumentError("--regression has no classes to attack, to name or to report; use it with --json alone.")
    given = run_on_first(model, inputs, request.model, request.data)
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim < 1 or len(given) != 1:
        raise ArgumentError(
            f"{request.model} gives a {type(given).__name__} for one input, expected one row of numbers."
        )
    require_finite(given, request.model, request.data)
    goal, whole = request.goal, WithZero(model).eval()
    with progress() as doing, torch.no_grad():
        doing(f"bounding the outputs by {request.method}")
        bound = find(whole, inputs[:1])
    refuse_disproved(whole, Forward(whole, inputs[:1]), inputs, bound)
    found = Movement(tuple(bound.value[:-1, -1].tolist()), goal.eps, goal.p, bound.failure, bound.how)
    terminal().print(str(found), soft_wrap=True, markup=False, highlight=False)
    write_json(request.json, found.plain())
    return found
