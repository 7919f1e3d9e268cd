"""Whether a network computes what its model computes: both are evaluated at the same points."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.fx import Node
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lipkit.errors import CaptureError
from lipkit.trace.exchanged_inputs import Exchange, GraphRun, NoAnswer, runnable_example
from lipkit.trace.measured_rounding import measure_rounding
from lipkit.trace.network import Network

# How many roundings of every intermediate value may come together in an answer. A sum of n products in one type is off
# by about sqrt(n) roundings: this covers a thousand of them, and torch adds up longer ones in blocks.
_ROUNDINGS = 32.0
_HALF_OF_FLOAT64 = 2.0**-26
# If this many samples and half of a batch differ, the cause is their common precision; fewer may be ill-conditioned.
_MANY = 8
# The type with the fewest digits that settings of torch let the products of float32 be rounded to.
_COARSEST_PRODUCTS = torch.bfloat16
# Entries of intermediate values held at a time, 256 MB.
_HELD = 2**25

# What a point is called, and the values of all sources there.
Point = tuple[str, list[Tensor]]


def refuse_disagreement(network: Network, running: Exchange, graph: GraphRun, steps: Sequence[Node]) -> str:
    """Refuse a network that differs from the model by more than rounding, at any point that is tried.

    A wrong rule would make every later number wrong, the lower bounds too, because all of them read the same network.
    The points are the example, zero and the example scaled down (where an eps shows), the example scaled up (where a
    limit shows), and two drawn inputs of its size. A point at which the model raises, is not finite, or overflows on
    the way says nothing. Where the model cannot be run with other values (`wrt` is a module whose result no hook can
    exchange, or the model runs while it is exported only), its exported graph takes its place.

    Args:
        steps: The operations that depend on the input. The narrowest type among them decides what rounding is.

    Gives why the network was not compared with the running model, in a sentence; nothing if it was. Cost: six
    evaluations of the model, and one of the network on six inputs in float64.
    """
    try:
        _refuse_difference(network, running, runnable_example(running), steps)
    except NoAnswer as error:
        try:
            _refuse_difference(network, graph, runnable_example(graph), steps)
        except NoAnswer:
            return f"The network was not compared with the running model, because {error}."
        return f"The network was compared with the exported graph, not with the running model, because {error}."
    return ""


def _refuse_difference(
    network: Network, exchange: Exchange | GraphRun, example: Sequence[Tensor], steps: Sequence[Node]
) -> None:
    dtype = _narrowest(example, steps)
    begin, *others = _points(example)
    answers = _answers(exchange, [begin])
    # Parametrized weights are computed once for the others. A module that is also called with other parameters is not
    # itself then, so every difference is looked at again without.
    with parametrize.cached():
        answers += _answers(exchange, others)
    if not answers:
        raise NoAnswer("its answer is NaN or infinite at every point that was tried")
    if not answers[0][2].numel():
        return
    inputs = torch.stack([_join(network, values) for _, values, _ in answers])
    for (name, values, answer), x, value in zip(answers, inputs, _values(network, inputs), strict=True):
        if answer.numel() != value.numel():
            raise CaptureError(
                f"The model gives {answer.numel()} numbers at {name}, its network {value.numel()}; shapes that depend "
                "on values have no network: make them fixed."
            )
        allowed = _share(dtype) * float(value.abs().max())
        error = _error(answer, value)
        if bool(error.max() <= allowed):
            continue
        answer = exchange(values)
        error = _error(answer, value)
        allowed += _ROUNDINGS * float(measure_rounding(network, x[None], value[None], dtype, example[0].dtype))
        if not bool(error.max() <= allowed) and not _overflows(exchange, values):
            first = _first_difference(network, exchange, values, x, dtype)
            raise _refusal(name, first, value, answer, error, allowed, dtype)


@final
class AnswerCheck:
    """Compares what a model answers as it runs with what its network computes, batch after batch.

    Answers that differ by more than a third of their digits are looked at more closely: how far roundings of the
    narrowest type that the model computes in move the answer is measured. What explains the differences of all samples
    that were measured so far is allowed without a closer look from then on, so that a model in half precision, or one
    whose products a setting rounds (TF32), is measured once and not in every batch.

    Args:
        network: The network, in float64.
        run: The model on a batch.

    Cost: next to nothing; for answers that are looked at, nine evaluations of the network and one of the model.
    """

    def __init__(self, network: Network, run: Callable[[Tensor], Tensor]) -> None:
        self._network, self._run, self._allowed = network, run, 0.0

    def refuse_differences(
        self,
        inputs: Tensor,
        values: Float64[Tensor, "batch outputs"],
        answers: Tensor,
        names: Sequence[str],
    ) -> None:
        """Refuse answers that rounding does not explain; `names` say what each sample is called.

        An answer that is not finite, or overflows on the way, is not compared.
        """
        sizes = values.abs().amax(1)
        error = _error(answers, values).amax(1)
        share = max(_share(_coarsest([answers.dtype, inputs.dtype])), self._allowed)
        rows = ((error > share * sizes) & torch.isfinite(error)).nonzero().flatten()
        if not len(rows):
            return
        with _Watch() as seen:
            self._run(inputs[rows])
        dtype = _coarsest([*seen.types, answers.dtype, inputs.dtype])
        x, value = inputs[rows].to(torch.float64), values[rows]
        moved = _ROUNDINGS * measure_rounding(self._network, x, value, dtype, inputs.dtype)
        allowed = _share(dtype) * sizes[rows] + moved
        for at in (error[rows] > allowed).nonzero().flatten().tolist():
            row = int(rows[at])
            if not _overflows(self._run, inputs[row : row + 1]):
                one = _error(answers[row], values[row])
                raise _refusal(names[row], "", values[row], answers[row], one, float(allowed[at]), dtype)
        usual = float((allowed / sizes[rows]).nan_to_num(0.0).min())
        # No more than a few times what the type explains. No result has the type that products are rounded to, so it
        # is known by what most of a batch shows.
        most = _COARSEST_PRODUCTS if len(rows) >= max(_MANY, len(inputs) / 2) else dtype
        self._allowed = max(share, min(usual, 4 * _share(_coarsest([dtype, most]))))


def _coarsest(types: Iterable[torch.dtype]) -> torch.dtype:
    """The type with the fewest digits."""
    return max(types, key=lambda one: torch.finfo(one).eps)


def _refusal(
    name: str, first: str, value: Tensor, answer: Tensor, error: Tensor, allowed: float, dtype: torch.dtype
) -> CaptureError:
    at = int(error.flatten().nan_to_num(torch.inf).argmax())
    network, model = float(value.flatten()[at]), float(answer.flatten()[at])
    return CaptureError(
        f"The network does not compute what the model computes: at {name} entry {at} of the output is {network:.6g} by "
        f"the network and {model:.6g} by the model, while roundings of {dtype} explain {allowed:.2g}{first}. If the "
        "model does something else while torch.export runs it (torch.compiler.is_exporting, a custom operation), make "
        "both ways compute the same; otherwise a rule of lipkit is wrong: report it with this model."
    )


def _first_difference(
    network: Network, exchange: Exchange | GraphRun, values: Sequence[Tensor], x: Tensor, dtype: torch.dtype
) -> str:
    """The first module whose result differs, as the end of a clause; modules with several results are left out."""
    results = exchange.results(values)
    rows = network.values(x[None])
    last = {network.origin(k).module: k for k in range(1, network.sink)}
    for module, result in results.items():
        # The model itself is no place to look for it.
        row = rows[last[module]] if module and module in last else None
        if row is None or row.numel() != result.numel():
            continue
        error = (result.to(row).flatten() - row.flatten()).abs().max()
        if not bool(error <= _share(dtype) * row.abs().max()):
            return f"; the first module that differs is {module!r}"
    return ""


def _narrowest(example: Sequence[Tensor], steps: Sequence[Node]) -> torch.dtype:
    """The floating-point type with the fewest digits, of the input and of all that is computed from it."""
    results = pytree.tree_leaves([*example, *(step.meta.get("val") for step in steps)])
    inexact = [t for t in results if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
    return _coarsest({t.dtype.to_real() for t in inexact})


def _share(dtype: torch.dtype) -> float:
    """How much of its largest entry an answer may differ without a closer look: a third of the digits.

    That is 2e-5 in float32. In float64 it is half of them: torch's softplus drops 2e-9 of 20, which its rule allows.
    """
    return max(torch.finfo(dtype).eps ** (2 / 3), _HALF_OF_FLOAT64)


def _points(example: Sequence[Tensor]) -> Iterator[Point]:
    """Where model and network are compared, in the types of the model."""
    generator = torch.Generator().manual_seed(0)
    # float16 ends at 2^-14 and 2^16, and squares of entries should not overflow.
    narrow = any(value.dtype == torch.float16 for value in example)
    small, large = (-12, 4) if narrow else (-20, 10)
    yield "the example", list(example)
    yield f"2^{small} times the example", [value * 2.0**small for value in example]
    yield "zero", [torch.zeros_like(value) for value in example]
    yield f"2^{large} times the example", [value * 2.0**large for value in example]
    for count in ("one", "another"):
        yield f"{count} drawn input", [_draw(value, generator) for value in example]


def _draw(value: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers of the size of the example's entries, or of size one if those are zero."""
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    size = float(value.double().square().mean().sqrt()) if value.numel() else 0.0
    return (noise * (size or 1.0)).to(value)


