"""Pictures of the support: random points, walked to the level set of a trained network."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit._seeds import generator
from lipkit.sdf.one_class.proposals import Proposal
from lipkit.sdf.walk import Walk


def draw_support(
    model: nn.Module,
    rows: Float[Tensor, "n *shape"],
    proposal: Proposal,
    count: int,
    level: float = 0.0,
    steps: int = 64,
    seed: int = 0,
) -> Float[Tensor, "m *shape"]:
    """Points of the boundary as a network of constant 1 sees it: proposals, walked to the level set from outside.

    One network is critic and generator. Guarantee: none; walks whose gradient vanishes end early.
    Cost: `steps` values and gradients of `count` points. Reference: Béthune 2024, figure 5.2.

    Args:
        model: Of constant 1, positive on the rows.
        rows: What it was trained on, for the shape and the domain of the proposals.
        proposal: Where walks start.
        count: How many points.
        level: The level set that is shown.
        steps: Steps of a walk; as many times the whole way is allowed, so that small slopes do not stop it.
        seed: Where the random numbers start.
    """
    source = generator(seed) if rows.device.type == "cpu" else torch.Generator(rows.device).manual_seed(seed)
    low, high = proposal.box(rows)
    start = proposal.draw(rows, count, source)
    return Walk(level, steps, float(steps), low, high).toward(model, start)
