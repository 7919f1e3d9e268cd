"""Records that nobody owns: what models and losses are tried on before a private record is read."""

import torch
from torch import Tensor

from lipkit.privacy.input_ball import Inputs


def public_records(inputs: Inputs, count: int, like: Tensor, seed: int = 0) -> Tensor:
    """Random records on the sphere of the ball, the same in every run, in the type and on the device of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, *inputs.shape, generator=generator, dtype=torch.float64)
    norms = torch.linalg.vector_norm(drawn.flatten(1), dim=1).reshape(-1, *(1,) * len(inputs.shape))
    # `inputs` subtracts the center, and cuts what rounding has put outside.
    return inputs(drawn * inputs.radius / norms + torch.as_tensor(inputs.center).to(drawn)).to(like)
