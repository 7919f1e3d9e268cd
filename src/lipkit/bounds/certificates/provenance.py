"""Records of a model and of its arguments, as a certificate keeps them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.export import ExportedProgram

from lipkit._runtime import evaluating
from lipkit.bounds.certificates.identity import row_hashes, sha256_of
from lipkit.bounds.certificates.region_record import TensorRecord, dtype_of
from lipkit.bounds.lipschitz import Call, Program, capture_call
from lipkit.errors import CertificateError
from lipkit.linops import Shape
from lipkit.trace import Network
from lipkit.trace.sample_independence import takes_one_sample_only


@final
@dataclass(frozen=True)
class InputRecord:
    """One argument of the model, for one sample: a tensor or a plain value; `name` is "" for a positional one.

    Of a `free` one only shape and dtype are kept: the variables of the bound, and large floating-point constants, whose
    values the network shows. One that is not `known` (a list of tensors, many integers) must be given again.
    """

    name: str
    tensor: TensorRecord | None
    value: bool | int | float | str | None
    free: bool
    known: bool

    @classmethod
    def of(cls, name: str, value: object, free: bool) -> "InputRecord":
        """The record of one argument; `free` says that floating-point tensors are variables."""
        if isinstance(value, Tensor):
            record = TensorRecord.of(value)
            if value.is_floating_point() and (free or record.entries is None):
                return cls(name, TensorRecord(record.shape, record.dtype, "", None), None, True, True)
            return cls(name, record, None, False, record.entries is not None)
        if value is None or isinstance(value, bool | int | float | str):
            return cls(name, None, value, False, True)
        return cls(name, None, None, False, False)

    def restore(self) -> object:
        """The argument itself, or for a free one some values of its shape."""
        if self.tensor is None:
            return self.value
        if not self.free:
            return self.tensor.restore(f"the argument {self.name}")
        count = torch.arange(1, torch.Size(self.tensor.shape).numel() + 1, dtype=torch.float64)
        # Anything but a constant will do: samples are tested for mixing with it.
        return torch.sin(count).to(dtype_of(self.tensor.dtype)).reshape(self.tensor.shape)


@final
@dataclass(frozen=True)
class Inputs:
    """The arguments of the model for one sample, and which of them and of its results the bound is about."""

    arguments: tuple[InputRecord, ...]
    wrt: str | tuple[str, ...] | None
    output: str | int | None

    @classmethod
    def of(cls, call: Call, wrt: str | tuple[str, ...] | None, output: str | int | None) -> "Inputs":
        """The record of a call. Without `wrt` its floating-point arguments are the variables."""
        named = [*(("", value) for value in call[0]), *call[1].items()]
        return cls(tuple(InputRecord.of(name, value, free=wrt is None) for name, value in named), wrt, output)

    def call(self) -> Call:
        """A call of the recorded shapes, with the recorded values where they matter."""
        lost = [record.name or str(at) for at, record in enumerate(self.arguments) if not record.known]
        if lost:
            raise CertificateError(
                f"The certificate does not keep the values of the arguments {', '.join(lost)}; give the example."
            )
        values = [(record.name, record.restore()) for record in self.arguments]
        return tuple(value for name, value in values if not name), {name: value for name, value in values if name}

    def require(self, other: "Inputs") -> None:
        """Refuse arguments of other names, shapes, dtypes or plain values; what tensors hold, the network shows."""
        names, given = ([record.name or "positional" for record in one.arguments] for one in (self, other))
        if names != given:
            raise CertificateError(f"The certificate was made for the arguments {names}, got {given}.")
        for at, (mine, yours) in enumerate(zip(self.arguments, other.arguments, strict=True)):
            what = f"the argument {mine.name or at}"
            kept, got = (
                ("no tensor", "") if r.tensor is None else (r.tensor.shape, r.tensor.dtype) for r in (mine, yours)
            )
            if kept != got:
                raise CertificateError(
                    f"The certificate was made for {what} of shape {kept[0]} and {kept[1]}, got {got[0]} and {got[1]}."
                )
            if mine.value != yours.value:
                raise CertificateError(f"The certificate was made with another value of {what}; give the same one.")


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """The subject of a bound: a model on arguments of given shapes, and the network captured from it.

    `alone` says that the model answers for one sample only, so that several could not be tested for mixing.
    """

    model: Program
    inputs: Inputs
    network: Network
    alone: bool = False

    @classmethod
    def of(cls, model: Program, call: Call, wrt: str | tuple[str, ...] | None, output: str | int | None) -> "Subject":
        """Capture a model on a call with one sample, without gradients: a certificate is a number."""
        with torch.no_grad():
            network = capture_call(model, call, wrt, output)
        return cls(model, Inputs.of(call, wrt, output), network, _alone(model, call))


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


def _sketch(tensor: Tensor) -> tuple[float, float]:
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    values = flat.reshape(-1).to(torch.float64)
    # Equidistributed and without structure that weights could share; any fixed vector would do.
    fixed = torch.frac(torch.arange(1, values.numel() + 1, dtype=torch.float64) * 0.6180339887498949) - 0.5
    norm, inner = float(torch.linalg.vector_norm(values)), float(values @ fixed)
    return (norm if norm < torch.inf else 0.0, inner if abs(inner) < torch.inf else 0.0)


def _state_prints(state: Mapping[str, Tensor]) -> tuple[TensorPrint, ...]:
    """The prints of parameters and buffers by name, in their order."""
    return tuple(TensorPrint.of(name, t, stored=True) for name, t in state.items() if isinstance(t, Tensor))


def _network_prints(network: Network, state: Iterable[Tensor]) -> tuple[TensorPrint, ...]:
    """The prints of all tensors a network reads, named by the rows that read them; those of `state` count as stored."""
    known = {(t.data_ptr(), tuple(t.shape), t.dtype) for t in state if isinstance(t, Tensor) and t.numel()}
    found: list[TensorPrint] = []
    for name, tensors in _tensors_by_row(network):
        for tensor in tensors:
            stored = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) in known
            found.append(TensorPrint.of(name, tensor, stored))
    return tuple(found)


def _tensors_by_row(network: Network) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    for k, row in network.rows().items():
        where = str(network.origin(k))
        for op in row.values():
            yield where, op.tensors()
        if k in network.biases:
            yield f"bias of {where}", (network.biases[k],)
        if k < network.sink:
            yield where, network.nodes[k - 1].tensors()


@final
@dataclass(frozen=True)
class ModelRecord:
    """A model and the network captured from it: `state` are its parameters and buffers, `tensors` what the network
    reads, `rows` one hash for the input and each row of the network."""

    name: str
    state: tuple[TensorPrint, ...]
    tensors: tuple[TensorPrint, ...]
    rows: tuple[str, ...]

    @classmethod
    def of(cls, subject: Subject) -> "ModelRecord":
        """The record of a model and its network. Cost: one pass over the bytes of both."""
        model, network = subject.model, subject.network
        state = model.state_dict if isinstance(model, ExportedProgram) else model.state_dict(keep_vars=True)
        # A sparse tensor has no bytes of its own order: the dense one has, and the network reads that.
        kept = {
            name: value if value.layout is torch.strided else value.to_dense()
            for name, value in state.items()
            if isinstance(value, Tensor)
        }
        prints = _network_prints(network, kept.values())
        return cls(type(model).__qualname__, _state_prints(kept), prints, row_hashes(network))

    @property
    def state_hash(self) -> str:
        """One hash for the names, types, shapes and bytes of the model's state and of what the network reads."""
        parts = [f"{t.name} {t.dtype} {t.shape} {t.sha256}" for t in (*self.state, *self.tensors)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def structure_hash(self) -> str:
        """One hash for operator types, shapes, geometry and node kinds, in order."""
        return hashlib.sha256("\n".join(self.rows).encode()).hexdigest()

    def require(self, other: "ModelRecord", network: Network, versions: str) -> None:
        """Refuse another network or other weights, naming the first row or tensor that differs."""
        if self.rows != other.rows:
            at = next((i for i, (a, b) in enumerate(zip(self.rows, other.rows, strict=False)) if a != b), None)
            where = f"{len(self.rows)} rows against {len(other.rows)}" if at is None else _place(network, at)
            raise CertificateError(
                f"The model has another structure than the certified one, first at {where}{versions}."
            )
        for what, mine, yours in (("state", self.state, other.state), ("network", self.tensors, other.tensors)):
            names, given = ([one.name for one in prints] for prints in (mine, yours))
            if names != given:
                differing = next((a for a, b in zip(names, given, strict=False) if a != b), "its end")
                raise CertificateError(
                    f"The {what} of the model has other tensors than the certified one, at {differing}."
                )
            for a, b in zip(mine, yours, strict=True):
                if not a.fits(b):
                    raise CertificateError(
                        f"The {what} of the model differs from the certified one, first in the tensor {a.name}: "
                        f"{a.dtype} {a.shape} {a.sha256[:12]} against {b.dtype} {b.shape} {b.sha256[:12]}."
                    )


def _alone(model: Program, call: Call) -> bool:
    if isinstance(model, ExportedProgram):
        return True
    with evaluating(model):
        return takes_one_sample_only(model, *call)


def _place(network: Network, at: int) -> str:
    return "the shape of the input" if at == 0 else str(network.origin(at)) if at <= network.sink else "its end"
