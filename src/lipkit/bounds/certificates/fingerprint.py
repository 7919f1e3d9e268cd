"""Hashes that tell a model and the network captured from it from all others."""

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.linops import Shape
from lipkit.trace import Network


@final
@dataclass(frozen=True)
class TensorPrint:
    """One tensor: its name, and what tells it from another.

    `stored` says that it is a parameter or a buffer, bit by bit the one of the model's state. What a model computes
    from those (a parametrised weight) may differ in its last bits on another machine; there the two numbers of
    `sketch` decide, its Euclidean norm and an inner product with a fixed vector.
    """

    name: str
    dtype: str
    shape: Shape
    sha256: str
    stored: bool
    sketch: tuple[float, float]

    @classmethod
    def of(cls, name: str, tensor: Tensor, stored: bool) -> "TensorPrint":
        """The print of a tensor. Cost: one pass over its bytes."""
        fixed = tensor.detach().cpu()
        return cls(name, str(fixed.dtype), tuple(fixed.shape), sha256_of(fixed), stored, _sketch(fixed))

    def fits(self, other: "TensorPrint") -> bool:
        """Whether `other` is the same tensor, up to the rounding of what a model computes."""
        if (self.dtype, self.shape, self.stored) != (other.dtype, other.shape, other.stored):
            return False
        if self.sha256 == other.sha256:
            return True
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        if self.stored or not (dtype.is_floating_point or dtype.is_complex):
            return False
        # Half of the digits: far above what another order of summation does, far below any other weights.
        slack = torch.finfo(dtype).eps ** 0.5 * max(self.sketch[0], other.sketch[0])
        return all(abs(a - b) <= slack for a, b in zip(self.sketch, other.sketch, strict=True))


def sha256_of(tensor: Tensor) -> str:
    """The hash of a tensor's entries, in order, in its own dtype."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def _sketch(tensor: Tensor) -> tuple[float, float]:
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    values = flat.reshape(-1).to(torch.float64)
    # Equidistributed and without structure that weights could share; any fixed vector would do.
    fixed = torch.frac(torch.arange(1, values.numel() + 1, dtype=torch.float64) * 0.6180339887498949) - 0.5
    norm, inner = float(torch.linalg.vector_norm(values)), float(values @ fixed)
    return (norm if norm < torch.inf else 0.0, inner if abs(inner) < torch.inf else 0.0)


def state_prints(state: Mapping[str, Tensor]) -> tuple[TensorPrint, ...]:
    """The prints of a state dictionary, in its order."""
    return tuple(TensorPrint.of(name, t, stored=True) for name, t in state.items() if isinstance(t, Tensor))


def network_prints(network: Network, state: Iterable[Tensor]) -> tuple[TensorPrint, ...]:
    """The prints of all tensors a network reads, named by the rows that read them; those of `state` count as stored."""
    known = {(t.data_ptr(), tuple(t.shape), t.dtype) for t in state if isinstance(t, Tensor) and t.numel()}
    found: list[TensorPrint] = []
    for name, tensors in _by_row(network):
        for tensor in tensors:
            stored = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) in known
            found.append(TensorPrint.of(name, tensor, stored))
    return tuple(found)


def _by_row(network: Network) -> Iterable[tuple[str, tuple[Tensor, ...]]]:
    for k, row in network.rows().items():
        where = str(network.origin(k))
        for op in row.values():
            yield where, op.tensors()
        if k in network.biases:
            yield f"bias of {where}", (network.biases[k],)
        if k < network.sink:
            yield where, network.nodes[k - 1].tensors()


def row_hashes(network: Network) -> tuple[str, ...]:
    """One hash for the input and for each row: operator types, shapes, geometry and node kinds, but no weights."""
    found = [_hash(network.source)]
    for k, row in network.rows().items():
        node = None if k == network.sink else network.nodes[k - 1]
        bias = network.biases.get(k)
        found.append(_hash((network.shape_into(k), tuple(row.items()), bias, node)))
    return tuple(found)


def _hash(value: object) -> str:
    return hashlib.sha256(structure(value).encode()).hexdigest()[:16]


def structure(value: object) -> str:
    """What a piece of a network is without its weights, as text that is the same in every process.

    Tensors give their shape and dtype, dataclasses their class and fields, callables their name, bound arguments and
    closed-over values; of what is none of these, only the type is told.
    """
    match value:
        case None | bool() | int() | float() | complex() | str() | torch.dtype():
            return repr(value)
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case Tensor():
            return f"{value.dtype}{tuple(value.shape)}"
        case tuple() | list():
            return f"({', '.join(map(structure, value))})"
        case Mapping():
            return f"{{{', '.join(f'{structure(k)}: {structure(v)}' for k, v in value.items())}}}"
        case torch.fx.Node():
            return value.format_node() or value.name
        case functools.partial():
            return f"partial({structure((value.func, value.args, value.keywords))})"
        case types.FunctionType():
            return _function(value)
        case Callable() if not dataclasses.is_dataclass(value):  # pyright: ignore[reportGeneralTypeIssues]
            return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
        case _ if dataclasses.is_dataclass(value):
            # Fields that do not count in comparisons are no part of what is computed.
            own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
            return f"{type(value).__qualname__}{structure(own)}"
        case _:
            return type(value).__qualname__


def _function(value: types.FunctionType) -> str:
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    # A function that refers to itself would never end.
    said = [structure(one) for one in held if one is not value]
    return f"{value.__module__}.{value.__qualname__}({', '.join(said)})"
