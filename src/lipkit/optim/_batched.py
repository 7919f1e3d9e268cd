"""Optimizers that move matrices of equal shape together."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.optim._foreach import copy_all
from lipkit.optim._optimizer import StiefelOptimizer, as_matrix, refuse_broken_gradients, tall


class BatchedOptimizer(StiefelOptimizer):
    """An optimizer that sees tall matrices in batches of equal shape, in float32 at least, with finite gradients."""

    @abstractmethod
    def advance(
        self,
        members: Sequence[Tensor],
        points: Inexact[Tensor, "batch long short"],
        gradients: Inexact[Tensor, "batch long short"],
        group: dict[str, Any],
    ) -> Inexact[Tensor, "batch long short"]:
        """The next points of parameters of equal shape."""

    def move(self, group: dict[str, Any]) -> None:
        """One step for every parameter of the group that has a gradient; those of equal shape together."""
        for members in alike(group["params"]):
            gradients = stacked([p.grad for p in members if p.grad is not None])
            moved = self.advance(members, stacked(members), gradients, group)
            copy_all([tall(as_matrix(p)) for p in members], list(moved.unbind()))

    def check_gradients(self) -> None:
        """Refuse gradients that are sparse or not finite; a GPU is waited for once."""
        refuse_broken_gradients(p for group in self.param_groups for p in group["params"])

    def remembered(
        self, members: Sequence[Tensor], name: str, like: Inexact[Tensor, "batch long short"]
    ) -> Inexact[Tensor, "batch long short"]:
        """The tensors that `remember` stored for every member, zero where it stored none."""
        zero = torch.zeros_like(like[0])
        return torch.stack([self.state[p].get(name, zero).to(like.dtype) for p in members])

    def remember(self, members: Sequence[Tensor], name: str, values: Inexact[Tensor, "batch long short"]) -> None:
        """Store a matrix for every member, in the type to which torch casts what it loads: runs resume to the bit."""
        for parameter, value in zip(members, values.unbind(), strict=True):
            self.state[parameter][name] = value.to(parameter.dtype, copy=True)


def alike(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The parameters that have gradients, those with equal shape, type and device together."""
    found: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            key = (tall(as_matrix(parameter)).shape, parameter.dtype, parameter.device)
            found.setdefault(key, []).append(parameter)
    return list(found.values())


def stacked(tensors: Sequence[Tensor]) -> Inexact[Tensor, "batch long short"]:
    """Tensors of equal shape as tall matrices, in float32 at least: factorisations need it."""
    matrices = torch.stack([tall(as_matrix(t)) for t in tensors])
    return matrices.to(torch.promote_types(matrices.dtype, torch.float32))
