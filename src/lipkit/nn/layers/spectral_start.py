"""The start of plain layers with norm 1."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lipkit.errors import ArgumentError
from lipkit.nn.core.geometry import geometry_of
from lipkit.nn.methods.spectral_normalization import Spectral


@torch.no_grad()
def spectral_(module: nn.Module) -> nn.Module:
    """Draw the weights of a model's plain linear layers and convolutions anew, each divided by its norm; biases zero.

        W <- W / ||W||, W by Xavier's rule.

    Norms are of operators, not of reshaped kernels: `Spectral` bounds that of a convolution on inputs of every size.
    Only the start has norm 1: training changes it, unlike that of the layers of lipkit.nn, which this leaves alone.
    Guarantee: every norm is at most 1 as stored in float32 or float64, for convolutions up to the slack of `Spectral`
    below it. Cost: one norm for each layer. Reference: Qi et al. 2023 (LipsFormer).

    Args:
        module: A layer or a model of torch.nn; changed in place, and returned.
    """
    found = [part for part in module.modules() if isinstance(part, nn.Linear | nn.modules.conv._ConvNd)]
    plain = [part for part in found if not nn.utils.parametrize.is_parametrized(part)]
    if not plain:
        raise ArgumentError(
            f"spectral_ starts plain linear layers and convolutions, and {type(module).__name__} has none; the layers "
            "of lipkit.nn have norm 1 anyway."
        )
    for part in plain:
        weight = part.weight
        if is_lazy(weight) or weight.dtype not in (torch.float32, torch.float64):
            raise ArgumentError(
                f"spectral_ draws weights in float32 and float64, and that of {part} has {weight.dtype} or no numbers "
                "yet; convert the model, or run it once."
            )
        geometry = geometry_of(part)
        nn.init.xavier_normal_(weight)
        weight.copy_(geometry.join(Spectral()(geometry.blocks(weight), geometry)))
        if part.bias is not None:
            part.bias.zero_()
    return module
