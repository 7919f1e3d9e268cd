"""Functions of one variable that a model spells out in several operations: sin(x)^2, sqrt(1 + x^2), exp(-x^2), ..."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.linops import LinearOperator, Reshape
from lipkit.trace.network import Network
from lipkit.trace.nodes import Pointwise, Product
from lipkit.trace.nodes.activations.composed import Composed
from lipkit.trace.nodes.activations.periodic import Sine, SquaredSine
from lipkit.trace.nodes.activations.powers import exponent_of
from lipkit.trace.nodes.activations.steps import Applied, Combined, Multiplied, Step
from lipkit.trace.rewrites.entrywise_functions import Combination, Entries
from lipkit.trace.rewrites.exchange_rows import Rewriting

# Longer formulas stay as they are.
_LONGEST = 24


def merge_functions(network: Network) -> Network:
    """The same function with formulas of one value as one activation each.

    Products and squares have no constant on the whole space, while many formulas made of them have. A formula is
    merged if an operation in it has none and the whole has; all others stay.
    """
    forms, rewriting = _Forms(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        form = forms.of(k)
        if form is None or not form.grows or not form.is_lipschitz:
            continue
        shape = node.target
        row: dict[int, LinearOperator] = {}
        for j, rate in form.base.terms:
            op: LinearOperator = Reshape(network.shape_of(j), shape)
            row[j] = op if rate == 1 else op * rate
        rewriting.replace(k, Pointwise(form.activation, shape), row)
    return rewriting.result()


@final
@dataclass(frozen=True)
class _Form:
    """A value as steps from a combination of rows; `grows` says that a step has no constant on the whole space."""

    base: Combination
    steps: tuple[Step, ...] = ()
    grows: bool = False

    @property
    def activation(self) -> Composed:
        names = [str(step.activation) for step in self.steps if isinstance(step, Applied)]
        times = sum(isinstance(step, Multiplied) for step in self.steps)
        return Composed(f"formula of {', '.join([*dict.fromkeys(names), *['product'] * bool(times)])}", self.steps)

    @property
    def is_lipschitz(self) -> bool:
        return _has_constant(Pointwise(self.activation, ()))


class _Forms:
    """Values of a network as functions of one value before them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._entries = Entries(network)
        self._known: dict[int, _Form | None] = {}

    def of(self, k: int) -> _Form | None:
        """The form of y_k; None if it is a function of nothing single, and then a variable for what follows."""
        if k not in self._known:
            found = self._read(k) if k else None
            self._known[k] = found if found is None or len(found.steps) <= _LONGEST else None
        return self._known[k]

    def _read(self, k: int) -> _Form | None:
        node = self._network.nodes[k - 1]
        activation = self._entries.activation(k)
        # A kink would lie where the argument meets it, which only a number could say.
        if activation is not None and not activation.tensors() and not activation.kinks:
            inner = self._entries.input_of(k)
            if inner is None or not inner.terms:
                return None
            form = self._combined(inner)
            steep = form.grows or not _has_constant(Pointwise(activation, ()))
            last = form.steps[-1] if form.steps else None
            if exponent_of(activation) == 2 and isinstance(last, Applied) and isinstance(last.activation, Sine):
                # Far out no more is known of a sine than that it lies in [-1, 1]; its square has slope 1, not 2.
                wave = Applied(SquaredSine(last.activation.quarters), last.inner)
                return _Form(form.base, (*form.steps[:-1], wave), steep)
            return _Form(form.base, (*form.steps, Applied(activation, len(form.steps))), steep)
        if isinstance(node, Product) and math.prod(node.left) == math.prod(node.right) == math.prod(node.target):
            rows = self._entries.factors(k)
            return None if rows is None else self._product(*rows)
        return None

    def _product(self, first: int, second: int) -> _Form | None:
        forms = [self._combined(self._entries.value(row)) for row in (first, second)]
        if not all(form.base.terms for form in forms) or forms[0].base != forms[1].base:
            return None
        steps, ends = _joined(forms)
        return _Form(forms[0].base, (*steps, Multiplied(*ends)), True)

    def _combined(self, value: Combination) -> _Form:
        """A sum as a form: of the one variable that all its terms are functions of, or a variable by itself."""
        forms = [self.of(row) or _Form(Combination(((row, 1.0),))) for row, _ in value.terms]
        if len({form.base for form in forms}) == 1:
            base, rates = forms[0].base, [rate for _, rate in value.terms]
        else:
            # A variable of its own, the same one for all multiples.
            first = value.terms[0][1] if value.terms else 1.0
            base = Combination(tuple((row, rate / first) for row, rate in value.terms))
            # A quotient that is rounded would be another function.
            if any(rate / first * first != rate for _, rate in value.terms):
                base, first = Combination(value.terms), 1.0
            forms, rates = [_Form(base)], [first]
        steps, ends = _joined(forms)
        if rates == [1.0] and not value.constant:
            return _Form(base, steps, forms[0].grows)
        total = Combined(tuple(zip(ends, rates, strict=True)), value.constant)
        return _Form(base, (*steps, total), any(form.grows for form in forms))


def _joined(forms: list[_Form]) -> tuple[tuple[Step, ...], list[int]]:
    """The steps of several forms of one variable, one after the other, and where each of them ends."""
    steps: list[Step] = []
    ends: list[int] = []
    for form in forms:
        shift = len(steps)

        def moved(i: int, shift: int = shift) -> int:
            return i + shift if i else 0

        for step in form.steps:
            match step:
                case Combined(terms, constant):
                    steps.append(Combined(tuple((moved(i), rate) for i, rate in terms), constant))
                case Multiplied(first, second):
                    steps.append(Multiplied(moved(first), moved(second)))
                case Applied(activation, inner):
                    steps.append(Applied(activation, moved(inner)))
        ends.append(len(steps) if form.steps else 0)
    return tuple(steps), ends


def _has_constant(node: Pointwise) -> bool:
    return bool(node.log_constant(2.0) < torch.inf)
