"""Formulas with comparisons in exact arithmetic: where they switch, what they are between, and that nothing jumps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from lipkit.trace.network import Refusal
from lipkit.trace.nodes import Activation, Identity, PiecewiseLinear
from lipkit.trace.nodes.activations.composed import Composed
from lipkit.trace.nodes.activations.formula_steps import Applied, Chosen, Combined, Draft, Multiplied, Step
from lipkit.trace.nodes.activations.indicator import Indicator
from lipkit.trace.nodes.activations.smooth import Piecewise
from lipkit.trace.rewrites.exact_lines import Line, is_plain, straight
from lipkit.trace.rewrites.exact_values import exact_value

_REMEDY = "let both sides agree where it switches, or use an activation of torch"
# Formulas of comparisons have few pieces; more than this come from something else.
_MOST_PIECES = 64


Part = Line | tuple[Step, ...]


class _Cut(Exception):
    def __init__(self, at: Fraction) -> None:
        super().__init__(str(at))
        self.at = at


@final
@dataclass(frozen=True)
class _Piece:
    """A formula between two numbers, and where comparisons in it switch."""

    low: Fraction | float
    high: Fraction | float
    part: Part
    switches: frozenset[Fraction]


def continuous(steps: Sequence[Draft], label: str) -> Activation:
    """The function that the steps compute, as one activation; refused if it jumps or is not proven not to.

    Where a comparison switches, the values of both sides and of the point itself are computed in exact arithmetic.
    They are equal, or the formula is refused.
    """
    pieces = _pieces(steps, -math.inf, math.inf)
    for before, after in pairwise(pieces):
        at = before.high
        assert isinstance(at, Fraction)
        if at in before.switches | after.switches:
            _require_equal(steps, before.part, after.part, at)
    merged = [pieces[0]]
    for piece in pieces[1:]:
        last = merged[-1]
        if isinstance(piece.part, Line) and piece.part == last.part:
            merged[-1] = _Piece(last.low, piece.high, last.part, frozenset())
        else:
            merged.append(piece)
    knots = [_float(Fraction(piece.high)) for piece in merged[:-1]]
    return _assemble(label, tuple(knots), [piece.part for piece in merged])


def _require_equal(steps: Sequence[Draft], before: Part, after: Part, at: Fraction) -> None:
    here = _part_of(steps, at, at)[0]
    values = [part.at(at) if isinstance(part, Line) else exact_value(part, at) for part in (before, here, after)]
    place = f"{float(at):g}"
    if None in values:
        raise Refusal(
            f"switches at {place} between formulas whose values there are not known exactly, so it may jump", _REMEDY
        )
    if len(set(values)) > 1:
        first, middle, last = (float(value) for value in values if value is not None)
        between = f", {middle:g} at it," if middle not in (first, last) else ""
        far = f"from {first:g}{between} to {last:g}" if first != last or between else "by less than float64 shows"
        raise Refusal(f"jumps at {place} {far}, so it has no Lipschitz constant", _REMEDY)


def _pieces(steps: Sequence[Draft], low: Fraction | float, high: Fraction | float, depth: int = 0) -> list[_Piece]:
    """The formula on pieces of (low, high) on which no comparison switches and no activation has a kink."""
    try:
        part, switches = _part_of(steps, low, high)
    except _Cut as cut:
        if depth > _MOST_PIECES:
            raise Refusal(f"has more than {_MOST_PIECES} pieces", _REMEDY) from None
        return [*_pieces(steps, low, cut.at, depth + 1), *_pieces(steps, cut.at, high, depth + 1)]
    return [_Piece(low, high, part, switches)]


def _part_of(steps: Sequence[Draft], low: Fraction | float, high: Fraction | float) -> tuple[Part, frozenset[Fraction]]:
    """The formula on (low, high), or at the point where both are one; `_Cut` if it has to be divided."""
    reader = _Reader(low, high)
    for step in steps:
        reader.read(step)
    last = reader.found[-1]
    if isinstance(last, Line):
        return last, frozenset(reader.switches)
    return _only_needed(reader.made, last), frozenset(reader.switches)


class _Reader:
    """Steps on one piece: straight ones as lines, others as steps that refer to each other."""

    def __init__(self, low: Fraction | float, high: Fraction | float) -> None:
        self.low, self.high = low, high
        self.found: list[Line | int] = [Line(Fraction(1), Fraction(0))]
        self.made: list[Step] = []
        self.switches: set[Fraction] = set()

    def read(self, step: Draft) -> None:
        """One step more."""
        match step:
            case Combined(terms, constant):
                self.found.append(self._sum([(self.found[i], Fraction(rate)) for i, rate in terms], Fraction(constant)))
            case Multiplied(first, second):
                self.found.append(self._product(self.found[first], self.found[second]))
            case Chosen(weight, first, second):
                chosen = self.found[weight]
                if chosen not in (_ZERO, _ONE):
                    raise Refusal("chooses by something that is not 0 or 1", _REMEDY)
                self.found.append(self.found[first if chosen == _ZERO else second])
            case Applied(activation, inner):
                self.found.append(self._apply(activation, self.found[inner]))

    def _sum(self, terms: list[tuple[Line | int, Fraction]], constant: Fraction) -> Line | int:
        rate, shift, curved = Fraction(0), constant, dict[int, Fraction]()
        for value, factor in terms:
            if isinstance(value, Line):
                rate, shift = rate + factor * value.rate, shift + factor * value.shift
            else:
                curved[value] = curved.get(value, Fraction(0)) + factor
        curved = {i: factor for i, factor in curved.items() if factor}
        if not curved:
            return Line(rate, shift)
        if not rate and not shift and list(curved.values()) == [Fraction(1)]:
            return next(iter(curved))
        first = [(0, _float(rate))] if rate else []
        return self._emit(Combined((*first, *((i, _float(f)) for i, f in curved.items())), _float(shift)))

    def _product(self, first: Line | int, second: Line | int) -> Line | int:
        if isinstance(second, Line) and (not isinstance(first, Line) or first.rate):
            first, second = second, first
        if isinstance(first, Line) and not first.rate:
            if not first.shift and not isinstance(second, Line) and not _is_finite(_only_needed(self.made, second)):
                raise Refusal("multiplies 0 by something that is not finite everywhere", "use torch.where instead")
            return self._sum([(second, first.shift)], Fraction(0))
        return self._emit(Multiplied(self._index(first), self._index(second)))

    def _apply(self, activation: Activation, inner: Line | int) -> Line | int:
        if not isinstance(inner, Line):
            if activation.kinks:
                raise Refusal("compares something that is no straight function of one value", _REMEDY)
            return self._emit(Applied(activation, inner))
        below = 0
        for kink in activation.kinks:
            below += self._side(inner, Fraction(kink)) > 0
        if isinstance(activation, Indicator):
            if inner.rate:
                self.switches.add((Fraction(activation.knot) - inner.shift) / inner.rate)
            side = self._side(inner, Fraction(activation.knot))
            inside = activation.closed if side == 0 else (side > 0) == activation.above
            return _ONE if inside else _ZERO
        if isinstance(activation, PiecewiseLinear) and activation.knots:
            slope = activation.gradients[below]
            assert not isinstance(slope, Tensor), "formulas with tensors inside are not read"
            gradient = Fraction(slope)
            nearest = max(0, below - 1)
            knot, value = Fraction(activation.knots[nearest]), Fraction(activation.at_knots()[nearest])
            return Line(gradient * inner.rate, gradient * (inner.shift - knot) + value)
        if not inner.rate:
            value = exact_value((Applied(activation, 0),), inner.shift)
            if value is not None:
                return Line(Fraction(0), value)
        return self._emit(Applied(activation, self._index(inner)))

    def _side(self, line: Line, knot: Fraction) -> int:
        """The sign of line - knot on the piece; the piece is cut where it changes."""
        if not line.rate:
            return _sign(line.shift - knot)
        root = (knot - line.shift) / line.rate
        if self.low < root < self.high:
            raise _Cut(root)
        if self.low == self.high == root:
            return 0
        return _sign(line.rate) * (1 if root <= self.low and root < self.high else -1)

    def _index(self, value: Line | int) -> int:
        if not isinstance(value, Line):
            return value
        if value == Line(Fraction(1), Fraction(0)):
            return 0
        return self._emit(_combined(value))

    def _emit(self, step: Step) -> int:
        self.made.append(step)
        return len(self.made)


_ZERO, _ONE = Line(Fraction(0), Fraction(0)), Line(Fraction(0), Fraction(1))


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _is_finite(steps: Sequence[Step]) -> bool:
    """Whether the activations in it are defined everywhere; poles and ends of domains are all near 0."""
    ends = torch.tensor(-3.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    ranges = [step.activation.values(*ends) for step in steps if isinstance(step, Applied)]
    return all(math.isfinite(low) and math.isfinite(high) for low, high in ranges)


def _float(value: Fraction) -> float:
    found = float(value)
    if Fraction(found) != value:
        raise Refusal(
            f"computes with {found:g}, which is rounded, so nothing exact is known of it",
            "use numbers that need no rounding, such as 0.5, or an activation of torch",
        )
    return found


def _combined(line: Line) -> Combined:
    return Combined(((0, _float(line.rate)),) if line.rate else (), _float(line.shift))


def _only_needed(made: Sequence[Step], last: int) -> tuple[Step, ...]:
    """The steps that number `last` is made of, renumbered."""
    needed = {last}
    for i in range(last, 0, -1):
        if i in needed:
            needed |= set(_sources(made[i - 1]))
    kept = sorted(needed - {0})
    new = {0: 0, **{old: i for i, old in enumerate(kept, start=1)}}
    return tuple(_renumbered(made[i - 1], new) for i in kept)


def _sources(step: Step) -> list[int]:
    match step:
        case Combined(terms, _):
            return [i for i, _ in terms]
        case Multiplied(first, second):
            return [first, second]
        case Applied(_, inner):
            return [inner]


def _renumbered(step: Step, new: Mapping[int, int]) -> Step:
    match step:
        case Combined(terms, constant):
            return Combined(tuple((new[i], rate) for i, rate in terms), constant)
        case Multiplied(first, second):
            return Multiplied(new[first], new[second])
        case Applied(activation, inner):
            return Applied(activation, new[inner])


def _assemble(label: str, knots: tuple[float, ...], parts: list[Part]) -> Activation:
    lines = [part for part in parts if isinstance(part, Line)]
    if len(lines) == len(parts) and all(map(is_plain, lines)):
        return straight(knots, lines)
    return Piecewise(label, knots, tuple(_activation(label, part) for part in parts))


def _activation(label: str, part: Part) -> Activation:
    if not isinstance(part, Line):
        return Composed(label, part)
    if part == Line(Fraction(1), Fraction(0)):
        return Identity()
    return Composed(label, (_combined(part),))
