"""Evaluation at the price of plain layers: every weight computed once."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from lipkit.errors import FrozenError
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.unchanged_bits import checksum


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Within this block every computed weight is computed at its first use and held; gradients reach inputs only.

    A weight whose free numbers were changed is computed again at its next use, and other threads compute their own. On
    exit the free numbers must be what they were, bit by bit: otherwise results of old and new weights were mixed, and
    FrozenError names the parameters. Blocks may be nested. Compiled programs and
    transforms of `torch.func` compute their weights here too.
    Cost: one pass over the parameters on entry, one at each use, and one on exit.
    """
    parts = [part for part in model.modules() if isinstance(part, Computed) and part.held is None]
    before = {name: checksum(p) for name, p in model.named_parameters()}
    for part in parts:
        part.hold(fills=True)
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
