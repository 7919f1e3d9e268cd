"""Kernels of convolutions with groups, as block-diagonal matrices that are never written out."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition, decompose_gram
from lipkit.linops import Conv, Dense, LinearOperator


@final
@dataclass(frozen=True, eq=False)
class BlockDecomposition:
    """The block with the largest singular value, its place, and the distance `gap` from there to the next value.

    Along a change of the kernel, the largest value of the whole has the derivatives that it has in its own block, as
    long as no other block overtakes.
    """

    gram: GramDecomposition
    place: int
    blocks: int
    gap: float

    @property
    def left(self) -> Float64[Tensor, "c_out 1"]:
        """The left singular vector of the whole: zero outside of its block."""
        return self._place(self.gram.left)

    @property
    def right(self) -> Float64[Tensor, "c_in 1"]:
        """The right singular vector of the whole."""
        return self._place(self.gram.right)

    def form(self, change: Float[Tensor, "..."]) -> Float64[Tensor, ""]:
        """D^2 sigma_1[X, X] of a change X of the kernel."""
        wide = _blocks(change, self.blocks)[self.place].to(torch.float64)
        return self.gram.form(wide @ self.gram.right, wide.mT @ self.gram.left)

    def _place(self, vector: Tensor) -> Tensor:
        whole = vector.new_zeros(self.blocks, len(vector))
        whole[self.place] = vector
        return whole.reshape(-1, 1)


def kernel_matrix(weight: Float[Tensor, "rows ..."], groups: int) -> LinearOperator:
    """The kernel as a matrix with a row for each of the first channels, (rows, columns k k); of groups, the matrix with
    the kernel of each group as a block on its diagonal.

    Plain kernels have the channels of the output first, transposed ones those of the input; both have groups there.
    """
    rows = weight.flatten(1)
    if groups == 1:
        return Dense(rows)
    # A block-diagonal matrix is a convolution with groups of one position.
    return Conv(rows.unsqueeze(2), (1,), (1,), ((0, 0),), (1,), groups)


def blocks_of(op: LinearOperator) -> Float[Tensor, "groups m n"]:
    """The blocks of what `kernel_matrix` gave."""
    return _blocks(op.tensors()[0], op.groups if isinstance(op, Conv) else 1)


def decompose_blocks(op: LinearOperator) -> BlockDecomposition:
    """The largest singular value of what `kernel_matrix` gave, finite and not zero, with its second derivative.

    Guarantee: ESTIMATE, as `decompose_gram`. Cost: the Gram matrix of each block, and its eigenvalues.
    """
    blocks = blocks_of(op)
    norms = block_norms(blocks)
    place = int(norms.argmax())
    gram = decompose_gram(blocks[place])
    others = torch.cat([norms[:place], norms[place + 1 :]])
    # One group has no other block.
    gap = min([gram.gap, *(gram.value - others).tolist()])
    return BlockDecomposition(gram, place, len(blocks), max(gap, 0.0))


def block_norms(blocks: Float[Tensor, "groups m n"]) -> Float64[Tensor, " groups"]:
    """||A||_2 of each block. Guarantee: ESTIMATE. Cost: the Gram matrix of each block, and its eigenvalues."""
    wide = blocks.detach().to(torch.float64)
    wide = wide if wide.shape[1] <= wide.shape[2] else wide.mT
    # Squares of numbers of any size stay in range.
    size = wide.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    scaled = wide / size
    return size * torch.linalg.eigvalsh(scaled @ scaled.mT)[:, -1].clamp(min=0).sqrt()


def _blocks(weight: Tensor, groups: int) -> Tensor:
    rows = weight.flatten(1)
    return rows.reshape(groups, -1, rows.shape[1])
