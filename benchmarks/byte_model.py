"""A transformer on bytes for benchmarks: it continues text, and with a pooled head it tells documents apart."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention to earlier bytes, and two dense layers, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.drop(self.joined(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.dense(self.norms[1](x)))


class ByteModel(nn.Module):
    """Features of every byte from those before it."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.0)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, given: Tensor) -> Tensor:
        places = torch.arange(given.shape[1], device=given.device)
        return self.norm(self.layers(self.drop(self.bytes(given) + self.places(places))))

    def next_byte_loss(self, given: Tensor) -> Tensor:
        """Mean cross-entropy of each byte after the first; the embedding is the last layer too."""
        logits = functional.linear(self(given[:, :-1]), self.bytes.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), given[:, 1:].flatten())


class Teller(nn.Module):
    """The model with a pooled head: the mean of features of a paragraph, a dense layer, tanh, and a linear head."""

    def __init__(self, trunk: ByteModel, width: int, documents: int) -> None:
        super().__init__()
        self.trunk, self.pool, self.head = trunk, nn.Linear(width, width), nn.Linear(width, documents)
        self.drop = nn.Dropout(0.0)

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the head in float32, and logits."""
        valid = (given > 0)[..., None]
        features = (self.trunk(given) * valid).sum(1) / valid.sum(1)
        hidden = self.drop(torch.tanh(self.pool(features)))
        return hidden.float(), self.head(hidden).float()


def set_dropout(model: nn.Module, share: float) -> None:
    """The same share in all dropouts."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share
