"""How far the roundings of a type move what a network answers."""

import contextlib

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.trace.network import Network

# Random signs of the roundings that are tried: a single one may cancel by chance, eight do not.
_DRAWS = 8


def measure_rounding(
    network: Network, x: Tensor, value: Tensor, dtype: torch.dtype, own: torch.dtype
) -> Float64[Tensor, " batch"]:
    """How far one rounding of every intermediate value moves an entry of each answer, found by doing it.

    Twice: by random signs in float64, and by the kernels of the model's `own` type, whose settings may allow them to
    round more (TF32).

    Args:
        x: The inputs, in float64.
        value: The outputs of the network there, in float64.
        dtype: The type whose roundings are done.
        own: The type of the model.

    Gives an estimate, one number for each sample. Cost: nine evaluations of the network.
    """
    # Where the values are: of thousands of images that is billions of signs, which a CPU draws for minutes.
    generator = torch.Generator(x.device).manual_seed(0)
    kind = torch.finfo(dtype)
    # Numbers so small that their squares, cubes or fourth powers vanish inside of one operation, a norm of torch for
    # example, which works in float32 at least; or that vanish themselves.
    wide = torch.finfo(torch.promote_types(dtype, torch.float32))
    vanishing = max(wide.smallest_normal**0.25, kind.smallest_normal * kind.eps)

    def rounded(z: Tensor) -> Tensor:
        signs = torch.randint(0, 2, z.shape, generator=generator, dtype=torch.int8, device=z.device).to(z) * 2 - 1
        return z + signs * (kind.eps * z.nan_to_num(0.0, 0.0, 0.0).abs() + vanishing)

    answers = [network.values(x, rounded)[-1] for _ in range(_DRAWS)]
    # Some nodes have no kernel in half precision.
    with contextlib.suppress(RuntimeError):
        answers.append(network(x.to(own)).to(value))
    moves = [(answer - value).abs().nan_to_num(0.0, torch.inf).flatten(1).amax(1) for answer in answers]
    return torch.stack(moves).amax(0)
