"""Is this the same? Hashes and descriptions that tell tensors, networks, models and functions from all others."""

import dataclasses
import enum
import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import map_arg

from lipkit.bounds.certificates.json_codec import name_of
from lipkit.errors import ArgumentError
from lipkit.trace import Network
from lipkit.trace.declared_modules import Segment

# Their functions and classes are known by name: a resumed run has them as it had them.
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "lipkit"}
# Attributes that every module has: parameters, buffers and parts are described by themselves, hooks and modes are left
# out.
_BARE = frozenset(vars(nn.Module()))
# Types of the names around a function that count as part of it, beside dataclasses.
_USED = (bool, int, float, complex, str, bytes, Tensor, np.ndarray, nn.Module, types.FunctionType, tuple, list, dict)
# Characters of a part above which its hash stands for it.
_LONG = 400


def sha256_of(tensor: Tensor) -> str:
    """The hash of a tensor's entries, in order, in its own dtype."""
    # A copy, because a single entry that was expanded counts as contiguous, with steps of 0.
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def row_hashes(network: Network) -> tuple[str, ...]:
    """One hash for the input and for each row: operator types, shapes, geometry and node kinds, but no weights.

    Neither the file in which a class of lipkit lies counts, nor the names that torch gives to traced operations.
    """
    found = [_hash(structure(network.source).encode())]
    for k, row in network.rows().items():
        node = None if k == network.sink else network.nodes[k - 1]
        bias = network.biases.get(k)
        found.append(_hash(structure((network.shape_into(k), tuple(row.items()), bias, node)).encode()))
    return tuple(found)


def network_hash(network: Network) -> str:
    """A hash of what a network computes: every operation and all its numbers, wherever a model took them from."""
    parts = (*row_hashes(network), *map(sha256_of, network.tensors()))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def structure(value: object) -> str:
    """Describe a piece of a network without its weights, as text that is the same in every process."""
    return _Description(numbers=False, code=False).text(value)


def contents(value: object) -> str:
    """Any value with all that it holds: numbers, hashes of tensors, fields, attributes, the source of functions.

    Guarantee: values with the same contents compute alike, as far as neither the code of libraries nor a file, a clock
    or a random number decides. A function or class without source (typed in, made by `exec`) is refused.
    Cost: one pass over all tensors that the value reaches.
    """
    return _Description(numbers=True, code=True).text(value)


def model_contents(model: nn.Module, code: bool) -> dict[str, Any]:
    """A model as it is found again: the hashes of its tensors, its other attributes, and how it prints.

    With `code` also the source of the classes that are not of a library, for a model whose network is not known.
    """
    found = _Description(numbers=True, code=code).module(model)
    return {
        "model": found["tensors"],
        "attributes": found["attributes"],
        "structure": str(model),
        "code": found["code"],
    }


