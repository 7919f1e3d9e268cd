"""The gradients of single records by autograd, and records that make them large."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lipkit.privacy import Clip, Limits


def gradient_norms(
    plain: nn.Module, loss: nn.Module, x: Tensor, y: Tensor, clip: Clip | None = None
) -> dict[str, Tensor]:
    """|d loss_i / d w| for every record i and every trained tensor w of a condensed model."""
    fixed = {name: p for name, p in plain.named_parameters() if not p.requires_grad}
    # A copy of the weights for each record: then an ordinary backward pass keeps the records apart.
    copies = {
        name: p.detach().expand(len(x), *p.shape).clone().requires_grad_()
        for name, p in plain.named_parameters()
        if p.requires_grad
    }

    def one(weights: Mapping[str, Tensor], record: Tensor) -> Tensor:
        return functional_call(plain, {**weights, **fixed}, (record[None],))[0]

    outputs = vmap(one)(copies, x)
    value = loss(outputs if clip is None else clip(outputs), y)
    total = value * len(x) if loss.reduction == "mean" else value.sum()
    gradients = torch.autograd.grad(total, list(copies.values()), create_graph=x.requires_grad)
    found = dict(zip(copies, gradients, strict=True))
    return {name: torch.linalg.vector_norm(g.flatten(1), dim=1) for name, g in found.items()}


def largest_ratios(limits: Limits, norms: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest gradient of each tensor, relative to its limit; NaN, as autograd gives at kinks of norms, is zero."""
    assert norms.keys() == limits.keys()
    return {name: float(n.nan_to_num(0.0).max()) / float(limits[name].value) for name, n in norms.items()}


def drawn_records(shape: tuple[int, ...], radius: float, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Records on and in the ball: zero, constant, one pixel, ties, smooth and random ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    flat = x.flatten(1)
    flat[0] = 0
    flat[1] = 1
    flat[2] = -1
    flat[3] = 0
    flat[3, flat.shape[1] // 2] = 1
    flat[4] = flat[4].sign()
    flat[5:20] = flat[5:20].cumsum(1)
    flat[20:40] = flat[20:40].round()
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=1e-12)
    sizes = torch.ones(count, 1, dtype=torch.float64)
    sizes[count // 2 :: 2] = torch.rand(sizes[count // 2 :: 2].shape, generator=generator, dtype=torch.float64)
    # A hair inside, so that rounding to float32 leaves them in the ball.
    return (flat / norms * radius * sizes * (1 - 1e-6)).reshape(x.shape).to(dtype)


def natural_records(shape: tuple[int, ...], radius: float, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Records in the ball that are like photographs: amplitudes 1/f, no negative entry, some with flat halves."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    axes = tuple(range(-min(2, len(shape)), 0))
    steps = [torch.fft.fftfreq(shape[axis], dtype=torch.float64) * shape[axis] for axis in axes]
    frequency = torch.stack(torch.meshgrid(*steps, indexing="ij")).square().sum(0).sqrt().clamp(min=1.0)
    x = torch.fft.ifftn(torch.fft.fftn(noise, dim=axes) / frequency, dim=axes).real
    x = x - x.flatten(1).amin(1).reshape(-1, *(1,) * len(shape))
    half = shape[-1] // 2
    x[::5, ..., half:] = x[::5, ..., :1]
    sizes = torch.rand(count, generator=generator, dtype=torch.float64).sqrt()
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=1e-12) / (radius * sizes * (1 - 1e-6))
    return (x / norms.reshape(-1, *(1,) * len(shape))).to(dtype)


def climb(
    norms: Callable[[Tensor], Mapping[str, Tensor]], x: Tensor, radius: float, steps: int = 25, rate: float = 0.3
) -> Tensor:
    """The best records on a climb to larger gradients of all tensors, inside the ball."""
    found, best, highest = x.clone(), x, torch.full((len(x),), -torch.inf, dtype=x.dtype)
    for _ in range(steps):
        found.requires_grad_()
        heights = log_heights(norms(found))
        higher = heights.detach() > highest
        highest = torch.where(higher, heights.detach(), highest)
        best = torch.where(higher.reshape(-1, *(1,) * (x.ndim - 1)), found.detach(), best)
        (up,) = torch.autograd.grad(heights.sum(), found)
        up = up.nan_to_num(0.0)
        size = torch.linalg.vector_norm(up.flatten(1), dim=1).clamp(min=1e-12)
        moved = found.detach() + rate * radius * up / size.reshape(-1, *(1,) * (x.ndim - 1))
        length = torch.linalg.vector_norm(moved.flatten(1), dim=1).clamp(min=radius)
        found = moved * (radius * (1 - 1e-9) / length).reshape(-1, *(1,) * (x.ndim - 1))
    return best


def log_heights(norms: Mapping[str, Tensor]) -> Tensor:
    """The sum of the logarithms of all tensors' gradients, for each record."""
    return torch.stack([n.nan_to_num(0.0).clamp(min=1e-9).log() for n in norms.values()]).sum(0)


class Mean(nn.Module):
    """A linear loss whose gradient has norm 1 and is the same at all outputs."""

    reduction = "sum"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return input.sum() / input.shape[1] ** 0.5

    def logit_constant(self, outputs: int) -> float:
        return 1.0
