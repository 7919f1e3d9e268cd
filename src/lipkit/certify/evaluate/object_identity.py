"""What tells an object from another that does something else, as text that is the same in every process."""

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from lipkit.bounds.certificates.fingerprint import sha256_of, state_prints
from lipkit.certify.evaluate.code_identity import code_hash, names_in

# Their objects are known by name: a resumed run has them as it had them.
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "lipkit"}
# What every module has: parameters, buffers and parts are told by themselves, hooks and modes are not what it is.
_BARE = frozenset(vars(nn.Module()))
# What a function may use of the names around it, beside data.
_USED = (bool, int, float, complex, str, bytes, Tensor, np.ndarray, nn.Module, types.FunctionType, tuple, list, dict)
# Characters of a part above which its hash stands for it.
_LONG = 400


def told(value: object) -> str:
    """A value with all that it holds: numbers, hashes of tensors and of code, fields, attributes, closed-over values.

    Guarantee: values that are told alike compute alike, as far as neither the code of libraries nor a file, a clock or
    a random number decides. Cost: one pass over all tensors that the value reaches.
    """
    return _Telling().text(value)


def module_told(module: nn.Module) -> dict[str, dict[str, str]]:
    """All that makes a module and its parts what they are: tensors, other attributes, and code that is the user's."""
    return _Telling().module(module)


@final
class _Telling:
    """One description. An object is told once, so that cycles end."""

    def __init__(self) -> None:
        # With the objects themselves: an address that is free again may become another's.
        self._known: dict[int, tuple[object, str]] = {}

    def text(self, value: object) -> str:
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes() | range():
                return repr(value)
            case torch.dtype():
                return str(value)
            case torch.device():
                # Of several alike each process has its own.
                return value.type
            case enum.Enum():
                return f"{type(value).__qualname__}.{value.name}"
            case Tensor():
                return f"{value.dtype}{tuple(value.shape)}:{sha256_of(value)[:16]}"
            case np.ndarray():
                return f"{value.dtype}{value.shape}:{_hash(np.ascontiguousarray(value).tobytes())}"
            case types.ModuleType():
                return value.__name__
            case type():
                return _name(value)
            case _:
                return self._once(value)

    def _once(self, value: object) -> str:
        if id(value) not in self._known:
            self._known[id(value)] = value, f"{_name(type(value))} that holds this"
            found = self._parts(value)
            brief = found if len(found) <= _LONG else f"{_name(type(value))}:{_hash(found.encode())}"
            self._known[id(value)] = value, brief
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
            case types.BuiltinFunctionType():
                return _name(value)
            case nn.Module():
                return f"{_name(type(value))}:{_hash(repr(self.module(value)).encode())}"
            case _ if _top(type(value)) == "torch":
                # Graphs, generators, contexts: linked without end, or changed by use.
                return _name(type(value))
            case _:
                held = ", ".join(f"{name}={self.text(one)}" for name, one in _state(value).items())
                return f"{_name(type(value))}({held}){''.join(self._code(type(value)).values())}"

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
            "tensors": {one.name: one.sha256 for one in state_prints(tensors)},
            "attributes": attributes,
            "code": {name: one for some in code for name, one in some.items()},
        }

    def _code(self, kind: type) -> dict[str, str]:
        """Hashes of the functions of a class and of those it derives from; none of libraries."""
        own = {part: list(_functions(part)) for part in kind.__mro__ if _top(part) not in _LIBRARIES}
        return {_name(part): _hash("".join(map(self.text, some)).encode()) for part, some in own.items() if some}

    def _function(self, value: types.FunctionType) -> str:
        if _top(value) in _LIBRARIES:
            return _name(value)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        named = {name: value.__globals__.get(name) for name in sorted(names_in(value.__code__))}
        around = {name: one for name, one in named.items() if isinstance(one, _USED) or _data(one)}
        held = (value.__defaults__, value.__kwdefaults__, cells, around)
        return f"{_name(value)}#{code_hash(value.__code__, value.__doc__)}{self.text(held)}"


def _state(value: object) -> dict[str, Any]:
    """What an object holds, as it would be saved: a cache that it leaves out then is no part of it."""
    if _data(value):
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


def _data(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _functions(kind: type) -> Iterator[types.FunctionType]:
    for one in vars(kind).values():
        plain = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        if isinstance(plain, types.FunctionType):
            yield plain


def _filled(cell: types.CellType) -> bool:
    """Whether a closed-over name has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _top(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None) or ''}.{value.__qualname__}".lstrip(".")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