@final
class _Description:
    """One description, with or without the `numbers` in tensors and the `code` of functions.

    An object is described once, so that cycles end.
    """

    def __init__(self, numbers: bool, code: bool) -> None:
        self._numbers, self._with_code = numbers, code
        # With the objects themselves: an address that is free again may become another's.
        self._known: dict[int, tuple[object, str]] = {}

    def text(self, value: object) -> str:
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes() | range():
                return repr(value)
            case torch.dtype() | torch._ops.OpOverload():
                return str(value)
            case torch.device():
                # Processes have different devices of one type.
                return value.type
            case enum.Enum():
                return f"{type(value).__qualname__}.{value.name}"
            case Tensor():
                return f"{value.dtype}{tuple(value.shape)}" + (f":{sha256_of(value)[:16]}" if self._numbers else "")
            case np.ndarray():
                return f"{value.dtype}{value.shape}:{_hash(np.ascontiguousarray(value).tobytes())}"
            case types.ModuleType():
                return value.__name__
            case type() | types.BuiltinFunctionType():
                return name_of(value)
            case _:
                return self._once(value)

    def _once(self, value: object) -> str:
        if id(value) not in self._known:
            name = name_of(type(value))
            self._known[id(value)] = value, f"{name} that holds this"
            found = self._parts(value)
            self._known[id(value)] = value, found if len(found) <= _LONG else f"{name}:{_hash(found.encode())}"
        return self._known[id(value)][1]

    def _parts(self, value: object) -> str:
        match value:
            case tuple() | list():
                return f"({', '.join(map(self.text, value))})"
            case AbstractSet():
                return f"{{{', '.join(sorted(map(self.text, value)))}}}"
            case Mapping():
                return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
            case functools.partial():
                return f"partial{self.text((value.func, value.args, value.keywords))}"
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return f"{self.text(value.__self__)}.{self.text(value.__func__)}"
            case nn.Module():
                return f"{name_of(type(value))}:{_hash(repr(self.module(value)).encode())}"
            case Segment():
                return self._segment(value)
            case _ if _top(type(value)) == "torch":
                # Graphs, generators, contexts: linked without end, or changed by use.
                return name_of(type(value))
            case _:
                held = ", ".join(f"{name}={self.text(one)}" for name, one in _state(value).items())
                return f"{name_of(type(value))}({held}){''.join(self._code(type(value)).values())}"

    def module(self, module: nn.Module) -> dict[str, dict[str, str]]:
        # Buffers that a state dictionary leaves out decide as much as those it holds.
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        parts = dict(module.named_modules())
        attributes = {
            f"{path}.{name}" if path else name: self.text(value)
            for path, part in parts.items()
            for name, value in _state(part).items()
            if name not in _BARE
        }
        code = [self._code(type(part)) for part in parts.values()]
        return {
            "tensors": {name: sha256_of(tensor) for name, tensor in tensors.items()},
            "attributes": attributes,
            "code": {name: one for some in code for name, one in some.items()},
        }

    def _segment(self, value: Segment) -> str:
        """The operations of a module by their places: their names count all that was traced before them."""
        places = {value.source: "input", **{node: self.text(one) for node, one in value.plain.items()}}
        places |= {node: f"constant {i}" for i, node in enumerate(value.slots)}
        places |= {node: f"step {i}" for i, node in enumerate(value.steps)}

        def placed(node: torch.fx.Node) -> str:
            return places[value.same.get(node, node)]

        steps = [(node.target, map_arg(node.args, placed), map_arg(node.kwargs, placed)) for node in value.steps]
        return f"{self.text(steps)} -> {placed(value.result)}"

    def _function(self, value: types.FunctionType) -> str:
        held: list[object] = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        if _top(value) in _LIBRARIES:
            # Functions of lipkit are parts of nodes, with the numbers they close over.
            return name_of(value) + (self.text(held) if _top(value) == "lipkit" else "")
        held += [value.__defaults__, value.__kwdefaults__, self._source(value) if self._with_code else ""]
        return f"{name_of(value)}{self.text(held)}"

    def _code(self, kind: type) -> dict[str, str]:
        """Hashes of the functions of a class and of those it derives from; none of libraries."""
        own = {part: _functions(part) for part in kind.__mro__ if self._with_code and _top(part) not in _LIBRARIES}
        return {name_of(part): _hash("".join(map(self.text, some)).encode()) for part, some in own.items() if some}

    def _source(self, value: types.FunctionType) -> str:
        """The source of a function, where in its lines it stands, and what it uses of the names around it."""
        try:
            source = inspect.getsource(value)
        except OSError as error:
            raise ArgumentError(
                f"{name_of(value)} has no source file, so stored results could not be told to be of it; define it in "
                "a file, or leave out `records`."
            ) from error
        # Two functions of one line, such as lambdas, have one source and differ in their columns.
        columns = [place[2:] for place in value.__code__.co_positions()]
        names = sorted(value.__globals__.keys() & set(re.findall(r"\w+", source)))
        around = {name: value.__globals__[name] for name in names}
        used = {name: one for name, one in around.items() if isinstance(one, _USED) or _is_data(one)}
        return _hash(f"{source}{columns}{self.text(used)}".encode())


def _state(value: object) -> dict[str, Any]:
    """The attributes of an object as it would be saved, without caches."""
    if _is_data(value):
        # Fields that do not count in comparisons are no part of what is computed.
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}  # pyright: ignore[reportArgumentType]
    try:
        found = value.__getstate__()
    except Exception:  # noqa: BLE001 - whatever an object raises that does not want to be saved
        found = getattr(value, "__dict__", {})
    # Where there are slots, a pair of the attributes and the slots.
    parts = found if isinstance(found, tuple) else (found,)
    merged = {str(k): v for part in parts if isinstance(part, Mapping) for k, v in part.items()}
    kind = type(value)
    return {k: v for k, v in merged.items() if not isinstance(getattr(kind, k, None), functools.cached_property)}


def _is_data(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _functions(kind: type) -> list[types.FunctionType]:
    """The functions of a class, without those that `dataclass` makes of its fields."""
    plain = [one.fget if isinstance(one, property) else getattr(one, "__func__", one) for one in vars(kind).values()]
    found = [one for one in plain if isinstance(one, types.FunctionType)]
    made = [dataclasses.is_dataclass(kind) and inspect.unwrap(one).__code__.co_filename == "<string>" for one in found]
    return [one for one, generated in zip(found, made, strict=True) if not generated]


def _filled(cell: types.CellType) -> bool:
    """Whether a closed-over name has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _top(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
