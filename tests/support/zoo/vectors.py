"""Models of the zoo that take vectors or tokens."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from support.zoo.entry import Plain, entry


@entry(6)
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@entry(5)
def affine() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 4))


@entry(6)
def smooth_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3), nn.Softplus())


@entry(6)
def many_activations() -> nn.Module:
    kinds = (nn.LeakyReLU(0.2), nn.ELU(), nn.GELU(), nn.SiLU(), nn.Hardtanh(), nn.PReLU(), nn.ReLU6())
    return nn.Sequential(*(part for kind in kinds for part in (nn.Linear(6, 6), kind)))


@entry(6)
def pre_activation() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        for block in self.children():
            x = x + block(x)
        return x

    blocks = {f"block{i}": nn.Sequential(nn.ReLU(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for i in range(3)}
    return Plain(run, **blocks)


@entry(6)
def parametrized() -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(6, 5)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(5, 5)),
    )


@entry(6)
def shared_weights() -> nn.Module:
    layer = parametrizations.weight_norm(nn.Linear(6, 6))
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Tanh(), layer)


@entry(6)
def in_place() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, :4].mul_(10)
        y[:, 2] = x[:, 0]
        y[:, 3:5] += x[:, :2]
        return self.b(y.relu_())

    return Plain(run, a=nn.Linear(6, 8), b=nn.Linear(8, 3))


@entry(8)
def sliced() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        a, b, c = second.split([1, 1, 2], dim=1)
        even = x[:, ::2] + first.flip(1).roll(1, 1)
        return self.a(torch.cat([even.relu(), a - b, c, x[:, [7, 0, 0]]], 1))

    return Plain(run, a=nn.Linear(10, 3))


@entry(3, 4)
def stacked() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        rows = [self.a(row) for row in x.unbind(1)]
        y = torch.stack(rows[::-1], dim=2).transpose(1, 2)
        y = functional.relu(y).permute(2, 0, 1).movedim(0, 2).sum(1, keepdim=True).squeeze(1)
        return y.unsqueeze(-1).expand(-1, -1, 2).reshape(-1, 10)

    return Plain(run, a=nn.Linear(4, 5))


@entry(4, 6)
def constant_matrices() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        mix = torch.arange(12.0, dtype=x.dtype).reshape(3, 4).cos()
        y = mix @ x  # (batch, 3, 6)
        y = functional.relu(torch.einsum("bij,jk->bik", y, self.a.weight.T))
        return torch.baddbmm(y, mix[:, :3].expand(len(x), 3, 3), y).cumsum(1) @ torch.ones(5, dtype=x.dtype)

    return Plain(run, a=nn.Linear(6, 5))


@entry(5)
def functional_style() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.clamp(self.a(x), min=0) / math.sqrt(5) - 1.5
        y = functional.hardtanh(1 - y * 2, -0.5, 0.75) + torch.tanh(y).abs()
        y = torch.where(torch.arange(6) % 2 == 0, y, y.neg()).masked_fill(torch.arange(6) == 5, 0.25)
        return functional.dropout(self.b(y), 0.5, training=self.training)

    return Plain(run, a=nn.Linear(5, 6), b=nn.Linear(6, 2))


@entry(8)
def group_sort() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x).reshape(-1, 4, 2).sort(-1).values.flatten(1)
        return self.b(y).topk(3, dim=1).values

    return Plain(run, a=nn.Linear(8, 8), b=nn.Linear(8, 5))


@entry(8)
def max_min() -> nn.Module:
    def run(self: Any, x: Tensor) -> Tensor:
        a, b = self.a(x).chunk(2, 1)
        return self.b(torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1))

    return Plain(run, a=nn.Linear(8, 8), b=nn.Linear(8, 4))


@entry(3, 4)
def recurrent() -> nn.Module:
    return Plain(
        lambda self, x: self.head(self.rnn(x)[0][:, -1]), rnn=nn.RNN(4, 5, batch_first=True), head=nn.Linear(5, 2)
    )


@entry(6)
def soft() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Softmax(1), nn.Linear(5, 4), nn.LogSoftmax(1))


@entry(6)
def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


class Attention(nn.Module):
    """One head of softmax attention over tokens, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v))


@entry(3, 4)
def attention() -> nn.Module:
    return nn.Sequential(Attention(4), nn.Linear(4, 2))


@entry(5)
def squared() -> nn.Module:
    return Plain(lambda self, x: self.a(x) * self.a(x), a=nn.Linear(5, 3))


@entry(5)
def gated() -> nn.Module:
    return Plain(lambda self, x: torch.sigmoid(self.gate(x)) * self.a(x), a=nn.Linear(5, 3), gate=nn.Linear(5, 3))
