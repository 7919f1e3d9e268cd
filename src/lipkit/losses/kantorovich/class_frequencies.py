"""Counts of classes in a batch, on this process or over all processes of a distributed run."""

import torch
from jaxtyping import Float
from torch import Tensor, distributed


def totals(counts: Float[Tensor, "..."], synchronise: bool) -> Float[Tensor, "..."]:
    """Counts of this process, or their sum over all processes of the default group where one is running."""
    if not (synchronise and distributed.is_available() and distributed.is_initialized()):
        return counts
    counts = counts.clone()
    distributed.all_reduce(counts)
    return counts


def inverse(counts: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / count, and 0 for a class that does not occur: its mean counts as 0."""
    return torch.where(counts > 0, counts, 1.0).reciprocal() * (counts > 0)


@torch.no_grad()
def binary_weights(positive: Tensor, like: Tensor, synchronise: bool) -> Float[Tensor, "..."]:
    """n / n_class for each sample of two classes: the mean of weighted numbers is the sum of the class means."""
    mine = torch.stack([positive.sum(), (~positive).sum()]).to(like)
    n = totals(mine, synchronise)
    weights = inverse(n) * n.sum()
    return torch.where(positive, weights[0], weights[1])


@torch.no_grad()
def class_weights(one_hot: Tensor, like: Tensor, synchronise: bool) -> Float[Tensor, "batch classes"]:
    """n / n_k at the own class, n / (n - n_k) at the others: one against all, for each class."""
    present = one_hot.to(like)
    counts = torch.cat([present.sum(0), present.new_tensor([float(one_hot.shape[0])])])
    counts = totals(counts, synchronise)
    k, n = counts[:-1], counts[-1]
    return torch.where(one_hot, inverse(k) * n, inverse(n - k) * n)
