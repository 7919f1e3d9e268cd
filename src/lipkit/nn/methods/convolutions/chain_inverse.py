"""Projectors found again in a kernel: factors are divided off its right side, one after the other."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.nn.methods.convolutions.projector_chain import Numbers, ProjectorChain


def divide_off(kernel: Float64[Tensor, "groups rows cols *taps"], chain: ProjectorChain) -> Numbers:
    """Lines with orthonormal R whose kernel is `kernel`, if the chain made it of such; of one near it otherwise.

    In K = L F, F = I - P + P z, the last taps on the axis of F are those of L times P, the first those times I - P.
    So the rows of the last taps are in the range of P and those of the first orthogonal to it: P projects onto the
    eigenvectors of A'A - B'B with the largest eigenvalues, A the last taps and B the first, all as rows. Then
    L = K (I - P + P / z), with a tap less; what a kernel that is no such product has beside these taps is left out.

    Limits: of a kernel with fewer columns than `inner` only those are known; the other columns are taken to be zero,
    and the result is near. Cost: an eigendecomposition for each factor.
    """
    turned = kernel.transpose(1, 2) if chain.transposed else kernel
    found = turned.movedim(2, -1).to(torch.float64)
    if found.shape[-1] < chain.inner:
        found = torch.nn.functional.pad(found, (0, chain.inner - found.shape[-1]))
    identity = torch.eye(chain.inner, dtype=torch.float64, device=kernel.device)
    halves: list[Tensor] = []
    for position in reversed(range(len(chain.axes))):
        axis = chain.axes[position]
        second = chain.axes[:position].count(axis) % 2
        rank = chain.inner - chain.rank if second else chain.rank
        lines = found.movedim(2 + axis, 1)
        last, first = lines[:, -1].flatten(1, -2), lines[:, 0].flatten(1, -2)
        _, vectors = torch.linalg.eigh(last.mT @ last - first.mT @ first)
        # In the order of the eigenvalues: the largest come last.
        rest, range_ = vectors.split([chain.inner - rank, rank], -1)
        projector = range_ @ range_.mT
        shape = (-1, *(1,) * (lines.ndim - 3), chain.inner, chain.inner)
        lines = lines[:, :-1] @ (identity - projector).view(shape) + lines[:, 1:] @ projector.view(shape)
        found = lines.movedim(1, 2 + axis)
        halves.append((rest if second else range_).mT)
    head = found.reshape(len(found), chain.rows, math.prod(chain.window) * chain.inner)
    factors = torch.stack(halves[::-1], 1).flatten(0, 1) if halves else head.new_empty(0, chain.rank, chain.inner)
    return chain.join(head, factors)
