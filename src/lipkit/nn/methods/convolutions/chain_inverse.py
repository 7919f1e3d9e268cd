"""Projectors found again in a kernel: divided off its right side, or improved one after the other."""

import math

import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from torch.nn import functional

from lipkit.nn.methods.convolutions.projector_chain import Numbers, ProjectorChain, times_factor

# Rounds of improvements, and how much of the largest inner product may be missing in a kernel that needs none.
_ROUNDS = 10
_MISSING = 1e-12

# Columns whose span is the range of each P, one after the other; P of every second factor on an axis has the others.
Ranges = list[Float64[Tensor, "groups inner _"]]
Head = Float64[Tensor, "groups rows entries"]


def factorize(kernel: Float64[Tensor, "groups rows cols *taps"], chain: ProjectorChain) -> Numbers:
    """Lines with orthonormal H and R whose kernel is `kernel`, if the chain made it of such; of one near it otherwise.

    All kernels of such lines have one size, so the nearest has the largest inner product with `kernel`. That is linear
    in each P, and largest for the projector onto the leading eigenvectors of its coefficient; linear in H, and largest
    for a polar factor. They are improved in turn from the better of two starts: factors divided off one after the
    other, which is exact for almost every kernel that the chain makes, and the central tap.

    Limits: the inner product grows in every step, to a local maximum. Where few rows leave many projectors open
    (one channel to many), kernels of the chain may be found only up to some percent.
    Cost: some eigendecompositions; ten rounds of products where the first start is not exact.
    """
    turned = kernel.transpose(1, 2) if chain.transposed else kernel
    goal = turned.movedim(2, -1).to(torch.float64)
    if goal.shape[-1] < chain.inner:
        goal = functional.pad(goal, (0, chain.inner - goal.shape[-1]))
    ranges, centres = _divide_off(goal, chain), _equal(goal, chain)
    head, other = (_best_head(goal, chain, some) for some in (ranges, centres))
    better = _score(goal, chain, other, centres) > _score(goal, chain, head, ranges)
    head = _choose(better, other, head)
    ranges = [_choose(better, two, one) for one, two in zip(ranges, centres, strict=True)]
    for _ in range(_ROUNDS):
        size = torch.linalg.vector_norm(goal.flatten(1), dim=1)
        most = size * torch.linalg.vector_norm(_product(chain, head, ranges).flatten(1), dim=1)
        if bool((_score(goal, chain, head, ranges) >= (1 - _MISSING) * most).all()):
            break
        for position in range(len(ranges)):
            ranges[position] = _best_range(goal, chain, head, ranges, position)
        head = _best_head(goal, chain, ranges)
    return chain.join(head, _halves(chain, ranges, head))


def _divide_off(goal: Float64[Tensor, "groups rows *taps inner"], chain: ProjectorChain) -> Ranges:
    """Ranges of P, the last factor first: where K = L F, with what is left over when they are no factors left out.

    In K = L F, F = I - P + P z, the last taps on the axis of F are those of L times P, the first those times I - P. So
    the rows of the last taps are in the range of P and those of the first orthogonal to it: the range has the leading
    eigenvectors of A'A - B'B, A the last taps and B the first, all as rows. Then L = K (I - P + P / z).
    """
    found: Ranges = []
    for position in reversed(range(len(chain.axes))):
        lines = goal.movedim(2 + chain.axes[position], 1)
        last, first = lines[:, -1].flatten(1, -2), lines[:, 0].flatten(1, -2)
        found.append(_leading(last.mT @ last - first.mT @ first, chain.rank_of(position)))
        projector = (found[-1] @ found[-1].mT).view(-1, *(1,) * (lines.ndim - 3), chain.inner, chain.inner)
        ahead = (lines[:, 1:] - lines[:, :-1]) @ projector
        goal = (lines[:, :-1] + ahead).movedim(1, 2 + chain.axes[position])
    return found[::-1]


def _equal(goal: Float64[Tensor, "groups rows *taps inner"], chain: ProjectorChain) -> Ranges:
    """The first channels for every first factor, and the others for every second: the central tap."""
    eye = torch.eye(chain.inner, dtype=goal.dtype, device=goal.device).expand(len(goal), -1, -1)
    parts = eye.split([chain.rank, chain.inner - chain.rank], -1)
    return [parts[chain.is_second(position)] for position in range(len(chain.axes))]


def _product(chain: ProjectorChain, head: Head, ranges: Ranges) -> Float64[Tensor, "groups rows *taps inner"]:
    return _times(chain, head, [span @ span.mT for span in ranges])


def _times(chain: ProjectorChain, head: Head, projectors: list[Tensor]) -> Float64[Tensor, "groups rows *taps inner"]:
    found = head.reshape(-1, chain.rows, *chain.window, chain.inner)
    for projector, axis in zip(projectors, chain.axes, strict=True):
        found = times_factor(found, projector, axis)
    # Columns that are left out are zero in the goal, and must not count as a part that is missing.
    return functional.pad(found[..., : chain.cols], (0, chain.inner - chain.cols))


def _score(goal: Tensor, chain: ProjectorChain, head: Head, ranges: Ranges) -> Float64[Tensor, " groups"]:
    return (goal * _product(chain, head, ranges)).flatten(1).sum(1)


def _best_head(goal: Tensor, chain: ProjectorChain, ranges: Ranges) -> Head:
    projectors = [span @ span.mT for span in ranges]
    head = goal.new_zeros(len(goal), chain.rows, math.prod(chain.window) * chain.inner)
    left, _, right = torch.linalg.svd(_coefficient(goal, chain, head, projectors, None), full_matrices=False)
    return left @ right


def _best_range(goal: Tensor, chain: ProjectorChain, head: Head, ranges: Ranges, position: int) -> Tensor:
    projectors = [span @ span.mT for span in ranges]
    slope = _coefficient(goal, chain, head, projectors, position)
    return _leading(slope + slope.mT, chain.rank_of(position))


def _coefficient(
    goal: Tensor, chain: ProjectorChain, head: Head, projectors: list[Tensor], position: int | None
) -> Tensor:
    """The derivative of the inner product with one P, or with H: their coefficient, for it is linear in each."""
    with torch.enable_grad():
        own = (head if position is None else projectors[position]).detach().requires_grad_()
        others = [own if i == position else p for i, p in enumerate(projectors)]
        made = _times(chain, own if position is None else head, others)
        (found,) = torch.autograd.grad((goal * made).sum(), own)
    return found


def _leading(matrix: Float64[Tensor, "groups n n"], rank: int) -> Float64[Tensor, "groups n rank"]:
    # In the order of the eigenvalues: the largest come last.
    return torch.linalg.eigh(matrix).eigenvectors[..., matrix.shape[-1] - rank :]


def _choose(where: Bool[Tensor, " groups"], yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(where[:, None, None], yes, no)


def _halves(chain: ProjectorChain, ranges: Ranges, head: Head) -> Float64[Tensor, "factors rank inner"]:
    """The R of all factors: of every second one, an orthonormal basis of what its P leaves out."""
    if not chain.axes:
        return head.new_empty(0, chain.rank, chain.inner)
    eye = torch.eye(chain.inner, dtype=head.dtype, device=head.device)
    found = [
        _leading(eye - span @ span.mT, chain.rank) if chain.is_second(position) else span
        for position, span in enumerate(ranges)
    ]
    return torch.stack(found, 1).flatten(0, 1).mT
