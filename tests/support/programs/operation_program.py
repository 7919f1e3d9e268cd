"""Asks lipkit for the network of single operations of torch: python operation_program.py, names on the standard input.

For each operation it prints `sampling NAME`; then `asking NAME` once arguments are found that torch itself takes, and
`network`, `refused` or `raised ...`; or `no sample`. If the process dies, its last line says where.
"""

import contextlib
import itertools
import random
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from lipkit.errors import LipkitError
from lipkit.trace.capture import capture

# Sets of arguments that are tried for an operation, and all shapes of its input, with a batch axis of one.
_ATTEMPTS = 400
_SHAPES = ((1, 4), (1, 2, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4), (1, 3), (1,), (1, 1), (1, 4, 4), (1, 8))
_LISTS = ([1], [2], [0], [4], [], [1, 1], [2, 2], [0, 0], [1, 4], [1, 1, 1], [2, 2, 2], [1, 1, 1, 1], [1] * 6)
_PLAIN: dict[str, tuple[Any, ...]] = {
    "int": (1, 0, 2, -1, 4),
    "float": (0.5, 1.0),
    "number": (0.5, 2, 1.0),
    "bool": (False, True),
    "str": ("mean", "none", "ij", "constant", "linear", "sum"),
    "ScalarType": (torch.float32, torch.float64),
    "Layout": (torch.strided,),
    "Device": (torch.device("cpu"),),
    "MemoryFormat": (torch.contiguous_format,),
}


class Single(nn.Module):
    """One operation as a function of one of its arguments, or of the first tensor of a list."""

    def __init__(self, op: OpOverload, arguments: dict[str, Any], name: str) -> None:
        super().__init__()
        self.op, self.arguments, self.name = op, arguments, name

    def forward(self, x: Tensor) -> Any:
        arguments = _copied(self.arguments)
        # The product is a copy: an operation in place must not change the input of the model.
        entered = x * 1
        value = arguments[self.name]
        arguments[self.name] = [entered, *value[1:]] if isinstance(value, list) else entered
        return _call(self.op, arguments)


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [part.clone() if isinstance(part, Tensor) else part for part in value]
        if isinstance(value, list)
        else value.clone()
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }


def _call(op: OpOverload, arguments: dict[str, Any]) -> Any:
    positions = [arguments[a.name] for a in op._schema.arguments if not a.kwarg_only]
    return op(*positions, **{a.name: arguments[a.name] for a in op._schema.arguments if a.kwarg_only})


def _tensor(name: str, shape: tuple[int, ...], draw: random.Random) -> Tensor:
    """A tensor that may go with an input of this shape: alike, one for each channel, a matrix, positions, a mask."""
    generator = torch.Generator().manual_seed(0)
    channels, last = (shape[1], shape[-1]) if len(shape) > 1 else (1, 1)
    if any(word in name for word in ("ind", "target", "label", "offsets", "batches", "lengths")):
        return torch.zeros(draw.choice((shape, (1,), (1, *shape[2:]), (last,))), dtype=torch.int64)
    if "mask" in name or "condition" in name:
        return torch.rand(shape, generator=generator) > 0.5
    shapes = (shape, shape, shape, (channels,), (last,), (), (4, 4), (channels, channels, *(1 for _ in shape[2:])))
    found = torch.rand(draw.choice(shapes), generator=generator)
    return draw.choice((found, found, found, found > 0.5, found.long()))


def _value(kind: str, name: str, shape: tuple[int, ...], draw: random.Random) -> Any:
    """An argument of a type as schemas write it."""
    if kind.startswith("Optional["):
        return None if draw.random() < 0.7 else _value(kind[9:-1], name, shape, draw)
    kind = kind.replace("SymInt", "int")
    if kind == "Tensor":
        return _tensor(name, shape, draw)
    if "Tensor" in kind:
        return [_tensor(name, shape, draw) for _ in range(draw.choice((1, 2, 3)))]
    if kind.startswith("List[int"):
        return list(draw.choice((*_LISTS, shape, shape[2:])))
    if kind.startswith("List["):
        inner = draw.choice(_PLAIN.get(kind[5:-1], (None,)))
        return [inner] * draw.choice((0, 1, 2, 3))
    return draw.choice(_PLAIN.get(kind, (None,)))


def _drawn(op: OpOverload, shape: tuple[int, ...], draw: random.Random) -> tuple[dict[str, Any], str] | None:
    """Arguments from the schema, and the name of the first one that is a real tensor."""
    source = None
    arguments: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if source is None and not argument.is_out and kind in ("Tensor", "List[Tensor]"):
            source = argument.name
            real = torch.rand(shape, generator=torch.Generator().manual_seed(1))
            arguments[source] = (
                real if kind == "Tensor" else [real, *(real.clone() for _ in range(draw.choice((0, 1))))]
            )
        elif argument.has_default_value() and draw.random() < 0.8:
            arguments[argument.name] = argument.default_value
        else:
            arguments[argument.name] = _value(kind, argument.name, shape, draw)
    return None if source is None else (arguments, source)


def accepted(op: OpOverload) -> tuple[dict[str, Any], str] | None:
    """Arguments that torch takes; None if none is found."""
    # The same for one operation whatever was asked before.
    draw = random.Random(op.name())
    for _, shape in zip(range(_ATTEMPTS), itertools.cycle(_SHAPES), strict=False):
        found = _drawn(op, shape, draw)
        if found is None:
            return None
        with contextlib.suppress(Exception):
            returned = _call(op, _copied(found[0]))
            if isinstance(returned, Tensor) or returned:
                return found
    return None


def answer(op: OpOverload, arguments: dict[str, Any], name: str) -> str:
    """What lipkit says of one operation."""
    value = arguments[name]
    x = value[0] if isinstance(value, list) else value
    try:
        _ = capture(Single(op, arguments, name), x, output=0)
    except LipkitError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        return f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    return "network"


def main() -> None:
    """Answer for every operation that the standard input names."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        name = line.strip()
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        print(f"sampling {name}", flush=True)
        found = accepted(op)
        if found is None:
            print("no sample", flush=True)
            continue
        print(f"asking {name}", flush=True)
        print(answer(op, *found), flush=True)


if __name__ == "__main__":
    main()
