"""The books of all layers: which numbers of a step stay on the device, and when they are read."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.analysis.dynamics.booking import Booking, Causes
from lipkit.analysis.dynamics.gram_squaring import spectral_norms_together
from lipkit.analysis.dynamics.grouped_kernels import block_norms, blocks_of
from lipkit.analysis.dynamics.layer_stack import Pairs, stack_layers
from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer, measure_layers, products_are_cheap
from lipkit.analysis.singular_values.gram_decomposition import spectral_norm_by_gram
from lipkit.linops import Dense, LinearOperator


@final
class Books:
    """Books of layers whose weights are stacked where they have one shape.

    The first step after a measurement waits for the device once, for the curvature and the crossings of all layers.
    Each later step leaves two numbers a layer there, which are read, all at once, at the next measurement.
    """

    def __init__(self, layers: Sequence[TrackedLayer]) -> None:
        self._layers = layers
        self._stacks = stack_layers(layers)
        self._order = [place for stack in self._stacks for place in stack.places]
        weights = [stack.copy() for stack in self._stacks]
        measured = self._measure(weights, 0)
        self.each = [Booking(layer, one) for layer, one in zip(layers, measured, strict=True)]
        self._open(measured, weights)

    def before_step(self) -> None:
        """Keep all weights."""
        for stack in self._stacks:
            stack.before_step()

    def after_step(self, decays: Sequence[float], rates: Sequence[float], draws: Sequence[float]) -> None:
        """Book the step that was made; for each layer the arguments of `Booking.causes`."""
        given = zip(self.each, decays, rates, draws, strict=True)
        causes = [book.causes(decay, rate, draw) for book, decay, rate, draw in given]
        if self._fresh:
            self._book_first(causes)
            self._fresh = False
        elif self.each:
            self._left.append(_beside([stack.later_step() for stack in self._stacks]))
            self._causes.append(causes)

    def follow(self) -> None:
        """Let all vectors follow their weights through a step without a measurement."""
        for stack in self._stacks:
            stack.follow()

    def measure(self, step: int) -> None:
        """Measure all norms after a number of steps, close the books and open new ones.

        A layer that cannot be measured leaves all books as they are.
        """
        weights = [stack.copy() for stack in self._stacks]
        measured = self._measure(weights, step)
        self._read()
        for book, one in zip(self.each, measured, strict=True):
            book.close(one)
        self._open(measured, weights)

    def why_unheard(self) -> str | None:
        """None, or which layer moved without noise terms."""
        for book in self.each:
            if any(not one.known and (one.drift or one.curvature) for one in book.record.entries):
                return f"Layer {book.layer.name!r} moved in an interval in which no backward pass of it was heard."
        return None

    def moved(self) -> list[bool]:
        """Whether each layer has other weights than at the last measurement."""
        now = self._by_place([stack.copy() for stack in self._stacks])
        then = self._by_place([stack.at for stack in self._stacks])
        return [not torch.equal(now[place], then[place]) for place in range(len(self._layers))]

    def states(self) -> list[dict[str, Tensor]]:
        """Everything that the next step needs, for each layer, as tensors on the CPU that share no memory."""
        self._read()
        found = [{**book.state(), "fresh": torch.tensor(int(self._fresh))} for book in self.each]
        for stack in self._stacks:
            pairs = stack.pairs
            rows = zip(stack.places, stack.at, pairs.left, pairs.right, pairs.value, strict=True)
            for place, weight, left, right, value in rows:
                kept = {"weight": weight, "left": left, "right": right, "value": value}
                found[place].update({name: one.detach().cpu().clone().contiguous() for name, one in kept.items()})
        return found

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Carry on from what `states` gave; norms are measured again at the weights of the last measurement."""
        weights = [
            torch.stack([states[place]["weight"] for place in stack.places]).to(stack.at) for stack in self._stacks
        ]
        measured = self._measure(weights, 0)
        self._open(measured, weights)
        for book, one, state in zip(self.each, measured, states, strict=True):
            book.restore(state, one)
        for stack in self._stacks:
            left, right, value = (
                torch.stack([states[place][name] for place in stack.places]).to(stack.at)
                for name in ("left", "right", "value")
            )
            stack.pairs = Pairs(left, right, value)
        self._fresh = all(bool(state["fresh"]) for state in states)

    def _measure(self, weights: Sequence[Tensor], step: int) -> list[Measurement]:
        rows = self._by_place(weights)
        return measure_layers(self._layers, [rows[place] for place in range(len(self._layers))], step)

    def _by_place(self, wholes: Sequence[Tensor]) -> dict[int, Tensor]:
        """The parts of stacks by the places of their layers."""
        return dict(zip(self._order, (part for whole in wholes for part in whole), strict=True))

    def _open(self, measured: Sequence[Measurement], weights: Sequence[Tensor]) -> None:
        for stack, whole in zip(self._stacks, weights, strict=True):
            stack.open([measured[place] for place in stack.places], whole)
        self._fresh = True
        self._left: list[Float64[Tensor, "2 layers"]] = []
        self._causes: list[list[Causes]] = []

    def _book_first(self, causes: Sequence[Causes]) -> None:
        found = [stack.first_step() for stack in self._stacks]
        changes = self._by_place([whole for _, whole in found])
        numbers = _beside([one for one, _ in found]).mT.tolist() if found else []
        rows = dict(zip(self._order, numbers, strict=True))
        crossing = [place for place, row in rows.items() if self.each[place].may_cross(row[1])]
        norms = _norms({place: self._layers[place].operator(changes[place]) for place in crossing})
        for place, (slope, size, form) in rows.items():
            self.each[place].bend(slope, size, form, norms.get(place, 0.0))
            self.each[place].book(slope, size, causes[place])

    def _read(self) -> None:
        """Book the steps whose numbers are still on the device."""
        if not self._left:
            return
        for (slopes, sizes), causes in zip(torch.stack(self._left).tolist(), self._causes, strict=True):
            for place, slope, size in zip(self._order, slopes, sizes, strict=True):
                self.each[place].book(slope, size, causes[place])
        self._left, self._causes = [], []


def _beside(parts: Sequence[Tensor]) -> Float64[Tensor, "rows layers"]:
    """The numbers of all stacks, on the device of the first."""
    return torch.cat([part.to(parts[0].device) for part in parts], dim=1).to(torch.float64)


def _norms(changes: Mapping[int, LinearOperator]) -> dict[int, float]:
    """||X||_2 of each change whose Frobenius norm does not decide."""
    plain = {place: op.weight for place, op in changes.items() if isinstance(op, Dense)}
    matrices = list(plain.values())
    together = products_are_cheap(matrices)
    norms = spectral_norms_together(matrices) if together else [spectral_norm_by_gram(one) for one in matrices]
    found = dict(zip(plain, norms, strict=True))
    for place in changes.keys() - plain.keys():
        found[place] = float(block_norms(blocks_of(changes[place])).amax())
    return found
