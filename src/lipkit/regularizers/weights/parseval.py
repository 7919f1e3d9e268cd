"""The Parseval retraction: one step towards orthogonal weights, taken after each step of the optimizer."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.regularizers.linear_layers import Convolution


def parseval_step(weight: Float[Tensor, "*batch rows cols"], rate: float) -> Float[Tensor, "*batch rows cols"]:
    """W <- (1 + rate) W - rate W W'W: a gradient step of length `rate` on 1/4 ||W'W - I||_F^2.

    Every singular value moves by s <- s + rate s (1 - s^2), so for s <= 1 and rate <= 1/2 it rises towards 1 and not
    beyond; rate 1/2 is Björck's iteration. From s^2 > 1 + 2/rate it diverges. Cost: two products with the smaller side.
    References: Cisse et al. 2017; Béthune 2024, section 2.3.2, where a quarter is printed as a half (docs/errata.md).
    """
    if not 0 <= rate <= 0.5:
        raise ArgumentError(f"The rate of a Parseval step must lie in [0, 1/2], got {rate}.")
    tall = weight.shape[-2] >= weight.shape[-1]
    cubic = weight @ (weight.mT @ weight) if tall else (weight @ weight.mT) @ weight
    return (1 + rate) * weight - rate * cubic


@torch.no_grad()
def parseval_step_(
    model: nn.Module, rate: float = 1e-3, rows: float = 1.0, generator: torch.Generator | None = None
) -> nn.Module:
    """`parseval_step` on every nn.Linear and convolution of a model, in place, after an optimizer step; returns it.

    Of a kernel, the matrix of each group has a row for each output channel and a column for each input channel and tap;
    it is scaled by the root of the number of taps, so that what converges to orthonormal rows is a convolution of norm
    at most 1 (zero or circular padding). `rows` is the share of the rows that a step acts on, drawn anew each time: the
    cheap variant of the authors, which corrects the Gram entries among these rows.

    Guarantee: none; the norm is bounded in the limit only. Cost: two products a layer, in float32 at least.
    Weights that a parametrization computes are refused; layers of `lipkit.nn` keep their own constraints.
    Reference: Cisse et al. 2017 (rate 1e-4 to 1e-2, 30 % of the rows).

    Args:
        rate: Length of the step, in [0, 1/2].
        rows: Share of the rows that the step acts on, in (0, 1].
        generator: Draws the rows; torch's global one if None.
    """
    if not 0 < rows <= 1:
        raise ArgumentError(f"`rows` is the share of the rows to use, in (0, 1], got {rows}.")
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear | Convolution)]
    # All refusals come before the first change.
    weights = [own_weight(name, module) for name, module in found]
    for (_, module), weight in zip(found, weights, strict=True):
        matrix, scale = _matrix(module, weight)
        count = matrix.shape[1]
        chosen = torch.arange(count, device=matrix.device)
        if rows < 1:
            device = matrix.device if generator is None else generator.device
            drawn = torch.randperm(count, generator=generator, device=device)
            chosen = drawn[: max(1, round(rows * count))].to(matrix.device)
        part = matrix[:, chosen]
        wide = part.to(torch.promote_types(part.dtype, torch.float32))
        with torch.autocast(wide.device.type, enabled=False):
            stepped = (parseval_step(wide * scale, rate) / scale).to(part.dtype)
        # Not every memory format has a view as a matrix.
        weight.copy_(matrix.index_copy(1, chosen, stepped).reshape_as(weight))
    return model


def _matrix(module: nn.Linear | Convolution, weight: nn.Parameter) -> tuple[Float[Tensor, "groups rows cols"], float]:
    """The weight as matrices, and the factor that makes orthonormal rows a contraction."""
    if isinstance(module, nn.Linear):
        return weight[None], 1.0
    # The rows of a transposed convolution are its inputs: it is the adjoint of a convolution with these rows.
    return weight.flatten(1).unflatten(0, (module.groups, -1)), math.sqrt(math.prod(module.kernel_size))


def own_weight(name: str, module: nn.Module) -> nn.Parameter:
    """The weight of a layer, if it is a parameter of its own that can be replaced."""
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    if weight is None:
        raise UnsupportedError(
            f"{name or type(module).__name__} has no weight of its own that could be replaced (it is computed by a "
            "parametrization, or is part of another); leave this layer out, or remove the parametrization first."
        )
    return weight
