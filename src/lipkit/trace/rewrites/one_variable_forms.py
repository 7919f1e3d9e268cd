"""Values as functions of one value before them, in steps."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.linops import LinearOperator, Reshape, Shape
from lipkit.trace.network import Network, Row
from lipkit.trace.nodes import Interpolation, PiecewiseLinear, Pointwise, Product
from lipkit.trace.nodes.activations.formula_steps import Applied, Chosen, Combined, Draft, Multiplied
from lipkit.trace.nodes.activations.indicator import Indicator
from lipkit.trace.nodes.activations.periodic import Sine, SquaredSine
from lipkit.trace.nodes.activations.powers import exponent_of
from lipkit.trace.rewrites.entrywise_functions import Combination, Entries

# Longer formulas stay as they are.
_LONGEST = 24


@final
@dataclass(frozen=True)
class Form:
    """A value as steps from a combination of rows.

    `grows` says that a step has no constant on the whole space, `exact` that all its numbers are as in the model.
    """

    base: Combination
    steps: tuple[Draft, ...] = ()
    grows: bool = False
    exact: bool = True

    @property
    def label(self) -> str:
        """Its operations, for people."""
        names = [str(step.activation) for step in self.steps if isinstance(step, Applied)]
        times = sum(isinstance(step, Multiplied) for step in self.steps)
        return f"formula of {', '.join([*dict.fromkeys(names), *['product'] * bool(times)])}"

    @property
    def is_straight(self) -> bool:
        """Whether it is made of straight pieces, as far as its activations say."""
        kinds = (PiecewiseLinear, Indicator)
        return all(isinstance(step.activation, kinds) for step in self.steps if isinstance(step, Applied))

    @property
    def compares(self) -> bool:
        """Whether a comparison is in it."""
        return any(isinstance(step, Applied) and isinstance(step.activation, Indicator) for step in self.steps)


class Forms:
    """Values of a network as functions of one value before them.

    A kink lies where the argument meets it, which only straight arguments say. So functions with kinks are variables
    for what follows, unless forms are read `through_kinks`.
    """

    def __init__(self, network: Network, through_kinks: bool = False) -> None:
        self._network = network
        self._through_kinks = through_kinks
        self._entries = Entries(network)
        self._known: dict[int, Form | None] = {}

    def of(self, k: int) -> Form | None:
        """The form of y_k; None if it is a function of nothing single, and then a variable for what follows."""
        if k not in self._known:
            found = self._read(k) if k else None
            self._known[k] = found if found is None or len(found.steps) <= _LONGEST else None
        return self._known[k]

    def row(self, form: Form, shape: Shape) -> Row:
        """The operators that give the variable of a form, in this shape."""
        found: Row = {}
        for j, rate in form.base.terms:
            op: LinearOperator = Reshape(self._network.shape_of(j), shape)
            found[j] = op if rate == 1 else op * rate
        return found

    def of_sum(self, k: int) -> Form | None:
        """The form of row k where it only adds and scales."""
        value = self._entries.value(k)
        return self._combined(value) if value.terms else None

    def _read(self, k: int) -> Form | None:
        node = self._network.nodes[k - 1]
        activation = self._entries.activation(k)
        if isinstance(node, Interpolation):
            return self._choice(k, node) if self._through_kinks else None
        if activation is not None and not activation.tensors() and (self._through_kinks or not activation.kinks):
            inner = self._entries.input_of(k)
            if inner is None or not inner.terms:
                return None
            form = self._combined(inner)
            if activation.kinks and not form.is_straight:
                return None
            steep = form.grows or not has_constant(Pointwise(activation, ()))
            last = form.steps[-1] if form.steps else None
            if exponent_of(activation) == 2 and isinstance(last, Applied) and isinstance(last.activation, Sine):
                # Far out no more is known of a sine than that it lies in [-1, 1]; its square has slope 1, not 2.
                wave = Applied(SquaredSine(last.activation.quarters), last.inner)
                return Form(form.base, (*form.steps[:-1], wave), steep, form.exact)
            return Form(form.base, (*form.steps, Applied(activation, len(form.steps))), steep, form.exact)
        if isinstance(node, Product) and math.prod(node.left) == math.prod(node.right) == math.prod(node.target):
            rows = self._entries.factors(k)
            return None if rows is None else self._product(*rows)
        return None

    def _product(self, first: int, second: int) -> Form | None:
        forms = [self._combined(self._entries.value(row)) for row in (first, second)]
        if not all(form.base.terms for form in forms) or forms[0].base != forms[1].base:
            return None
        steps, ends = _joined(forms)
        return Form(forms[0].base, (*steps, Multiplied(*ends)), True, all(form.exact for form in forms))

    def _choice(self, k: int, node: Interpolation) -> Form | None:
        """Choose between two values or numbers by a comparison."""
        rows = self._entries.joined(k, (math.prod(node.size),) * 3)
        if rows is None:
            return None
        weight = self._combined(self._entries.value(rows[0]))
        if not weight.compares:
            return None
        forms = [weight, *(self._beside(weight.base, row) for row in rows[1:])]
        base = weight.base
        if any(form.base != base for form in forms):
            return None
        steps, ends = _joined(forms)
        return Form(base, (*steps, Chosen(*ends)), True, all(form.exact for form in forms))

    def _beside(self, base: Combination, row: int) -> Form:
        """The form of a row that may be a number, which is a function of everything."""
        number, value = self._entries.fixed(row), self._entries.value(row)
        if number is None and not value.terms:
            number = value.constant
        return self._combined(value) if number is None else Form(base, (Combined((), number),), exact=value.exact)

    def _combined(self, value: Combination) -> Form:
        """A sum as a form: of the one variable that all its terms are functions of, or a variable by itself."""
        forms = [self.of(row) or Form(Combination(((row, 1.0),))) for row, _ in value.terms]
        if len({form.base for form in forms}) == 1:
            base, rates = forms[0].base, [rate for _, rate in value.terms]
        else:
            # A variable of its own, the same one for all multiples.
            first = value.terms[0][1] if value.terms else 1.0
            base = Combination(tuple((row, rate / first) for row, rate in value.terms))
            # A quotient that is rounded would be another function.
            if any(rate / first * first != rate for _, rate in value.terms):
                base, first = Combination(value.terms), 1.0
            forms, rates = [Form(base)], [first]
        steps, ends = _joined(forms)
        exact = value.exact and all(form.exact for form in forms)
        if rates == [1.0] and not value.constant:
            return Form(base, steps, forms[0].grows, exact)
        total = Combined(tuple(zip(ends, rates, strict=True)), value.constant)
        return Form(base, (*steps, total), any(form.grows for form in forms), exact)


def _joined(forms: list[Form]) -> tuple[tuple[Draft, ...], list[int]]:
    """The steps of several forms of one variable, one after the other, and where each of them ends."""
    steps: list[Draft] = []
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
                case Chosen(weight, first, second):
                    steps.append(Chosen(moved(weight), moved(first), moved(second)))
        ends.append(len(steps) if form.steps else 0)
    return tuple(steps), ends


def has_constant(node: Pointwise) -> bool:
    """Whether a node has a finite constant."""
    return bool(node.log_constant(2.0) < torch.inf)
