"""Orthogonalised momentum on the manifold of orthonormal matrices."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import BFloat16, Float, Float32
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.optim._foreach import copy_all, decay_and_add_all, sums
from lipkit.optim._optimizer import (
    StiefelOptimizer,
    as_matrix,
    check_count,
    check_rate,
    refuse_broken_gradients,
    tall,
    tangent,
)

# Five steps of a x + b x^3 + c x^5 with these numbers bring singular values from [0.01, 1] into [0.7, 1.2]: fast, not
# exact, which a direction does not need. Jordan et al. 2024.
_QUINTIC = (3.4445, -4.7750, 2.0315)
# A step moves the entries of the matrix by about this much of lr, root mean square. Liu et al. 2025.
_SCALE = 0.2
# Steps up to this length leave singular values below 1 + 1.2 * 0.5 < 3^(1/2), from where one Björck step returns.
_LONG = 0.5


@final
class StiefelMuon(StiefelOptimizer):
    """Muon on the Stiefel manifold: orthogonal matrices trained at full speed, with nothing in the forward pass.

        m <- momentum m + gradient;  Z = proj_W(gradient + momentum m) (Nesterov) or proj_W(m);
        W <- W - lr 0.2 sqrt(max(rows, cols)) polar~(Z);  W <- 3/2 W - 1/2 W W'W.

    polar~ is the orthogonal factor, roughly, by `steps` quintic Newton-Schulz steps; the last line
    is one Björck step, which pulls W back to the manifold with an error that squares, so it does not drift. Matrices
    of equal shape are updated together, by batched products.

    With `every` = k a matrix moves at every k-th step only, by k lr, while its momentum takes every gradient: the cost
    of large matrices, which does not depend on the batch, falls to a k-th. Give them a group of their own,
    `{"params": large, "every": 4}`.

    Guarantee: none by itself: ||W'W - I|| is of the order of the fourth power of the step, and the next step corrects
    it; call `retract` before a proof. Cost: 3 `steps` + 4 products with the smaller side for each matrix; one more on
    accelerators, all in bfloat16. Reference: Jordan et al. 2024 for Muon; the tangent projection and the one-step
    retraction are ours.

    Args:
        params: Matrices with orthonormal rows or columns, or groups of them.
        lr: Size of a step: entries move by about 0.2 lr, root mean square.
        momentum: Decay of the momentum, in [0, 1).
        nesterov: Whether the step looks ahead along the momentum.
        steps: Newton-Schulz steps of the orthogonalisation.
        every: A matrix moves at every so many steps only.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        every: int = 1,
    ) -> None:
        # `taken` is how many steps a group has seen: with `every` it says when the next move is due.
        fields = {"momentum": momentum, "nesterov": nesterov, "steps": steps, "every": every, "taken": 0}
        super().__init__(params, {"lr": lr, **fields})

    def check(self, group: dict[str, Any]) -> None:
        """Check rates and parameters, and that `steps` and `every` are at least 1 and `every` is whole."""
        super().check(group)
        check_rate("steps", group["steps"], least=1)
        check_count("every", group["every"])

    def check_parameter(self, parameter: Tensor) -> None:
        """Refuse complex matrices too."""
        if parameter.is_complex():
            raise ArgumentError(f"StiefelMuon takes real matrices, got {parameter.dtype}; use RiemannianAdam.")
        super().check_parameter(parameter)

    def check_gradients(self) -> None:
        """Refuse gradients on a CPU that are sparse or not finite.

        A GPU is not waited for, and a recorded step cannot: look at the loss there, as `lipkit train` does.
        """
        refuse_broken_gradients(p for group in self.param_groups for p in group["params"] if p.device.type == "cpu")

    @property
    def period(self) -> int:
        """After how many steps the same matrices move again: the least common multiple of all `every`."""
        return math.lcm(*(group["every"] for group in self.param_groups))

    def count_replayed(self) -> None:
        """Count a step that a CUDA graph replayed, which runs the products of `step` and none of its Python."""
        for group in self.param_groups:
            group["taken"] += 1

    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient; those of equal shape together."""
        group["taken"] += 1
        alike: dict[object, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                key = (as_matrix(parameter).shape, parameter.dtype, parameter.device)
                alike.setdefault(key, []).append(parameter)
        for members in alike.values():
            ahead = self._ahead(members, group["momentum"], group["nesterov"])
            if group["taken"] % group["every"] == 0:
                self._move(members, ahead, group["every"] * group["lr"], group["steps"])

    def _move(self, members: Sequence[Tensor], ahead: Sequence[Tensor], lr: float | Tensor, steps: int) -> None:
        points = torch.stack([tall(as_matrix(p)) for p in members])
        directions = torch.stack([tall(as_matrix(d)) for d in ahead])
        # A direction needs few digits; on accelerators full float32 products would be most of a step.
        near = points if points.device.type == "cpu" else points.to(torch.bfloat16)
        moved = orthogonalise(tangent(near, directions.to(near.dtype)), steps)
        length = lr * _SCALE * math.sqrt(max(points.shape[-2:]))
        points = points - length * moved.to(points.dtype)
        # (1 + 1.2 h) / (1 + h^2)^(1/2) < 3^(1/2) for every h: the step below cannot diverge.
        if isinstance(length, Tensor):
            # A rate that a CUDA graph reads is not looked at here: that would wait for the device.
            points = points / torch.where(length > _LONG, (1 + length**2).sqrt(), 1.0)
        elif length > _LONG:
            points = points / math.hypot(1.0, length)
        parts = points.device.type != "cpu" and points.dtype == torch.float32
        back = bjorck_step_in_parts(points) if parts else bjorck_step(points)
        copy_all([tall(as_matrix(p)) for p in members], list(back.unbind()))

    def _ahead(self, members: Sequence[Tensor], momentum: float, nesterov: bool) -> list[Tensor]:
        """The momenta after this gradient, in few launches: with many small layers those are most of a step."""
        gradients = [p.grad for p in members if p.grad is not None]
        for parameter in members:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        momenta = [self.state[p]["momentum"] for p in members]
        decay_and_add_all(momenta, momentum, gradients)
        return sums(gradients, momentum, momenta) if nesterov else momenta


def orthogonalise(direction: Float[Tensor, "batch long short"], steps: int) -> Float[Tensor, "batch long short"]:
    """The polar factor up to 30 % in each singular value, by quintic Newton-Schulz steps; zero stays zero.

    Cost: three products with the smaller side a step, in bfloat16 on accelerators.
    """
    size = torch.linalg.matrix_norm(direction, keepdim=True)
    x = direction / torch.where(size > 0, size, 1.0)
    if x.device.type != "cpu":
        x = x.to(torch.bfloat16)
    a, b, c = _QUINTIC
    for _ in range(steps):
        gram = x.mT @ x
        x = torch.baddbmm(x, x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), beta=a)
    return x


def bjorck_step(points: Float[Tensor, "batch long short"]) -> Float[Tensor, "batch long short"]:
    """One Björck step, 3/2 W - 1/2 W W'W."""
    return torch.baddbmm(points, points, points.mT @ points, beta=1.5, alpha=-0.5)


def bjorck_step_in_parts(points: Float32[Tensor, "batch long short"]) -> Float32[Tensor, "batch long short"]:
    """The same step as W + W (I - W'W)/2 by products of bfloat16, for accelerators: full ones are 15 times slower.

    With W = H + L, both in bfloat16, W'W is H'H + H'L + L'H up to 2^-18 relative to |W|'|W|; W (I - W'W) is small, so
    that few digits of its factors suffice.
    """
    high = points.to(torch.bfloat16)
    low = (points - high).to(torch.bfloat16)
    cross = _wide_product(high.mT, low)
    defect = torch.eye(points.shape[-1], device=points.device) - _wide_product(high.mT, high) - cross - cross.mT
    return points.add(_wide_product(high, defect.to(torch.bfloat16)), alpha=0.5)


def _wide_product(a: BFloat16[Tensor, "batch n k"], b: BFloat16[Tensor, "batch k m"]) -> Float32[Tensor, "batch n m"]:
    """The product as torch sums it in float32, which on CPUs it does for float32 factors only."""
    return torch.bmm(a.float(), b.float()) if a.device.type == "cpu" else torch.bmm(a, b, out_dtype=torch.float32)
