"""Noise of the batch gradient as the largest singular value sees it, from inputs and output gradients of a layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from lipkit.analysis.dynamics.tracked_layers import Measurement, TrackedLayer
from lipkit.analysis.singular_values.gram_decomposition import GramDecomposition
from lipkit.errors import ArgumentError, UnsupportedError

# Sums over a batch agree to this share in float32 over 10^4 terms, and to so many roundings in shorter types.
_AGREES = 1e-3
_ROUNDINGS = 4

# Numbers that are held at once where samples' gradients are formed.
_TOGETHER = 2**23

# Samples meet in these, while they use the statistics of the batch.
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


@final
@dataclass(frozen=True)
class Noise:
    """One layer's noise terms without the rate: kappa = rate * `curvature`, |lambda|^2 = rate * `diffusion`.

    They are linear in the covariance S of the gradient. `diagonal` are those of its diagonal, the variances of entries,
    and `scalar` those of mean variance * identity, if they were asked for; both are covariances too. What is left,
    `off_diagonal`, is of the covariances of entries: no law of noise has it alone, and it may be negative.
    """

    curvature: float
    diffusion: float
    diagonal: "Noise | None" = None
    scalar: "Noise | None" = None

    @property
    def off_diagonal(self) -> "Noise | None":
        """The terms of S without its diagonal."""
        if self.diagonal is None:
            return None
        return Noise(self.curvature - self.diagonal.curvature, self.diffusion - self.diagonal.diffusion)


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
    """For each sample, its part S_i of the batch gradient (their sum) times both vectors: a_i = S_i v, b_i = S_i'u.

    `squares` is the sum over samples of the squared entries of centred S_i, if it was asked for. `share` is how well
    sums over the batch agree, as a part of the sum of their sizes.
    """

    a: Float[Tensor, "samples m"]
    b: Float[Tensor, "samples n"]
    squares: Float64[Tensor, "m n"] | None = None
    share: float = _AGREES

    @property
    def samples(self) -> int:
        return self.a.shape[0]

    def agree(self, gradient: Tensor, layer: TrackedLayer, measured: Measurement) -> bool:
        """Whether the parts add up to the gradient that the optimizer has, as far as both vectors see it."""
        gram = _gram(measured)
        wide = gradient.flatten(1).to(torch.float64)
        return self.sums_agree((wide @ gram.right, wide.mT @ gram.left), torch.ones(self.samples).to(wide))

    def sums_agree(
        self, wholes: tuple[Float64[Tensor, " m"], Float64[Tensor, " n"]], weights: Float64[Tensor, " samples"]
    ) -> bool:
        """Whether sum_i weights_i S_i has these products with both vectors."""
        return all(
            float(torch.linalg.vector_norm(weights @ parts.to(torch.float64) - whole))
            <= self.share * float(torch.linalg.vector_norm(parts.to(torch.float64), dim=1) @ weights.abs())
            for parts, whole in zip((self.a, self.b), wholes, strict=True)
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
        diffusion = factor * float((a @ gram.left).square().sum()) / gram.value**2
        if self.squares is None:
            return Noise(curvature, diffusion)
        return Noise(curvature, diffusion, *_of_variances(gram, factor * self.squares))


def contract(
    module: nn.Module,
    x: Float[Tensor, "samples ..."],
    gradient: Float[Tensor, "samples ..."],
    gram: GramDecomposition,
    split: bool = False,
) -> Contractions:
    """The contractions of one use of a layer, from its input and the gradient of its output.

    Linear: S_i = sum over positions of delta x'. Conv2d: S_i = delta_i X_i' with unfolded inputs X_i, so S_i v is a
    convolution with one kernel, and S_i'u a sum of products with shifted inputs; nothing is unfolded.
    Cost: a small part of the layer's own backward pass, and memory for M (m + n) numbers; with `split` as much as the
    gradient of the weight, and memory for M m c numbers, c the channels of the input.
    """
    # Under autocast the gradient of the weight is summed in the type of the gradient of the output.
    share = max(_AGREES, _ROUNDINGS * torch.finfo(gradient.dtype).eps)
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    left, right = gram.left.to(gradient), gram.right.to(gradient)
    x = x.to(gradient)
    if isinstance(module, nn.Linear):
        if x.ndim < 2:
            raise ArgumentError("a linear layer had an input without a batch axis")
        delta = gradient.reshape(gradient.shape[0], -1, module.out_features)
        rows = x.reshape(x.shape[0], -1, module.in_features)
        a = torch.einsum("spm,sp->sm", delta, rows @ right)
        squares = squares_of_products(delta, rows) if split else None
        return Contractions(a, torch.einsum("spn,sp->sn", rows, delta @ left), squares, share)
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
    squares = None
    if split:
        # Positions are summed over, so they take the place of those of a linear layer, for each entry of the kernel.
        delta = gradient.flatten(2).mT
        each = [squares_of_products(delta, part.flatten(2).mT) for part in _shifts(module, padded, gradient)]
        squares = torch.stack(each, dim=2).flatten(1)
    return Contractions(a, torch.stack(columns, dim=2).flatten(1), squares, share)


def squares_of_products(
    delta: Float[Tensor, "samples positions m"], rows: Float[Tensor, "samples positions n"]
) -> Float64[Tensor, "m n"]:
    """sum_i (S_i - mean S)^2, entry by entry, for S_i = sum over positions of delta x'.

    With one position S_i^2 is (delta^2)(x^2)', and no S_i is formed; otherwise some samples at a time.
    """
    count = len(delta)
    if delta.shape[1] == 1:
        left, right = delta[:, 0].to(torch.float64), rows[:, 0].to(torch.float64)
        found = left.square().mT @ right.square() - (left.mT @ right).square() / count
        return found.clamp(min=0)
    mean = torch.einsum("spm,spn->mn", delta, rows) / count
    found = mean.new_zeros(mean.shape, dtype=torch.float64)
    together = max(1, _TOGETHER // mean.numel())
    for some, beside in zip(delta.split(together), rows.split(together), strict=True):
        found += (some.mT @ beside - mean).to(torch.float64).square().sum(0)
    return found


def has_contractions(module: nn.Module, measured: Measurement) -> bool:
    """Whether the noise of a layer that is used once comes from its input and the gradient of its output."""
    plain = isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    return plain and measured.gram is not None


def _of_variances(gram: GramDecomposition, variances: Float64[Tensor, "m n"]) -> tuple[Noise, Noise]:
    """The terms of a diagonal covariance, and those of the same with the mean variance in every entry."""
    hessian = gram.diagonal()
    slopes = torch.outer(gram.left.square(), gram.right.square())
    curvature = float((hessian * variances).sum()) / (2 * gram.value)
    diagonal = Noise(curvature, float((slopes * variances).sum()) / gram.value**2)
    mean = float(variances.mean())
    return diagonal, Noise(mean * float(hessian.sum()) / (2 * gram.value), mean / gram.value**2)


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
