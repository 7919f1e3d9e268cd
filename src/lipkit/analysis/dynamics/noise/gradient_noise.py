"""Noise of the batch gradient as the largest singular value sees it, from inputs and output gradients of a layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from lipkit.analysis.dynamics.noise.process_sums import Processes
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

    @property
    @abstractmethod
    def story(self) -> str:
        """What was heard, in words that are the same in all processes, or their parts do not belong together."""

    @abstractmethod
    def agree(self, gradient: Tensor, measured: Measurement, processes: Processes) -> bool:
        """Whether it was heard of the gradient that the optimizer has, as far as can be seen."""

    @abstractmethod
    def noise(self, layer: TrackedLayer, measured: Measurement, processes: Processes) -> Noise:
        """kappa and |lambda|^2 of the batch, that of all processes together, without the rate."""


@final
@dataclass(frozen=True, eq=False)
class Contractions(Heard):
    """For each sample, its part S_i of the batch gradient (their sum) times both vectors: a_i = S_i v, b_i = S_i'u.

    `spread` has the entries of S_i, if they were asked for. `share` is how well sums over the batch agree, as a part of
    the sum of their sizes. With several processes the batch gradient is the mean of theirs, so each S_i is a part of it
    after division by their number.
    """

    a: Float[Tensor, "samples m"]
    b: Float[Tensor, "samples n"]
    spread: "Spread | None" = None
    share: float = _AGREES

    @property
    def samples(self) -> int:
        return self.a.shape[0]

    @property
    def story(self) -> str:
        return f"inputs and output gradients of {self.samples} samples"

    def agree(self, gradient: Tensor, measured: Measurement, processes: Processes) -> bool:
        """Whether the parts add up to the gradient that the optimizer has, as far as both vectors see it."""
        gram = _gram(measured)
        wide = gradient.flatten(1).to(torch.float64)
        return self.sums_agree((wide @ gram.right, wide.mT @ gram.left), torch.ones(self.samples).to(wide), processes)

    def sums_agree(
        self,
        wholes: tuple[Float64[Tensor, " m"], Float64[Tensor, " n"]],
        weights: Float64[Tensor, " samples"],
        processes: Processes,
    ) -> bool:
        """Whether sum_i weights_i S_i has these products with both vectors."""
        found: list[bool] = []
        for parts, whole in zip((self.a, self.b), wholes, strict=True):
            rows = parts.to(torch.float64) / processes.count
            off = torch.linalg.vector_norm(processes.sum(weights @ rows) - whole)
            size = processes.sum(torch.linalg.vector_norm(rows, dim=1) @ weights.abs())
            found.append(float(off) <= self.share * float(size))
        return all(found)

    def noise(self, layer: TrackedLayer, measured: Measurement, processes: Processes) -> Noise:
        """kappa and |lambda|^2 of this batch, without the rate. With parts S_i that are centred over M samples:

            kappa    = rate M / (2 sigma (M - 1)) sum_i D^2 sigma[S_i, S_i] >= 0,
            lambda^2 = rate M / (sigma^2 (M - 1)) sum_i (u'S_i v)^2.

        A sample's gradient is M S_i, so this holds for losses that are a mean over samples, and for sums.
        Guarantee: ESTIMATE, unbiased for independent samples. Reference: Luo 2025, theorem 4.6.5; the contractions are
        ours.
        """
        gram = _gram(measured)
        total = self.samples * processes.count
        a, b = (parts.to(torch.float64) / processes.count for parts in (self.a, self.b))
        a, b = (parts - processes.sum(parts.sum(0)) / total for parts in (a, b))
        sums = processes.sum(torch.stack([gram.form(a, b).sum(), (a @ gram.left).square().sum()]))
        forms, slopes = sums.tolist()
        factor = total / (total - 1)
        curvature, diffusion = factor * forms / (2 * gram.value), factor * slopes / gram.value**2
        if self.spread is None:
            return Noise(curvature, diffusion)
        return Noise(curvature, diffusion, *_of_variances(gram, factor * self.spread.over(processes)))


@final
@dataclass(frozen=True, eq=False)
class Spread:
    """The entries of samples' parts S_i of the gradient: their mean, and the sum of the squares of what is off it."""

    samples: int
    mean: Float64[Tensor, "m n"]
    squares: Float64[Tensor, "m n"]

    def over(self, processes: Processes) -> Float64[Tensor, "m n"]:
        """The sum of squares of all processes' parts of the mean of their gradients, off the mean of all."""
        if processes.count == 1:
            return self.squares
        apart = self.mean - processes.sum(self.mean) / processes.count
        return processes.sum(self.squares + self.samples * apart.square()) / processes.count**2


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
        spread = spread_of_products(delta, rows) if split else None
        return Contractions(a, torch.einsum("spn,sp->sn", rows, delta @ left), spread, share)
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
    spread = None
    if split:
        # Positions are summed over, so they take the place of those of a linear layer, for each entry of the kernel.
        delta = gradient.flatten(2).mT
        each = [spread_of_products(delta, part.flatten(2).mT) for part in _shifts(module, padded, gradient)]
        parts = ([one.mean for one in each], [one.squares for one in each])
        spread = Spread(len(x), *(torch.stack(part, dim=2).flatten(1) for part in parts))
    return Contractions(a, torch.stack(columns, dim=2).flatten(1), spread, share)


def spread_of_products(
    delta: Float[Tensor, "samples positions m"], rows: Float[Tensor, "samples positions n"]
) -> Spread:
    """The spread of S_i = sum over positions of delta x', entry by entry.

    With one position S_i^2 is (delta^2)(x^2)', and no S_i is formed; otherwise some samples at a time.
    """
    count = len(delta)
    if delta.shape[1] == 1:
        left, right = delta[:, 0].to(torch.float64), rows[:, 0].to(torch.float64)
        whole = left.mT @ right
        found = left.square().mT @ right.square() - whole.square() / count
        return Spread(count, whole / count, found.clamp(min=0))
    mean = torch.einsum("spm,spn->mn", delta, rows) / count
    found = mean.new_zeros(mean.shape, dtype=torch.float64)
    together = max(1, _TOGETHER // mean.numel())
    for some, beside in zip(delta.split(together), rows.split(together), strict=True):
        found += (some.mT @ beside - mean).to(torch.float64).square().sum(0)
    return Spread(count, mean.to(torch.float64), found)


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
