"""The table of operations that only move entries: which arguments are moved, and samples of each."""

from typing import Any

import torch
from torch import Tensor

from lipkit.trace.network import Builder, Refusal
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.moving import move_entries, moves

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _mask(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 3 == 0


_AT = torch.tensor([0, 2])


@lowers(aten.index_put.default, samples=lambda: [Sample((_x(1, 5), [None, _AT], _x(1, 2)), wrt=(0, 2))])
def index_put(b: Builder, x: Any, at: Any, values: Any, accumulate: bool = False) -> Any:
    """Entries replaced; adding to them instead is no gather and has a rule among the linear ones."""
    if accumulate:
        raise Refusal("adds to the entries it finds", "use index_add")
    return move_entries(b, aten.index_put.default, (x, at, values), {}, at=(0, 2))


# Parts of a tensor.
moves(
    aten.slice.Tensor,
    samples=lambda: [Sample((_x(1, 5, 4), 1, 1, 4, 2)), Sample((_x(1, 5), 1, -3)), Sample((_x(1, 5), 1, 0, 2**62))],
)
moves(aten.narrow.default, samples=lambda: [Sample((_x(1, 5, 4), 1, 1, 3))])
moves(aten.select.int, samples=lambda: [Sample((_x(1, 5, 4), 1, 2)), Sample((_x(1, 5), 0, 0))])
moves(aten.diagonal.default, samples=lambda: [Sample((_x(1, 3, 4), 0, 1, 2))])
moves(aten.tril.default, aten.triu.default, samples=lambda: [Sample((_x(1, 3, 4),)), Sample((_x(1, 3, 4), 1))])
moves(
    aten.index.Tensor,
    samples=lambda: [
        Sample((_x(1, 5, 4), [None, _AT])),
        Sample((_x(1, 5, 4), [None, _AT[:, None], _AT])),
        Sample((_x(1, 3, 4), [None, _mask(3, 4)])),
    ],
)
moves(aten.index_select.default, samples=lambda: [Sample((_x(1, 5, 4), 1, _AT))])
moves(aten.gather.default, samples=lambda: [Sample((_x(1, 5), 1, torch.tensor([[4, 0, 0]])))])
moves(aten.take_along_dim.default, samples=lambda: [Sample((_x(1, 5), torch.tensor([[4, 0, 0]]), 1))])
moves(aten.masked_select.default, samples=lambda: [Sample((_x(1, 6), _mask(1, 6)))])
moves(aten.unfold.default, samples=lambda: [Sample((_x(1, 7), 1, 3, 2))])
moves(aten.im2col.default, samples=lambda: [Sample((_x(1, 2, 4, 5), [2, 3], [1, 1], [1, 0], [2, 1]))])

# Another order.
moves(aten.flip.default, samples=lambda: [Sample((_x(1, 3, 4), [1, -1]))])
moves(aten.roll.default, samples=lambda: [Sample((_x(1, 3, 4), [1, -2], [1, 2])), Sample((_x(1, 6), [2]))])
moves(aten.rot90.default, samples=lambda: [Sample((_x(1, 3, 4), 1, [1, 2]))])
moves(aten.pixel_shuffle.default, samples=lambda: [Sample((_x(1, 8, 2, 3), 2))])
moves(aten.pixel_unshuffle.default, samples=lambda: [Sample((_x(1, 2, 4, 6), 2))])
moves(aten.channel_shuffle.default, samples=lambda: [Sample((_x(1, 6, 2, 2), 3))])
moves(
    aten.t.default, aten.numpy_T.default, aten.mT.default, aten.matrix_H.default, samples=lambda: [Sample((_x(1, 3),))]
)
moves(aten.movedim.int, samples=lambda: [Sample((_x(1, 2, 3), 1, 2))])
moves(aten.movedim.intlist, samples=lambda: [Sample((_x(1, 2, 3), [1, 2], [0, 1]))])

# Copies.
moves(aten.repeat.default, aten.tile.default, samples=lambda: [Sample((_x(1, 3), [2, 1, 2]))])
moves(aten.repeat_interleave.self_int, samples=lambda: [Sample((_x(1, 3), 2, 1))])
moves(aten.expand_as.default, samples=lambda: [Sample((_x(1, 3), _x(2, 3)))])
moves(aten.diag_embed.default, samples=lambda: [Sample((_x(1, 3),))])
moves(aten.reflection_pad1d.default, aten.replication_pad1d.default, samples=lambda: [Sample((_x(1, 2, 4), [1, 2]))])
moves(
    aten.reflection_pad2d.default,
    aten.replication_pad2d.default,
    samples=lambda: [Sample((_x(1, 2, 4, 3), [1, 2, 0, 1]))],
)
moves(
    aten.reflection_pad3d.default,
    aten.replication_pad3d.default,
    samples=lambda: [Sample((_x(1, 1, 2, 3, 3), [1, 2, 0, 1, 1, 0]))],
)
moves(
    aten.upsample_nearest1d.vec,
    aten._upsample_nearest_exact1d.vec,
    samples=lambda: [Sample((_x(1, 2, 3), None, [2.0])), Sample((_x(1, 2, 3), [5], None))],
)
moves(
    aten.upsample_nearest2d.vec,
    aten._upsample_nearest_exact2d.vec,
    samples=lambda: [Sample((_x(1, 2, 3, 2), None, [2.0, 1.5])), Sample((_x(1, 1, 3, 2), [5, 4], None))],
)
moves(
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact3d.vec,
    samples=lambda: [Sample((_x(1, 1, 2, 2, 2), None, [2.0, 1.0, 2.0]))],
)

# Several results.
moves(
    aten.split.Tensor,
    aten.chunk.default,
    aten.tensor_split.sections,
    samples=lambda: [Sample((_x(1, 6, 2), 3, 1)), Sample((_x(1, 5), 2, -1))],
)
moves(aten.split_with_sizes.default, samples=lambda: [Sample((_x(1, 6, 2), [1, 2, 3], 1))])
moves(aten.unbind.int, samples=lambda: [Sample((_x(1, 3, 2), 1)), Sample((_x(1, 3),))])

# Several tensors into one.
moves(
    aten.cat.default,
    aten.concat.default,
    samples=lambda: [Sample(([_x(1, 2, 3), _x(1, 1, 3)], 1)), Sample(([_x(1, 2)], -1))],
)
moves(
    aten.hstack.default,
    aten.column_stack.default,
    samples=lambda: [Sample(([_x(1, 2, 3), _x(1, 1, 3)],), wrt=(0,))],
)
moves(aten.vstack.default, aten.dstack.default, samples=lambda: [Sample(([_x(1, 2), _x(1, 2)],))])
moves(aten.stack.default, samples=lambda: [Sample(([_x(1, 2), _x(1, 2), _x(1, 2)], 1)), Sample(([_x(1, 2)] * 2,))])
moves(
    aten.slice_scatter.default,
    at=(0, 1),
    samples=lambda: [
        Sample((_x(1, 5, 4), _x(1, 2, 4), 1, 1, 5, 2), wrt=(0, 1)),
        Sample((_x(1, 5), _x(1, 2), 1, 3)),
        Sample((_x(1, 5), _x(1, 2), 1, 3), wrt=(1,)),
    ],
)
moves(
    aten.select_scatter.default,
    at=(0, 1),
    samples=lambda: [Sample((_x(1, 5, 4), _x(1, 4), 1, 2), wrt=(0, 1)), Sample((_x(1, 5), _x(1), 1, 0), wrt=(1,))],
)
moves(aten.diagonal_scatter.default, at=(0, 1), samples=lambda: [Sample((_x(1, 3, 3), _x(1, 3), 0, 1, 2), wrt=(0, 1))])
moves(
    aten.scatter.src,
    at=(0, 3),
    samples=lambda: [Sample((_x(1, 5), 1, torch.tensor([[4, 0]]), _x(1, 2)), wrt=(0, 3))],
)
moves(aten.index_copy.default, at=(0, 3), samples=lambda: [Sample((_x(1, 5), 1, _AT, _x(1, 2)), wrt=(0, 3))])
moves(
    aten.masked_fill.Scalar,
    samples=lambda: [Sample((_x(1, 6), _mask(1, 6), 0.5)), Sample((_x(1, 6), _mask(6), -torch.inf))],
)
moves(aten.index_fill.int_Scalar, samples=lambda: [Sample((_x(1, 5), 1, _AT, 0.5))])
moves(
    aten.masked_fill.Tensor,
    at=(0, 2),
    samples=lambda: [
        Sample((_x(1, 6), _mask(1, 6), torch.tensor(0.5))),
        Sample((_x(2, 6), _mask(6), _x()), wrt=(0, 2)),
    ],
)
moves(
    aten.where.self,
    at=(1, 2),
    samples=lambda: [
        Sample((_mask(1, 6), _x(1, 6), _x(1, 6)), wrt=(1, 2)),
        Sample((_mask(6), _x(1, 6), _x(1, 1)), wrt=(1,)),
        Sample((_mask(2, 1, 6), _x(1, 6), _x()), wrt=(2,)),
    ],
)
moves(aten.where.ScalarOther, at=(1,), samples=lambda: [Sample((_mask(1, 6), _x(1, 6), 0.0), wrt=(1,))])
moves(aten.where.ScalarSelf, at=(2,), samples=lambda: [Sample((_mask(1, 6), 1.5, _x(1, 6)), wrt=(2,))])
