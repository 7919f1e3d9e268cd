"""Steps of low rank on the manifold of orthonormal matrices, at the price of their rank."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit._seeds import check_seed, derive_seed, generator
from lipkit.optim._batched import BatchedOptimizer
from lipkit.optim._nearest import nearest_orthonormal
from lipkit.optim._optimizer import check_count, check_digits
from lipkit.optim._rotation import rotate
from lipkit.optim.low_rank import Directions, RandomDirections

# Singular values below this part of the largest count as zero: what is projected has no nearest point then.
_SINGULAR = 2.0**-12


class LowRankOptimizer(BatchedOptimizer):
    """An optimizer whose steps have rank `rank`: G ~ Q Q'G for few directions Q.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step.
        rank: Rank of a step; at most the smaller side of a matrix is used.
        momentum: Decay of the momentum, in [0, 1).
        directions: Way to find the directions; `RandomDirections()` if None.
        project_every: At the first and then every so many steps the matrix is projected, because rounding adds up.
        seed: Start of the random numbers; each step draws its own, so runs resume to the bit.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        lr: float,
        rank: int,
        momentum: float = 0.0,
        directions: Directions | None = None,
        project_every: int = 100,
        seed: int = 0,
    ) -> None:
        self.directions = RandomDirections() if directions is None else directions
        fields = {"rank": rank, "momentum": momentum, "project_every": project_every, "seed": seed, "taken": 0}
        super().__init__(params, {"lr": lr, **fields})

    def __getstate__(self) -> dict[str, Any]:
        """With the directions, which copies need too."""
        return {**super().__getstate__(), "directions": self.directions}

    def check(self, group: dict[str, Any]) -> None:
        """Check rates and parameters, and that `rank` and `project_every` are whole numbers from 1 on."""
        check_count("rank", group["rank"])
        check_count("project_every", group["project_every"])
        check_seed(group["seed"])
        super().check(group)

    def check_parameter(self, parameter: Tensor) -> None:
        """Refuse types in which rounding adds up quickly, and matrices far from orthonormal."""
        check_digits(self, parameter)
        super().check_parameter(parameter)

    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient; those of equal shape together."""
        group["taken"] += 1
        super().move(group)

    def advance(
        self,
        members: Sequence[Tensor],
        points: Inexact[Tensor, "batch long short"],
        gradients: Inexact[Tensor, "batch long short"],
        group: dict[str, Any],
    ) -> Inexact[Tensor, "batch long short"]:
        """The projection if it is due, and the step of low rank."""
        # Before the step, which takes W'W = I for granted, and before the first one too.
        counts = [self.state[p].get("step", 0) for p in members]
        due = [i for i, count in enumerate(counts) if count % group["project_every"] == 0]
        if due:
            points[due] = nearest_orthonormal(points[due])
        for parameter, count in zip(members, counts, strict=True):
            self.state[parameter]["step"] = count + 1
        if group["momentum"]:
            gradients = gradients + group["momentum"] * self.remembered(members, "momentum", points)
            self.remember(members, "momentum", gradients)
        source = generator(derive_seed(group["seed"], group["taken"]))
        basis = self.directions(gradients, min(group["rank"], points.shape[-1]), source)
        return self.low_rank_step(points, -group["lr"] * basis, gradients.mH @ basis)

    @abstractmethod
    def low_rank_step(
        self,
        points: Inexact[Tensor, "batch long short"],
        left: Inexact[Tensor, "batch long rank"],
        right: Inexact[Tensor, "batch short rank"],
    ) -> Inexact[Tensor, "batch long short"]:
        """The next points for a step L R' of low rank."""


@final
class ProjUNND(LowRankOptimizer):
    """projUNN-D: the step of low rank, and the nearest orthonormal matrix, W <- polar(W - lr Q Q'G).

    With W'W = I and a step L R', the space outside the columns of [R, W'L] does not change; for an orthonormal basis
    P of at most 2 rank columns
        polar(W + L R') = W + (polar((W + L R') P) - W P) P'.

    Complex matrices may be unitary. Matrices of equal shape are moved together. Limit: parts of a gradient of higher
    rank than `rank` do not vanish at an optimum, as all of it does on the manifold, so steps end at a distance that
    shrinks with `lr`; gradients of small batches have the rank of the batch.

    Guarantee: orthonormal up to rounding, which adds up until the next projection. Cost: products of n p rank, a QR
    factorisation and a singular value decomposition of n x 2 rank; `project_every` products of n p^2.
    Reference: Kiani, Balestriero, LeCun and Lloyd 2022; for square matrices there, the tall case is ours.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step.
        rank: Rank of a step; at most the smaller side of a matrix is used.
        momentum: Decay of the momentum, in [0, 1).
        directions: Way to find the directions; `RandomDirections()` if None.
        project_every: At the first and then every so many steps the matrix is projected, because rounding adds up.
        seed: Start of the random numbers; each step draws its own, so runs resume to the bit.
    """

    def low_rank_step(
        self,
        points: Inexact[Tensor, "batch long short"],
        left: Inexact[Tensor, "batch long rank"],
        right: Inexact[Tensor, "batch short rank"],
    ) -> Inexact[Tensor, "batch long short"]:
        """The nearest orthonormal matrix."""
        basis = torch.linalg.qr(torch.cat([right, points.mH @ left], -1)).Q
        before = points @ basis
        moved = before + left @ (right.mH @ basis)
        u, values, v = torch.linalg.svd(moved, full_matrices=False)
        nearest = points + (u @ v - before) @ basis.mH
        # The vectors of a zero singular value may be any, also some that the rest of the matrix has.
        singular = values[:, -1] <= _SINGULAR * values[:, 0]
        if bool(singular.any()):
            nearest[singular] = nearest_orthonormal((points + left @ right.mH)[singular])
        return nearest


@final
class ProjUNNT(LowRankOptimizer):
    """projUNN-T: a rotation along the step of low rank, W <- exp(-lr/2 (H W' - W H')) W with H = Q Q'G.

    For square matrices that is W exp(-lr W'proj_W(H)), proj_W(H) = (H - W H'W)/2. The exponent is skew, of rank
    2 rank, so the exponential is one of that size. For tall matrices the step is -lr/2 (H - W H'W) to first order.

    Complex matrices may be unitary. Matrices of equal shape are moved together. Limit: that of `ProjUNND`.

    Guarantee: orthonormal up to rounding, which adds up until the next projection. Cost: products of n p rank, a QR
    factorisation of n x 2 rank and an exponential of 2 rank; `project_every` products of n p^2.
    Reference: Kiani, Balestriero, LeCun and Lloyd 2022; for square matrices there, the tall case is ours.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step.
        rank: Rank of a step; at most the smaller side of a matrix is used.
        momentum: Decay of the momentum, in [0, 1).
        directions: Way to find the directions; `RandomDirections()` if None.
        project_every: At the first and then every so many steps the matrix is projected, because rounding adds up.
        seed: Start of the random numbers; each step draws its own, so runs resume to the bit.
    """

    def low_rank_step(
        self,
        points: Inexact[Tensor, "batch long short"],
        left: Inexact[Tensor, "batch long rank"],
        right: Inexact[Tensor, "batch short rank"],
    ) -> Inexact[Tensor, "batch long short"]:
        """The rotated matrix."""
        return rotate(points, left / 2, points @ right)
