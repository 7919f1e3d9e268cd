"""Noise of the batch gradient as the largest singular value sees it, from inputs and output gradients of a layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lipkit.analysis.dynamics.gram_decomposition import GramDecomposition
from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer
from lipkit.errors import ArgumentError, UnsupportedError

# The type of the weights decides how well sums over a batch agree; float32 over 10^4 terms keeps this share.
_AGREES = 1e-3

# Samples meet in these, while they use the statistics of the batch.
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


@final
@dataclass(frozen=True)
class Noise:
    """One layer's noise terms without the rate: kappa = rate * `curvature`, |lambda|^2 = rate * `diffusion`."""

    curvature: float
    diffusion: float


@dataclass(frozen=True, eq=False)
class Heard(ABC):
    """What one backward pass told about the noise of one layer."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """The size of the batch."""

    @abstractmethod
    def agree(self, gradient: Tensor, layer: TrackedLayer, measured: Measurement) -> bool:
        """Whether it was heard of the gradient that the optimizer has, as far as can be seen."""

    @abstractmethod
    def noise(self, layer: TrackedLayer, measured: Measurement) -> Noise:
        """kappa and |lambda|^2 of the batch, without the rate."""


@final
@dataclass(frozen=True, eq=False)
class Contractions(Heard):
    """For each sample, its part S_i of the batch gradient (their sum) times both vectors: a_i = S_i v, b_i = S_i'u."""

    a: Float[Tensor, "samples m"]
    b: Float[Tensor, "samples n"]

    @property
    def samples(self) -> int:
        return self.a.shape[0]

    def agree(self, gradient: Tensor, layer: TrackedLayer, measured: Measurement) -> bool:
        """Whether the parts add up to the gradient that the optimizer has, as far as both vectors see it."""
        gram = _gram(measured)
        wide = gradient.flatten(1).to(torch.float64)
        pairs = ((self.a, wide @ gram.right), (self.b, wide.mT @ gram.left))
        return all(
            float(torch.linalg.vector_norm(parts.to(torch.float64).sum(0) - whole))
            <= _AGREES * float(torch.linalg.vector_norm(parts.to(torch.float64), dim=1).sum())
            for parts, whole in pairs
        )

    def noise(self, layer: TrackedLayer, measured: Measurement) -> Noise:
        """kappa and |lambda|^2 of this batch, without the rate. With parts S_i that are centred over M samples:

            kappa    = rate M / (2 sigma (M - 1)) sum_i D^2 sigma[S_i, S_i] >= 0,
            lambda^2 = rate M / (sigma^2 (M - 1)) sum_i (u'S_i v)^2.

        A sample's gradient is M S_i, so this holds for losses that are a mean over samples, and for sums.
        Guarantee: ESTIMATE, unbiased for independent samples. Reference: Luo 2025, theorem 4.6.5; the contractions are
        ours.
        """
        gram = _gram(measured)
        a, b = self.a.to(torch.float64), self.b.to(torch.float64)
        a, b = a - a.mean(0), b - b.mean(0)
        factor = a.shape[0] / (a.shape[0] - 1)
        curvature = factor * float(gram.form(a, b).sum()) / (2 * gram.value)
        return Noise(curvature, factor * float((a @ gram.left).square().sum()) / gram.value**2)


def contract(
    module: nn.Module, x: Float[Tensor, "samples ..."], gradient: Float[Tensor, "samples ..."], gram: GramDecomposition
) -> Contractions:
    """The contractions of one use of a layer, from its input and the gradient of its output.

    Linear: S_i = sum over positions of delta x'. Conv2d: S_i = delta_i X_i' with unfolded inputs X_i, so S_i v is a
    convolution with one kernel, and S_i'u a sum of products with shifted inputs; nothing is unfolded.
    Cost: a small part of the layer's own backward pass, and memory for M (m + n) numbers.
    """
    left, right = gram.left.to(gradient), gram.right.to(gradient)
    x = x.to(gradient)
    if isinstance(module, nn.Linear):
        if x.ndim < 2:
            raise ArgumentError("a linear layer had an input without a batch axis")
        delta = gradient.reshape(gradient.shape[0], -1, module.out_features)
        rows = x.reshape(x.shape[0], -1, module.in_features)
        a = torch.einsum("spm,sp->sm", delta, rows @ right)
        return Contractions(a, torch.einsum("spn,sp->sn", rows, delta @ left))
    if not isinstance(module, nn.Conv2d) or module.groups != 1:
        raise UnsupportedError(f"noise terms exist for nn.Linear and nn.Conv2d without groups, not for {module}")
    if x.ndim != 4:
        raise ArgumentError("a convolution had an input without a batch axis")
    kernel = right.reshape(1, module.in_channels, *module.kernel_size)
    padded = _pad(module, x)
    shown = functional.conv2d(padded, kernel, stride=module.stride, dilation=module.dilation)
    a = torch.einsum("smhw,shw->sm", gradient, shown[:, 0])
    weights = torch.einsum("smhw,m->shw", gradient, left).flatten(1).unsqueeze(2)
    columns = [torch.bmm(part.flatten(2), weights)[:, :, 0] for part in _shifts(module, padded, gradient)]
    return Contractions(a, torch.stack(columns, dim=2).flatten(1))


def has_contractions(module: nn.Module, measured: Measurement) -> bool:
    """Whether the noise of a layer that is used once comes from its input and the gradient of its output."""
    plain = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    return plain and measured.gram is not None


def _gram(measured: Measurement) -> GramDecomposition:
    assert measured.gram is not None, "operators are heard by probes"
    return measured.gram


def mixing_layer(model: nn.Module) -> str | None:
    """The name of a batch normalisation that uses statistics of the batch now, so that samples mix."""
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            return name
    return None


def _pad(module: nn.Conv2d, x: Tensor) -> Tensor:
    sides: Any = module._reversed_padding_repeated_twice
    if not any(sides):
        return x
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(x, sides, mode=mode)


def _shifts(module: nn.Conv2d, padded: Tensor, gradient: Tensor) -> Iterator[Tensor]:
    """The input values that each entry of the kernel reads, over all outputs."""
    height, width = gradient.shape[2:]
    (down, across), (far, wide) = module.stride, module.dilation
    for y in range(module.kernel_size[0]):
        for x in range(module.kernel_size[1]):
            rows = slice(y * far, y * far + down * (height - 1) + 1, down)
            yield padded[:, :, rows, x * wide : x * wide + across * (width - 1) + 1 : across]
