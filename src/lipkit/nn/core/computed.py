"""Tensors that are computed from parameters each time they are used, unless they are held."""

import functools
import math
import threading
from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lipkit._runtime import is_compiling, is_exporting
from lipkit.nn.core.precision import dtype_in_use

_BITS = {1: torch.int8, 2: torch.int16}
# The number of keys that a checksum draws for each level.
_KEYS = 4096


@dataclass
class Held:
    """The results that one thread holds of a module: for each type a result, its parameters, and their bits then.

    `fills` says whether results are taken in at their first use; `several`, whether other parameters came.
    """

    fills: bool = False
    several: bool = False
    results: dict[torch.dtype, tuple[tuple[Tensor, ...], tuple[int, ...], Tensor]] = field(default_factory=dict)

    def take(self, dtype: torch.dtype, parameters: tuple[Tensor, ...], result: Tensor) -> None:
        """Hold a result of these parameters."""
        self.results[dtype] = parameters, tuple(map(checksum, parameters)), result


class Computed(nn.Module):
    """A module whose result depends on parameters alone: the weights of constrained layers.

    There is no cache: the result is computed anew at every call, in training and in evaluation. Within `frozen` the
    first result of each type is held, within `batched` one that was computed with others, by the thread that entered
    the block and for no other. A held result is used only for the parameters it was computed from, and only while
    their bits are what they were: each use takes a checksum, because writes to `.data` and fused optimizers leave no
    trace. The type counts because autocast may go on and off. Compiled programs hold nothing; exports use what is held,
    and take nothing in.
    """

    holds: dict[int, Held]

    def __init__(self) -> None:
        super().__init__()
        self.holds = {}

    def __getstate__(self) -> dict[str, object]:
        """Without what is held: copies, and what is saved, are outside the block that holds."""
        return {**vars(self), "holds": {}}

    @property
    def held(self) -> Held | None:
        """The results that this thread holds; None outside of `frozen` and `batched`."""
        return self.holds.get(threading.get_ident())

    def hold(self, fills: bool) -> Held:
        """Begin to hold, for this thread."""
        return self.holds.setdefault(threading.get_ident(), Held(fills))

    def release(self) -> None:
        """Hold nothing any more, for this thread."""
        self.holds.pop(threading.get_ident(), None)

    @abstractmethod
    def compute(self, *parameters: Tensor) -> Tensor:
        """The tensor, from scratch."""

    def forward(self, *parameters: Tensor) -> Tensor:
        """The held tensor, or a new one."""
        if not self.holds or (is_compiling() and not is_exporting()):
            return self.compute(*parameters)
        held = self.held
        if held is None:
            return self.compute(*parameters)
        dtype = dtype_in_use(parameters[0])
        known, sums, found = held.results.get(dtype, ((), (), None))
        if is_exporting():
            # Tracers have stand-ins for parameters, which cannot be told apart.
            return self.compute(*parameters) if found is None or held.several else found
        if found is not None:
            if any(a is not b for a, b in zip(known, parameters, strict=True)):
                # Others come by `torch.func.functional_call`, or where one module serves two layers.
                held.several = True
                return self.compute(*parameters)
            if tuple(map(checksum, parameters)) == sums:
                return found
        if not held.fills:
            return self.compute(*parameters)
        with torch.no_grad():
            found = self.compute(*parameters)
        held.take(dtype, parameters, found)
        return found


def checksum(tensor: Tensor) -> int:
    """A number that changes when one entry does, and in all but about one of 2^64 cases when several do.

    The sum of the bits times an odd key for each place, with 64 bits that wrap around: 32 bits at a time, because the
    highest bit of a longer number loses its key. Cost: one pass over the tensor, and on an accelerator a wait for it.
    """
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = flat.element_size()
    whole = (flat.numel() * size) % 4 == 0 and (flat.storage_offset() * size) % 4 == 0
    bits = flat.view(torch.int32 if whole else _BITS[size]).to(torch.int64)
    rows = math.ceil(bits.numel() / _KEYS)
    if rows > 1:
        rest = bits[(rows - 1) * _KEYS :]
        inner = [(bits[: (rows - 1) * _KEYS].view(-1, _KEYS) * _keys(_KEYS, 0, bits.device)).sum(1)]
        inner.append((rest * _keys(_KEYS, 0, bits.device)[: len(rest)]).sum()[None])
        bits = torch.cat(inner)
    return int((bits * _keys(max(_KEYS, bits.numel()), 1, bits.device)[: bits.numel()]).sum())


@functools.lru_cache(maxsize=32)
def _keys(count: int, level: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(level)
    limit = torch.iinfo(torch.int64)
    drawn = torch.randint(limit.min, limit.max, (count,), generator=generator, dtype=torch.int64)
    return (drawn | 1).to(device)
