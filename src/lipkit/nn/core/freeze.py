"""Evaluation at the price of plain layers: every weight computed once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lipkit.errors import FrozenError
from lipkit.nn.core.computed import Computed

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Within this block every computed weight is computed at its first use and held; gradients reach inputs only.

    On exit the free numbers must be what they were, bit by bit: results would otherwise be those of weights that no
    longer exist. If they are not, FrozenError is raised and names the parameters. Blocks may be nested.
    Cost: one pass over the parameters on entry and one on exit.
    """
    parts = [part for part in model.modules() if isinstance(part, Computed) and not part.holding]
    before = {name: checksum(p) for name, p in model.named_parameters()}
    for part in parts:
        part.holding = True
    try:
        yield model
    finally:
        for part in parts:
            part.release()
    moved = [name for name, p in model.named_parameters() if checksum(p) != before.get(name)]
    if moved:
        raise FrozenError(
            f"{len(moved)} parameters were changed while the model was frozen, {moved[0]} among them, so what was "
            "computed mixes old weights with new ones; leave the block before training."
        )


def checksum(tensor: Tensor) -> int:
    """A number that changes when any bit of the tensor does, in all but one of 2^64 cases; places count."""
    flat = tensor.detach().reshape(-1)
    bits = (
        (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(_BITS[_width(flat)]).to(torch.int64)
    )
    # Odd multipliers that differ from place to place; integers wrap around, so the order of summation is immaterial.
    places = torch.arange(bits.numel(), device=bits.device) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
    return int(((bits + 1) * (places | 1)).sum())


def _width(flat: Tensor) -> int:
    return flat.element_size() // 2 if flat.is_complex() else flat.element_size()
