"""A single score as a classifier of two classes."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.certify.attacks.attacked_model import Classifier
from lipkit.errors import ShapeError


@final
class TwoClasses(nn.Module):
    """A score f as logits (-f/2, f/2): class 1 where f > 0, and the margin is |f|.

    It is a module like any other, so constants of it are bounded, and `accuracy` and attacks take it. A score that is a
    module is a part of it; any other function may be attacked, and certified if it can be captured.

    Guarantee: the constant of the difference of the logits is that of f in every norm, so radii are those of
    `binary_radius`, |f|/L, up to rounding. Cost: that of the score.

    Args:
        score: Gives one number for each sample.
    """

    def __init__(self, score: nn.Module | Classifier) -> None:
        super().__init__()
        self.score = score

    def forward(self, points: Float[Tensor, "n ..."]) -> Float[Tensor, "n 2"]:
        """Two logits for every score."""
        score = self.score(points)
        flat = score[:, None] if score.ndim == 1 else score.flatten(1)
        if flat.shape[1] != 1:
            raise ShapeError(f"`TwoClasses` needs one score a sample, got {flat.shape[1]}.")
        return torch.cat([-flat / 2, flat / 2], dim=1)
