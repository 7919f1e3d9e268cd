"""Normalisation with a constant: centering, and scales that cannot exceed one."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.activations._channels import per_channel
from lipkit.nn.core.known_constants import Contraction


@final
class LayerCentering(Contraction):
    """x - mean(x) over the axes `dim` (by default the channels): the projector I - 11'/n, with singular values 0 and 1.

    Guarantee: constant 1 (exact unless n = 1, where everything becomes zero). Layer normalisation itself divides by a
    deviation and has the constant max|gamma| / sqrt(eps). Reference: Bethune, thesis 2024.

    Args:
        dim: Axes over which the mean is taken.
    """

    def __init__(self, dim: int | Sequence[int] = 1) -> None:
        super().__init__()
        self.dim = (dim,) if isinstance(dim, int) else tuple(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x without its mean."""
        return x - x.mean(self.dim, keepdim=True)


@final
class CenterNorm(Contraction):
    """gamma * (x - mean(x)) + beta over the last axis, with |gamma| <= 1 by clipping.

    The published layer has the factor d/(d-1) in front and so the constant max|gamma| d/(d-1), above 1 at its own start
    gamma = 1; without the factor and with gamma clipped it is max|gamma| <= 1. For d = 1 the output is beta.
    Guarantee: constant 1. Reference: Qi et al. 2023 (LipsFormer); the normalisation to 1 is ours.

    Args:
        features: Length of the last axis.
    """

    def __init__(self, features: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.features = features
        self.weight = nn.Parameter(torch.ones(features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The centered input, scaled and shifted."""
        if x.shape[-1] != self.features:
            raise ShapeError(f"CenterNorm({self.features}) got an input of shape {tuple(x.shape)}.")
        scale = self.weight.clamp(-1, 1).to(x.dtype)
        return (x - x.mean(-1, keepdim=True)) * scale + self.bias.to(x.dtype)


class _Statistics(Contraction):
    """Running statistics of each channel, on axis 1 of a batch; a single vector is a batch of one, x[None]."""

    @property
    def every_norm(self) -> bool:
        """In evaluation, where the layer is diagonal."""
        return not self.training

    running_mean: Tensor

    def __init__(self, features: int, momentum: float, device: torch.device | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ArgumentError(f"momentum must be in (0, 1], got {momentum}.")
        self.features = features
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(features, device=device, dtype=dtype))

    def _axes(self, x: Tensor) -> tuple[int, ...]:
        if x.ndim < 2 or x.shape[1] != self.features:
            raise ShapeError(
                f"{type(self).__name__}({self.features}) got an input of shape {tuple(x.shape)}; it takes batches "
                f"(batch, {self.features}, ...), so give one vector as x[None]."
            )
        return tuple(axis for axis in range(x.ndim) if axis != 1)

    @torch.no_grad()
    def _follow(self, running: Tensor, found: Tensor) -> None:
        found = found.detach().to(running.dtype)
        if dist.is_available() and dist.is_initialized():
            # All processes follow the same mean; torch would copy that of the first before the next forward.
            found = found.clone()
            dist.all_reduce(found)
            found /= dist.get_world_size()
        running.lerp_(found, self.momentum)


@final
class BatchCentering(_Statistics):
    """x - mean, with the mean of each channel over the batch in training, and its running mean in evaluation; plus a
    bias.

    Guarantee: constant 1. In evaluation it is a translation. In training it is a projector of the whole batch, so the
    constant holds for the batch as one input, and 1 - 1/n for one sample with the others fixed.
    Reference: Bethune, thesis 2024.

    Args:
        features: Number of channels, on axis 1.
        momentum: Weight of the newest batch in the running mean, in (0, 1].
    """

    def __init__(
        self,
        features: int,
        momentum: float = 0.1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, momentum, device, dtype)
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The centered batch."""
        axes = self._axes(x)
        mean = self.running_mean
        if self.training:
            mean = x.mean(axes)
            self._follow(self.running_mean, mean)
        return x - per_channel((mean - self.bias).to(x.dtype), x, 1)


class _Variances(_Statistics):
    """Running variances too, a learnt scale and a shift of each channel."""

    running_var: Tensor

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(features, momentum, device, dtype)
        self.eps = eps
        self.register_buffer("running_var", torch.ones(features, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.ones(self.scale_shape(), device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))

    @abstractmethod
    def scale_shape(self) -> tuple[int, ...]:
        """The shape of the learnt scale."""


@final
class BatchNorm(_Variances):
    """Batch normalisation whose scale is clipped: y = s (x - mean) + beta, s = clip(gamma / sqrt(var + eps), -1, 1).

    Guarantee: constant 1. In evaluation, with running statistics, the layer is diagonal with entries s. In training,
    with the statistics of the batch, it holds for the whole batch as one input: where s is clipped the Jacobian is a
    projector, elsewhere (gamma / std)(I - 11'/n - zz'/n) with z the normalised batch, whose norm is |gamma| / std <= 1.
    It is NOT a statement about evaluation: what a batch was scaled by in training is not what it is scaled by later.
    Limit: batch normalisation enlarges small activations, and this one cannot: put it where norms are kept.

    Args:
        features: Number of channels, on axis 1.
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running statistics, in (0, 1].
    """

    def scale_shape(self) -> tuple[int, ...]:
        """One number for each channel."""
        return (self.features,)

    def forward(self, x: Tensor) -> Tensor:
        """The centered batch, scaled by at most one and shifted."""
        axes = self._axes(x)
        mean, var = self.running_mean, self.running_var
        if self.training:
            var, mean = torch.var_mean(x, axes, correction=0)
            self._follow(self.running_mean, mean)
            self._follow(self.running_var, var)
        scale = (self.weight / (var + self.eps).sqrt()).clamp(-1, 1)
        scale, mean, bias = (per_channel(v.to(x.dtype), x, 1) for v in (scale, mean, self.bias))
        return (x - mean) * scale + bias


@final
class CommonBatchNorm(_Variances):
    """Batch normalisation with one scale for all channels: y = s (x - mean) + beta, s = clip(g / sqrt(v + eps), -1, 1).

    v is the largest running variance of all channels, and g one learnt number: directions are kept, where `BatchNorm`
    scales channels apart. The mean is that of the batch in training; the scale comes from running statistics in
    training too, because with v of the batch the map of a whole batch has constants up to sqrt(channels).
    Guarantee: constant 1, in evaluation and, for the whole batch as one input, in training. The running variance is
    updated after each batch of training.
    Reference: after BatchLipNorm of deel-torchlip (Serrurier et al.), whose constant is 1 / sqrt(v) and must be undone
    elsewhere; the clipped scale is ours.

    Args:
        features: Number of channels, on axis 1.
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running statistics, in (0, 1].
    """

    def scale_shape(self) -> tuple[int, ...]:
        """One number for all channels."""
        return ()

    def forward(self, x: Tensor) -> Tensor:
        """The centered batch, scaled by one number of at most one and shifted."""
        axes = self._axes(x)
        scale = (self.weight / (self.running_var.max() + self.eps).sqrt()).clamp(-1, 1)
        mean = self.running_mean
        if self.training:
            var, mean = torch.var_mean(x, axes, correction=0)
            self._follow(self.running_mean, mean)
            self._follow(self.running_var, var)
        mean, bias = (per_channel(v.to(x.dtype), x, 1) for v in (mean, self.bias))
        return (x - mean) * scale.to(x.dtype) + bias
