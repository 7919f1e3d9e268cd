"""A journal of one-class training: whether rows score high, proposals low, and walks arrive."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Health:
    """What a network of one-class training does at one step, over one batch.

    A training went well if its last entries have a recall above 0.95, no false positives, a slope of 0.8 to 1 and
    rows > walked > proposals, with a loss that came to rest; if not, more steps help first. Guarantee: none, and none
    of these numbers says how well anomalies are found: that takes labels.

    Args:
        step: How many updates were made.
        loss: The loss of this step.
        recall: Share of the rows with f > 0.
        false_positives: Share of the complementary samples with f > 0, after their walks.
        slope: Mean norm of the gradient at these samples; near 1 where f is a distance.
        displacement: Mean of |z_T - z_0|/|f(z_0)|, how far walks went against how far the network says there was to go.
        rows: Mean score of the rows.
        proposals: Mean score of the complementary samples before their walks.
        walked: Mean score of them after.
    """

    step: int
    loss: float
    recall: float
    false_positives: float
    slope: float
    displacement: float
    rows: float
    proposals: float
    walked: float

    @staticmethod
    def look(
        step: int,
        loss: Float[Tensor, ""],
        model: nn.Module,
        rows: Float[Tensor, "n *shape"],
        proposals: Float[Tensor, "m *shape"],
        walked: Float[Tensor, "m *shape"],
    ) -> "Health":
        """Look at a network. Cost: three evaluations and one gradient."""
        start = walked.detach().requires_grad_()
        at_end = model(start).flatten()
        (gradient,) = torch.autograd.grad(at_end.sum(), start)
        with torch.no_grad():
            at_rows, at_start = model(rows).flatten(), model(proposals).flatten()
        way = torch.linalg.vector_norm((walked - proposals).flatten(1), dim=1)
        tiny = torch.finfo(way.dtype).tiny
        return Health(
            step,
            float(loss.detach()),
            float((at_rows > 0).double().mean()),
            float((at_end > 0).double().mean()),
            float(torch.linalg.vector_norm(gradient.flatten(1), dim=1).mean()),
            float((way / at_start.abs().clamp(min=tiny)).mean()),
            float(at_rows.mean()),
            float(at_start.mean()),
            float(at_end.detach().mean()),
        )
