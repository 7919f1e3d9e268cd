"""Penalties for attention: the softmax Jacobian against eigenvalues, masks, and projection norms."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.norms import SVD
from lipkit.regularizers import JaSMin, SpecFormer, attention_projections
from lipkit.regularizers.activations.jasmin import interlacing_bound
from lipkit.regularizers.weights.spec_former import AttentionProjections


@given(st.integers(1, 9), st.floats(0.1, 20.0), st.integers(0, 10_000))
def test_the_interlacing_chain(size: int, sharpness: float, seed: int) -> None:
    logits = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p = torch.softmax(sharpness * logits, 0)
    sigma = torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p)).flip(0)
    ordered = p.sort(descending=True).values
    # eigvalsh is off by some units of 2^-53 of the norm, which is below 1.
    slack = 1e-14
    for k in range(1, size + 1):
        g = float(interlacing_bound(p, k))
        assert float(ordered[k - 1]) + slack >= g >= float(sigma[k - 1]) - slack
        if k < size:
            assert float(sigma[k - 1]) + slack >= float(ordered[k])


@given(st.integers(2, 12), st.floats(0.1, 10.0), st.integers(0, 10_000), st.data())
def test_a_flat_top_bounds_the_norm(size: int, sharpness: float, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, size))
    logits = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p = torch.softmax(sharpness * logits, 0)
    largest = float(torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p))[-1])
    ratio = float(interlacing_bound(p, 1) / interlacing_bound(p, k))
    assert largest <= ratio / k * (1 + 1e-12) + 1e-14


def attention_maps(batch: int = 3, heads: int = 2, rows: int = 5, mask: Tensor | None = None) -> Tensor:
    logits = 2 * torch.randn(batch, heads, rows, rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -math.inf), -1)


def by_loop(p: Tensor, k: int, mask: Tensor | None) -> float:
    total = 0.0
    for b in range(p.shape[0]):
        for h in range(p.shape[1]):
            rows: list[float] = []
            for r in range(p.shape[2]):
                allowed = [True] * p.shape[3] if mask is None else mask.expand_as(p)[b, h, r].tolist()
                kept = sorted((float(x) for x, ok in zip(p[b, h, r], allowed, strict=True) if ok), reverse=True)
                if len(kept) < k + 1:
                    continue
                g = [x * (1 - x + y) for x, y in zip(kept, [*kept[1:], 0.0], strict=True)]
                rows.append(math.log(max(g[0], 1e-12)) - (math.log(max(g[k - 1], 1e-12)) if k else 0.0))
            total += max(rows) if rows else 0.0
    return total / p.shape[0]


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
PADDED = torch.tensor([[5], [3], [0]]).gt(torch.arange(5))[:, None, None, :].expand(3, 1, 5, 5)


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("mask", [None, CAUSAL, PADDED], ids=["all", "causal", "padded"])
def test_jasmin_is_its_loop(k: int, mask: Tensor | None) -> None:
    p = attention_maps(mask=mask)
    assert float(JaSMin(k)(p, mask)) == pytest.approx(by_loop(p, k, mask), rel=1e-10)
    assert float(JaSMin(k)([p, p], mask)) == pytest.approx(2 * by_loop(p, k, mask), rel=1e-10)


@pytest.mark.parametrize("k", [0, 2])
def test_jasmin_gradients(k: int) -> None:
    logits = torch.randn(2, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: JaSMin(k)(torch.softmax(x, -1), CAUSAL[:4, :4]), (logits,))


def test_the_term_bounds_the_softmax_jacobian() -> None:
    p = attention_maps(batch=1, heads=1)
    worst = max(float(torch.linalg.eigvalsh(torch.diag(row) - torch.outer(row, row))[-1]) for row in p[0, 0])
    assert worst <= math.exp(float(JaSMin()(p)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_jasmin_in_narrow_types(dtype: torch.dtype) -> None:
    # A nearly deterministic row: 1 - p cancels, so the arithmetic must be wider than the probabilities.
    p = torch.softmax(torch.tensor([[6.0, 0.0, 0.0], [9.0, 0.0, 0.0]]), -1).to(dtype)[None, None].requires_grad_()
    found = JaSMin()(p)
    assert float(found.detach()) == pytest.approx(float(JaSMin()(p.detach().double())), rel=1e-5)
    found.backward()
    assert p.grad is not None
    assert p.grad.dtype == dtype


def test_jasmin_refuses() -> None:
    with pytest.raises(ArgumentError, match="more than 5 keys"):
        JaSMin(5)(attention_maps())
    with pytest.raises(ShapeError, match="mask"):
        JaSMin()(attention_maps(), torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=">= 0"):
        JaSMin(-1)
    with pytest.raises(ArgumentError, match="no attention"):
        JaSMin()([])
    with pytest.raises(ArgumentError, match="1 <= k"):
        interlacing_bound(torch.ones(3) / 3, 4)


def test_specformer_in_closed_form() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    penalty = SpecFormer(0.1, 0.2, 0.3, norm=SVD())([AttentionProjections(*weights)])
    singular = [torch.linalg.svd(w.detach()) for w in weights]
    expected = sum(share * float(s[0]) ** 2 for share, (_, s, _) in zip((0.1, 0.2, 0.3), singular, strict=True))
    assert float(penalty.detach()) == pytest.approx(expected, rel=1e-12)
    penalty.backward()
    for share, weight, (u, s, v) in zip((0.1, 0.2, 0.3), weights, singular, strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, 2 * share * s[0] * torch.outer(u[:, 0], v[0]), atol=1e-10)


def test_specformer_finds_attention_in_a_model() -> None:
    model: Any = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
    )
    found = attention_projections(model)
    assert len(found) == 2
    SpecFormer()(found).backward()
    for layer in model.layers:
        assert bool(layer.self_attn.in_proj_weight.grad.any())
    with pytest.raises(ArgumentError, match="MultiheadAttention"):
        attention_projections(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="query"):
        SpecFormer(query=-1.0)
    with pytest.raises(ArgumentError, match="no attention"):
        SpecFormer()([])
