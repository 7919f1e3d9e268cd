"""`lipkit certify --regression`: how far each output can move when the input moves, for all inputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from lipkit._runtime import time_limit
from lipkit.bound import Bound, Kind
from lipkit.bounds import Method
from lipkit.bounds.lipschitz import bound_in_time, budget_of, network_of
from lipkit.certify import Forward
from lipkit.certify.evaluate.disproof import refuse_disproved
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.console import progress, terminal
from lipkit.cli.inputs.model_fits_data import require_finite, run_on_first
from lipkit.cli.runs.result_files import write_json
from lipkit.errors import ArgumentError, LipkitError
from lipkit.regions import Everywhere
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
        given = self.model(x)
        # One number for each input may come without an axis of its own.
        return nn.functional.pad(given.flatten(1) if given.ndim > 1 else given.unsqueeze(1), (0, 1))


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
    request: EvaluationRequest,
    model: nn.Module,
    inputs: Tensor,
    methods: Sequence[Method],
    find: Callable[[nn.Module, Tensor], Bound],
) -> Movement:
    """The constant of each output, and what it says within the radii asked for; printed, and written where wanted.

    `find` gives the constants of all pairs of outputs of a model; the constant of the whole model by `methods` counts
    where it is smaller. The first inputs are tried against them. Cost: `find`, and `methods`.
    """
    _check_options(request)
    given = run_on_first(model, inputs, request.model, request.data)
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim < 1 or len(given) != 1:
        got = (
            f"shape {tuple(given.shape)}, {given.dtype}," if isinstance(given, Tensor) else f"a {type(given).__name__}"
        )
        raise ArgumentError(
            f"{request.model} gives {got} for one input, expected floating point of shape (1, outputs) or (1,); "
            "wrap the model in one that does."
        )
    require_finite(given, request.model, request.data)
    goal, whole = request.goal, WithZero(model).eval()
    with progress() as doing, torch.no_grad():
        doing(f"bounding the outputs by {request.method}")
        bound = find(whole, inputs[:1])
        for method in methods:
            bound = _with_whole(bound, whole, inputs[:1], method)
    refuse_disproved(whole, Forward(whole, inputs[:1]), inputs, bound)
    found = Movement(tuple(bound.value[:-1, -1].tolist()), goal.eps, goal.p, bound.failure, bound.how)
    terminal().print(str(found), soft_wrap=True, markup=False, highlight=False)
    write_json(request.json, found.plain())
    return found


def _check_options(request: EvaluationRequest) -> None:
    """Refuse options that need classes, by their names."""
    given = {
        "--out": request.out is not None,
        "--local": request.local,
        "--classes": request.classes is not None,
        "lipkit attack": bool(request.steps),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise ArgumentError(
            f"--regression has no classes to attack, to name or to report, so {' and '.join(wrong)} does not fit; "
            "use lipkit certify --regression, with --json for a file."
        )


def _with_whole(pairs: Bound, model: WithZero, example: Tensor, method: Method) -> Bound:
    """Constants of pairs, where those with the zero are at most the constant of all outputs together.

        |f_i(x) - f_i(y)| <= ||f(x) - f(y)||_p   for every p >= 1

    Guarantee: UPPER. A method that measures inputs in another norm, or finds no constant, changes nothing.
    """
    try:
        with time_limit(budget_of(method)):
            whole = bound_in_time(network_of(model.model, example, None, None), method, Everywhere())
    except LipkitError:
        return pairs
    smaller = pairs.log_value[-1] > whole.log_value
    # The zero differs from itself by nothing.
    smaller[-1] = False
    if not whole.kind.certifies or whole.metric.p_in != pairs.metric.p_in or not bool(smaller.any()):
        return pairs
    log_value = pairs.log_value.clone()
    log_value[-1, smaller] = log_value[smaller, -1] = whole.log_value
    # Chosen by looking at both, so failures add.
    failure = pairs.failure + whole.failure
    how = f"the smaller of: {pairs.how}; {whole.how}, of all outputs together"
    return replace(
        pairs, log_value=log_value, kind=Kind.UPPER, method=how, failure=failure, lower=None, witness=None, draws=None
    )
