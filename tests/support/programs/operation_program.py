"""Asks lipkit for the network of single operations of torch, whose names are lines of the standard input.

`python operation_program.py sample` prints, for each NAME, `begin NAME` and then the number of the first set of
arguments that torch itself takes, or `none`. `python operation_program.py ask` reads lines `NAME NUMBER`, and prints
`begin NAME` and then `network`, `refused` or `raised ...`. Two processes, because torch may damage its memory by
arguments that it does not take. If a process dies, its last line names the operation.
"""

import contextlib
import itertools
import random
import sys
import warnings
from collections.abc import Iterator
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


def _drawn(op: OpOverload, shape: tuple[int, ...], draw: random.Random) -> tuple[dict[str, Any], str]:
    """Arguments from the schema, and the name of the first one that is a tensor or a list of them: the input."""
    source = ""
    arguments: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if not source and kind in ("Tensor", "List[Tensor]"):
            source = argument.name
            real = torch.rand(shape, generator=torch.Generator().manual_seed(1))
            arguments[source] = (
                real if kind == "Tensor" else [real, *(real.clone() for _ in range(draw.choice((0, 1))))]
            )
        elif argument.has_default_value() and draw.random() < 0.8:
            arguments[argument.name] = argument.default_value
        else:
            arguments[argument.name] = _value(kind, argument.name, shape, draw)
    return arguments, source


def drawings(op: OpOverload) -> Iterator[tuple[dict[str, Any], str]]:
    """Sets of arguments, the same for one operation whatever was asked before."""
    draw = random.Random(op.name())
    for _, shape in zip(range(_ATTEMPTS), itertools.cycle(_SHAPES), strict=False):
        yield _drawn(op, shape, draw)


def sample(op: OpOverload) -> str:
    """The number of the first set of arguments that torch takes and answers."""
    for number, (arguments, _) in enumerate(drawings(op)):
        with contextlib.suppress(Exception):
            returned = _call(op, _copied(arguments))
            if isinstance(returned, Tensor) or returned:
                return str(number)
    return "none"


def ask(op: OpOverload, number: int) -> str:
    """What lipkit says of one operation with a set of arguments."""
    arguments, name = next(itertools.islice(drawings(op), number, None))
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
    """Answer every line."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, *number = line.split()
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        print(f"begin {name}", flush=True)
        print(sample(op) if sys.argv[1] == "sample" else ask(op, int(number[0])), flush=True)


if __name__ == "__main__":
    main()
