"""Labels that are partly replaced at random."""

import torch
from jaxtyping import Int
from torch import Tensor

from lipkit._seeds import generator
from lipkit.errors import ArgumentError


def with_uniform_noise(labels: Int[Tensor, " count"], classes: int, share: float, seed: int) -> Int[Tensor, " count"]:
    """Labels of which a share, rounded to a whole number of them, is replaced by classes drawn uniformly.

    A drawn class may be the old one, so that share (1 - 1/classes) of all labels change on average.

    Args:
        labels: Class indices.
        classes: Number of classes.
        share: In [0, 1].
        seed: Of the places and of the classes.
    """
    if not (0 <= share <= 1 and classes >= 2):
        raise ArgumentError(f"share lies in [0, 1] and there are at least two classes, got {share} and {classes}.")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ArgumentError(f"Labels lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}.")
    source = generator(seed)
    chosen = torch.randperm(len(labels), generator=source)[: round(share * len(labels))]
    drawn = torch.randint(classes, (len(chosen),), generator=source)
    noisy = labels.clone()
    noisy[chosen.to(labels.device)] = drawn.to(labels)
    return noisy
