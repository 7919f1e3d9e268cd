"""log K of a network as a function of the norms of its layers, for any number of times at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from lipkit.analysis.dynamics.tracked_layers import TrackedLayer
from lipkit.bound import Bound, Kind
from lipkit.bounds.fold.dag import Term, disjoint
from lipkit.errors import UnsupportedError
from lipkit.linops import LinearOperator
from lipkit.linops.queries.support import propagate
from lipkit.trace import Network
from lipkit.trace.nodes import Node, Pointwise
from lipkit.trace.nodes.pointwise import Identity

Norms = Float64[Tensor, "layers times"]


@final
@dataclass(frozen=True)
class Step:
    """A block of a row: the value it acts on, and the position of the layer it is; None for what counts as 1."""

    value: int
    layer: int | None


@final
@dataclass(frozen=True)
class NormFold:
    """The fold over a network, with everything but the tracked layers counted as 1:

        K_0 = 1,   K_k = 2-sum over groups that write apart of sum over blocks of a group of sigma_kj K_j.

    `rows` holds, in order, each row with its groups; without rows (a network that cannot be read) K is the product of
    all norms. Of a chain both are the same. Guarantee: ESTIMATE, as the norms are.
    """

    rows: tuple[tuple[int, tuple[tuple[Step, ...], ...]], ...] = ()

    def log_constant(self, log_norms: Norms) -> Float64[Tensor, " times"]:
        """log K at each time."""
        if not self.rows:
            return log_norms.sum(0)
        found = {0: log_norms.new_zeros(log_norms.shape[1])}
        for k, groups in self.rows:
            sums = [_log_sum([_log_product(block, found, log_norms) for block in group], 1) for group in groups]
            found[k] = _log_sum(sums, 2)
        return found[self.rows[-1][0]]

    @torch.inference_mode(False)
    @torch.enable_grad()
    def shares(self, log_norms: Norms) -> Norms:
        """d log K / d log sigma of each layer at each time; of a chain all are 1."""
        # A copy: what was made in inference mode has no gradient.
        free = log_norms.detach().clone().requires_grad_()
        # Times do not meet, so the gradient of the sum is that of each.
        return torch.autograd.grad(self.log_constant(free).sum(), free)[0]


def fold_of(network: Network, layers: Sequence[TrackedLayer]) -> NormFold:
    """Find the tracked layers among the operations of a network that is not fused.

    An operation is a layer if it holds the layer's weight; of several layers with one weight it is that of its module,
    at the layer's input shape. A weight that is computed is found by the name of its module. An operation with a packed
    weight, as torch's attention has, is a stack of the layers whose rows it holds, until something picks one of them.
    Cost: one look at each operation, and at which entries blocks write where values are joined.
    """
    found: set[int] = set()
    stacks: dict[int, Stack] = {}
    rows: list[tuple[int, tuple[tuple[Step, ...], ...]]] = []
    known = {0}
    one = Bound.from_value(1.0, Kind.ESTIMATE, "counted as 1")
    for k, row in network.rows().items():
        stack = _stack_of(row, stacks, layers)
        if stack is not None and stack.value in known:
            found.update(stack.masks)
            known.add(k)
            rows.append((k, tuple((Step(stack.value, layer),) for layer in stack.masks)))
            if k <= len(network.nodes) and _keeps(network.nodes[k - 1]):
                stacks[k] = stack
            continue
        terms: dict[int, tuple[Step, Term]] = {}
        for j, op in row.items():
            if j in known:
                layer = _layer_of(op, network.origin(k).module, layers)
                found.update([] if layer is None else [layer])
                term = Term(op, one, torch.zeros((), dtype=torch.float64))
                terms[id(term)] = Step(j, layer), term
        # A row that does not depend on the input adds nothing to any other.
        if terms:
            known.add(k)
            groups = disjoint([term for _, term in terms.values()])
            rows.append((k, tuple(tuple(terms[id(term)][0] for term in group) for group in groups)))
    if network.sink not in known:
        raise UnsupportedError("the output does not depend on the input")
    _require_found(network, layers, found)
    return NormFold(tuple(rows))


@final
@dataclass(frozen=True, eq=False)
class Stack:
    """Layers that act on one value and write apart: for each, the entries of the result that it writes."""

    value: int
    masks: Mapping[int, Bool[Tensor, "..."]]


def _stack_of(
    row: Mapping[int, LinearOperator], stacks: Mapping[int, Stack], layers: Sequence[TrackedLayer]
) -> Stack | None:
    """What a row with one block makes of a stack, or of a value by a packed weight; None for every other row."""
    if len(row) != 1:
        return None
    ((source, op),) = row.items()
    held = [tensor for tensor in op.tensors() if tensor.is_floating_point()]
    if source in stacks and not held:
        moved = {layer: propagate(op, mask) for layer, mask in stacks[source].masks.items()}
        masks = {layer: mask for layer, mask in moved.items() if bool(mask.any())}
        return Stack(stacks[source].value, masks) if masks else None
    packed = _rows_of_layers(held[0], layers) if len(held) == 1 and len(op.tensors()) == 1 else {}
    if len(packed) < 2:
        return None
    masks = {layer: _written(op, rows) for layer, rows in packed.items()}
    writers = torch.stack(list(masks.values())).sum(0)
    return Stack(source, masks) if int(writers.max()) == 1 else None


def _rows_of_layers(weight: Tensor, layers: Sequence[TrackedLayer]) -> dict[int, slice]:
    """The rows of a packed weight that each layer has, if layers have all of them; else none."""
    start, width = weight.data_ptr(), weight[0].numel() * weight.element_size() if weight.ndim else 0
    end = start + weight.numel() * weight.element_size()
    found: dict[int, slice] = {}
    reads = {index: layer.read() for index, layer in enumerate(layers)}
    place = start
    for index, read in sorted(reads.items(), key=lambda item: item[1].data_ptr()):
        if place == read.data_ptr() < end and width and weight.is_contiguous() and read.is_contiguous():
            rows = read.numel() * read.element_size() // width
            found[index] = slice((place - start) // width, (place - start) // width + rows)
            place += rows * width
    return found if place == end else {}


def _written(op: LinearOperator, rows: slice) -> Bool[Tensor, "..."]:
    """The entries of the result that some rows of the one weight write."""
    (weight,) = op.tensors()
    only = torch.zeros_like(weight.detach())
    only[rows] = 1
    return op.with_tensors((only,)).apply(torch.ones(op.in_shape).to(only)) != 0


def _keeps(node: Node) -> bool:
    return isinstance(node, Pointwise) and isinstance(node.activation, Identity)


def _layer_of(op: LinearOperator, module: str, layers: Sequence[TrackedLayer]) -> int | None:
    held = {(tensor.data_ptr(), tensor.numel()) for tensor in op.tensors()}
    chosen = [i for i, layer in enumerate(layers) if _place(layer.read()) in held]
    if not chosen and op.tensors():
        chosen = [i for i, layer in enumerate(layers) if layer.name == module and layer.parameter() is None]
    if len(chosen) > 1:
        # One weight in several modules: the module that computes it, where there is one.
        chosen = [i for i in chosen if layers[i].name == module] or chosen
        tails = [layers[i].in_shape for i in chosen]
        chosen = [i for i, tail in zip(chosen, tails, strict=True) if op.in_shape[-len(tail) :] == tail][:1]
    return chosen[0] if chosen else None


def _require_found(network: Network, layers: Sequence[TrackedLayer], found: set[int]) -> None:
    """Refuse a layer whose weight is a part of some operation; one that is nowhere is not used."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in network.tensors()}
    for index, layer in enumerate(layers):
        parameter = layer.parameter()
        inside = parameter is None or parameter.untyped_storage().data_ptr() in storages
        if index not in found and inside:
            raise UnsupportedError(f"layer {layer.name!r} is no operation of the network by itself")


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _log_product(step: Step, found: dict[int, Tensor], log_norms: Tensor) -> Tensor:
    before = found[step.value]
    return before if step.layer is None else before + log_norms[step.layer]


def _log_sum(logs: list[Tensor], p: int) -> Tensor:
    """log of the p-norm of numbers given by their logarithms."""
    return logs[0] if len(logs) == 1 else torch.logsumexp(torch.stack(logs) * p, dim=0) / p
