"""Gradients clipped record by record, as private training without constants needs them: the baselines of privacy.py."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Loss = Callable[[Tensor, Tensor], Tensor]


def vmap_gradients(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, clip: float, part: int) -> dict[str, Tensor]:
    """sum_i g_i min(1, clip / |g_i|) with the gradients g_i of `part` records in memory at once.

    Reference: Béthune 2024, algorithm 12, after Abadi et al. 2016.
    """
    tensors = {name: p.detach() for name, p in model.named_parameters()}

    def one(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (record[None],)), label[None])

    each = vmap(grad(one), in_dims=(None, 0, 0))
    total = {name: torch.zeros_like(t) for name, t in tensors.items()}
    for some, labels in zip(x.split(part), y.split(part), strict=True):
        found = each(tensors, some, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        factor = (clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        for name, g in found.items():
            total[name] += torch.einsum("b,b...->...", factor, g)
    return total


def ghost_gradients(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> dict[str, Tensor]:
    """The same for a cross-entropy and layers of type `Linear` and `Conv2d`, by two backward passes.

    The norm of a record's gradient follows from the inputs a and the cotangents g of each layer: |a|^2 |g|^2 for a
    matrix; for a kernel <a'a, g'g> or |g a'|^2 with the patches a of an image, whichever is smaller. Each layer is
    called once. Reference: Li et al. 2022 (ghost clipping), Bu et al. 2022 (mixed).
    """
    seen: list[tuple[nn.Linear | nn.Conv2d, Tensor, Tensor]] = []

    def keep(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        seen.append((layer, given[0].detach(), out))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        values = nn.functional.cross_entropy(model(x), y, reduction="none")
    finally:
        for hook in hooks:
            hook.remove()
    cotangents = torch.autograd.grad(values.sum(), [out for _, _, out in seen], retain_graph=True)
    squares = torch.zeros_like(values)
    for (layer, a, _), g in zip(seen, cotangents, strict=True):
        squares += _squares(layer, a, g)
    factor = (clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    names, tensors = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad((factor * values).sum(), tensors), strict=True))


def _squares(layer: nn.Linear | nn.Conv2d, a: Tensor, g: Tensor) -> Tensor:
    """|gradient of weight and bias|^2 for each record."""
    if isinstance(layer, nn.Linear):
        ends = g.square().sum(1)
        found = a.square().sum(1) * ends
        return found if layer.bias is None else found + ends
    assert not isinstance(layer.padding, str)
    patches = nn.functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    ends = g.flatten(2)
    taps, places = patches.shape[1:]
    if 2 * places**2 < taps * ends.shape[1]:
        found = ((patches.mT @ patches) * (ends.mT @ ends)).sum((1, 2))
    else:
        found = (ends @ patches.mT).square().sum((1, 2))
    return found if layer.bias is None else found + ends.sum(2).square().sum(1)
