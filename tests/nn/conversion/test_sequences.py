"""Twins of models of sequences: attention, transformers, recurrent layers and embeddings; and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import UnsupportedError
from lipkit.nn.conversion.attention_modules import MixedTokens
from support.jacobians import climbed, steepest
from support.proven import proven

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12


class Block(nn.Module):
    """A block of a vision transformer, with the attention of torch.nn."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(width, 6), nn.GELU(), nn.Linear(6, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dense(self.norm2(x))


class ByFunction(nn.Module):
    """Attention as many write it: one layer for queries, keys and values, and torch's function."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Unpacked(nn.Module):
    """A recurrent layer whose outputs alone are used, taken apart as in many examples."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.LSTM):
            out, (_, _) = self.layer(x)
        else:
            out, _ = self.layer(x)
        return self.head(out[:, -1])


class Twice(nn.Module):
    """One attention at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.attention(x, x, x)
        return self.attention(x, key=x, value=x)[0]


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "block": Block,
    "blocks": lambda: nn.Sequential(Block(), Block()),
    "function": ByFunction,
    "causal function": lambda: ByFunction(True),
    "twice": Twice,
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
    "encoder": encoder,
    "encoder, norm first": lambda: encoder(norm_first=True, activation="gelu"),
    "lstm": lambda: Unpacked(nn.LSTM(4, 5, 2, dropout=0.1, batch_first=True)),
    "gru": lambda: Unpacked(nn.GRU(4, 5, batch_first=True)),
    "rnn": lambda: Unpacked(nn.RNN(4, 5, nonlinearity="relu", batch_first=True)),
}


LONG = {"blocks", "twice", "encoder", "encoder, norm first"}
# The other start changes weights only, so one model of each kind of layer is enough for it.
STARTS = [
    *(
        # Each is made of parts that others have too.
        pytest.param(name, lnn.ConversionStart.ISOMETRY, marks=[pytest.mark.slow] if name in LONG else [])
        for name in MODELS
    ),
    *((name, lnn.ConversionStart.WEIGHTS) for name in ("encoder, norm first", "lstm", "gru", "function")),
]


@pytest.mark.parametrize(("name", "start"), STARTS, ids=str)
def test_the_twin_has_its_constant(name: str, start: lnn.ConversionStart):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    x = torch.randn(2, 3, 4)
    twin, report = lnn.lipschitzify(model, K=2.0, start=start)
    assert report.promised
    assert twin(x).shape == model(x).shape
    assert proven(twin, x[:1]) <= 2 * ROUNDING
    wide = twin.double().eval()
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert climbed(wide, [torch.randn(1, 3, 4).double()], steps=2) <= 2 * ROUNDING


def test_tokens_have_a_constant_in_the_root_of_changes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 4), Block(), nn.Flatten(), nn.Linear(20, 3))
    twin, report = lnn.lipschitzify(model)
    assert "changed tokens" in str(report)
    twin = twin.double().eval()
    text = torch.randint(12, (200, 5))
    other = torch.where(torch.rand(200, 5) < 0.4, torch.randint(12, (200, 5)), text)
    moved = (twin(text) - twin(other)).norm(dim=1)
    assert bool((moved <= (text != other).sum(1).double().sqrt()).all())


def test_three_tensors_of_constant_one_are_mixed_into_one():
    """q = k = v = x is the worst case of three 1-Lipschitz functions of one input."""
    torch.manual_seed(0)

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = MixedTokens(False, 1.0).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x, x, -x)

    found = climbed(Same(), [size * torch.randn(1, 4, 2).double() for size in (0.5, 2.0)])
    assert 0.2 < found <= ROUNDING


def test_one_module_stays_one_and_original_weights_are_the_start():
    torch.manual_seed(0)
    twin, _ = lnn.lipschitzify(Twice())
    assert sum(isinstance(part, lnn.L2Attention) for part in twin.modules()) == 1
    block = Block()
    twin, _ = lnn.lipschitzify(nn.Sequential(block))
    attention = next(part for part in twin.modules() if isinstance(part, lnn.L2Attention))
    queries = block.attention.in_proj_weight[:4].detach().double()
    left, _, right = torch.linalg.svd(queries)
    # The nearest isometry, with a fiftieth of the weight itself.
    near = attention.in_proj.weight.detach().double()
    assert float((near - left @ right).abs().max()) < 0.05
    assert lnn.L2Attention(4, 2).log_scale.shape == attention.log_scale.shape


class Given(nn.Module):
    def __init__(self, function: Callable[..., object], layer: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layer = layer
        self.mask = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: Tensor) -> object:
        return self.function(self.layer, x, self.mask)


ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "other keys": (lambda: Given(lambda f, x, _: f(x, -x, x)[0], ATTENTION), "self-attention"),
    "mask": (lambda: Given(lambda f, x, m: f(x, x, x, attn_mask=m)[0], ATTENTION), "is_causal=True"),
    "weights": (lambda: Given(lambda f, x, _: f(x, x, x)[1], ATTENTION), "use its output alone"),
    "tokens first": (lambda: Given(lambda f, x, _: f(x, x, x)[0], nn.MultiheadAttention(4, 2)), "batch_first=True"),
    "added keys": (
        lambda: Given(lambda f, x, _: f(x, x, x)[0], nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True)),
        "add_bias_kv",
    ),
    "masked function": (
        lambda: Given(lambda _, x, m: functional.scaled_dot_product_attention(x, x, x, m), nn.Identity()),
        "is_causal=True",
    ),
    "fixed keys": (
        lambda: Given(lambda _, x, m: functional.scaled_dot_product_attention(x, m, m), nn.Identity()),
        "do not all depend",
    ),
    "products": (lambda: Given(lambda _, x, __: x @ x.transpose(1, 2) @ x, nn.Identity()), "nn.MultiheadAttention"),
    "final state": (
        lambda: Given(lambda f, x, _: f(x)[1][0], nn.LSTM(4, 5, batch_first=True)),
        r"out\[:, -1\]",
    ),
    "first state": (
        lambda: Given(lambda f, x, _: f(x, -x)[0], nn.GRU(4, 5, batch_first=True)),
        "sequence alone",
    ),
    "bidirectional": (
        lambda: Given(lambda f, x, _: f(x)[0], nn.LSTM(4, 5, batch_first=True, bidirectional=True)),
        r"x.flip\(1\)",
    ),
    "tokens first, recurrent": (lambda: Given(lambda f, x, _: f(x)[0], nn.LSTM(4, 5)), "batch_first=True"),
    "cell": (lambda: Given(lambda f, x, _: f(x, x), nn.GRUCell(4, 4)), "use nn.GRU over"),
    "masked encoder": (
        lambda: Given(lambda f, x, m: f(x, m), nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)),
        "sequence alone",
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)), "without max_norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused_with_a_remedy(name: str):
    build, remedy = REFUSED[name]
    with pytest.raises(UnsupportedError, match=remedy):
        lnn.lipschitzify(build())


def test_a_twin_in_other_types():
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float64):
        twin, _ = lnn.lipschitzify(nn.Sequential(Block(), nn.Flatten(1)).to(dtype))
        x = torch.randn(2, 3, 4, dtype=dtype)
        assert twin(x).dtype == dtype
        assert {tensor.dtype for tensor in twin.parameters()} == {dtype}
    assert steepest(twin.eval(), (1, 3, 4), points=1) <= ROUNDING


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("blocks", "encoder")), "function", "lstm"]
)
def test_a_condensed_twin_has_a_constant_too(name: str):
    """Nothing promises K any more; the parts declare what their plain weights have, and the bound is of that order."""
    torch.manual_seed(0)
    twin, _ = lnn.lipschitzify(MODELS[name]().eval(), K=2.0)
    found = proven(lnn.condense(twin).eval(), torch.randn(1, 3, 4))
    assert 0 < found <= 2 * 3**0.5


@pytest.mark.parametrize(
    "branch", [lnn.LayerNorm(4), lnn.RMSNorm(4), lnn.L2Attention(4, 2), lnn.CosineAttention(4, 2), lnn.RNN(4, 4)]
)
def test_a_plain_sum_around_a_layer_is_read(branch: nn.Module):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = branch

        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x)

    assert proven(Sum().eval(), torch.randn(1, 3, 4)) <= 2 + 1e-9
