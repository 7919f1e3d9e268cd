"""L2 self-attention: the corrected constants against autograd, and where the printed ones fail."""

import math

import pytest
import torch
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.attention.l2_constants import inverse_phi, l2_attention_constant, linf_attention_constant


def attention(x: Tensor, wq: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """x (n, dim), weights (heads, dim, w) and (dim, dim), from the definition."""
    w = wq.shape[-1]
    q = x @ wq
    distance = (q[:, :, None] - q[:, None]).square().sum(-1)
    p = (-distance / math.sqrt(w)).softmax(-1)
    heads = p @ x @ (wq @ wq.mT) / math.sqrt(w) @ wv
    return heads.permute(1, 0, 2).flatten(1) @ wo


def norm(x: Tensor, *weights: Tensor, p: float = 2.0) -> float:
    jacobian = torch.func.jacrev(lambda v: attention(v, *weights))(x)
    return torch.linalg.matrix_norm(jacobian.reshape(x.numel(), x.numel()), p).item()


def spectral(weights: Tensor) -> list[float]:
    return torch.linalg.matrix_norm(weights, 2).tolist()


@pytest.mark.parametrize(
    ("y", "printed"), [(1, "0.278465"), (5, "0.814553"), (63, "2.307130"), (1023, "4.439870"), (0, "0.000000")]
)
def test_inverse_has_the_known_values_and_is_rounded_up(y: float, printed: str):
    x = inverse_phi(y)
    assert f"{x:.6f}" == printed
    assert x * math.exp(x + 1) >= y * (1 - 1e-15)


def test_the_constant_holds_and_the_printed_power_does_not():
    torch.manual_seed(0)
    broken, largest = 0, 0.0
    for trial in range(60):
        heads, w, n = (1, 2, 3)[trial % 3], 2, 3
        dim = heads * w
        size = (0.3, 1.0, 10.0)[trial % 3]
        wq = size * torch.randn(heads, dim, w, dtype=torch.float64)
        wv, wo = torch.randn(heads, dim, w, dtype=torch.float64), torch.randn(dim, dim, dtype=torch.float64)
        x = torch.randn(n, dim, dtype=torch.float64) / size
        q, v, out = spectral(wq), spectral(wv), torch.linalg.matrix_norm(wo, 2).item()
        bound, truth = l2_attention_constant(n, w, q, v, out), norm(x, wq, wv, wo)
        assert truth <= bound
        largest = max(largest, truth / bound)
        # Squares instead of fourth powers, as printed.
        printed = bound * math.sqrt(sum(a**2 * b**2 for a, b in zip(q, v, strict=True)))
        broken += truth > printed / math.sqrt(sum(a**4 * b**2 for a, b in zip(q, v, strict=True)))
    assert broken > 0
    assert largest > 0.05


def test_one_token_with_weights_of_ones_is_tight_in_linf():
    # One head of width 4 and all-ones weights: the truth is 128, the printed 1 / w gives 64.
    ones = torch.ones(1, 4, 4, dtype=torch.float64)
    truth = norm(torch.randn(1, 4, dtype=torch.float64), ones, ones, ones[0], p=math.inf)
    assert truth == pytest.approx(128.0)
    bound = linf_attention_constant(1, 4, [(4.0, 4.0)], [4.0], 4.0)
    assert truth <= bound == pytest.approx(128.0)
    assert bound * 0.5 == pytest.approx(64.0)


def test_the_linf_constant_holds():
    torch.manual_seed(1)
    for _ in range(40):
        heads, w, n = 2, 2, 4
        wq, wv = torch.randn(2, heads, 4, w, dtype=torch.float64)
        wo = torch.randn(4, 4, dtype=torch.float64)
        rows = [(a.abs().sum(-1).max().item(), a.abs().sum(-2).max().item()) for a in wq]
        values = [a.abs().sum(-2).max().item() for a in wv]
        bound = linf_attention_constant(n, w, rows, values, wo.abs().sum(-2).max().item())
        assert norm(torch.randn(n, 4, dtype=torch.float64), wq, wv, wo, p=math.inf) <= bound


def test_it_grows_with_the_number_of_tokens():
    found = [l2_attention_constant(n, 4, [1.0], [1.0], 1.0) for n in (1, 2, 8, 64)]
    assert found == sorted(found)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ArgumentError, match="as many queries as values"):
        l2_attention_constant(2, 1, [1.0], [1.0, 2.0], 1.0)
    with pytest.raises(ArgumentError, match="finite y >= 0"):
        inverse_phi(-1.0)