def _answers(exchange: Exchange | GraphRun, points: Sequence[Point]) -> list[tuple[str, list[Tensor], Tensor]]:
    """The points with what the model says there; it may raise because of its input, or leave the range of its type."""
    found: list[tuple[str, list[Tensor], Tensor]] = []
    for name, values in points:
        with contextlib.suppress(Exception):
            answer = exchange(values)
            if bool(torch.isfinite(answer).all()):
                found.append((name, values, answer))
    return found


def _error(answer: Tensor, value: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    return (answer.to(value).reshape(value.shape) - value).abs()


def _join(network: Network, values: Sequence[Tensor]) -> Float64[Tensor, "..."]:
    """The values of all sources as the one input of the network."""
    parts = [value.to(values[0].device, torch.float64).flatten() for value in values]
    return torch.cat(parts).reshape(network.source)


def _values(network: Network, inputs: Float64[Tensor, "points ..."]) -> Float64[Tensor, "points ..."]:
    """The network at these points, as many at a time as fit into memory."""
    entries = sum(math.prod(node.target) for node in network.nodes)
    return torch.cat([network(part) for part in inputs.split(max(1, _HELD // max(1, entries)))])


def _overflows(run: Callable[[Any], Tensor], values: Any) -> bool:
    """Whether an operation of the model gives an infinite number for finite ones."""
    with _Watch() as seen:
        run(values)
    return seen.overflow


@final
class _Watch(TorchDispatchMode):
    """Notes the floating-point types of all results inside, and whether any operation leaves the range of its type."""

    def __init__(self) -> None:
        super().__init__()
        self.overflow = False
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        # An infinite number that is put in, such as a mask, is none that came out.
        leaves = pytree.tree_leaves(result)
        self.types |= {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        if any(map(_infinite, leaves)):
            self.overflow |= not any(map(_infinite, pytree.tree_leaves((args, kwargs))))
        return result


def _infinite(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and bool(torch.isinf(value).any())
    return isinstance(value, float) and math.isinf(value)
