"""Dense layers of norm at most one."""

from typing import final

import torch
from torch import nn

from lipkit.nn.layers._constrained_layer import ConstrainedLayer, refuse_methods
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck


@final
class Linear(ConstrainedLayer, nn.Linear):
    """nn.Linear with ||W|| <= 1 by `method`, in training and in evaluation.

    The default method is `Bjorck()`: every singular value is 1. The weight starts at random, the bias at zero. Inputs
    may have further axes before the last, as for nn.Linear. Under `frozen` and after `condense` it costs what nn.Linear
    costs.

    Args:
        method: Computes the weight from free numbers; by default `Bjorck()`. All others are those of nn.Linear.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        refuse_methods(self, bias=bias)
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self.constrain_weight(method)
