"""Operations on lists of tensors, in one launch for all on accelerators: torch documents them, its types hide them."""

import torch
from torch import Tensor


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """target <- source."""
    if targets:
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def move_all(targets: list[Tensor], ends: list[Tensor], share: float) -> None:
    """target <- target + share (end - target)."""
    if targets:
        torch._foreach_lerp_(targets, ends, share)  # pyright: ignore[reportPrivateImportUsage]


def decay_and_add_all(targets: list[Tensor], factor: float, others: list[Tensor]) -> None:
    """target <- factor target + other."""
    torch._foreach_mul_(targets, factor)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(targets, others)  # pyright: ignore[reportPrivateImportUsage]


def sums(first: list[Tensor], factor: float, second: list[Tensor]) -> list[Tensor]:
    """first + factor second."""
    return list(torch._foreach_add(first, second, alpha=factor))  # pyright: ignore[reportPrivateImportUsage]
