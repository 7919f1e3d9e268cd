"""Orthogonality penalties against explicit matrices, and the steps that lower them."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import materialize
from lipkit.regularizers import Orthogonality, StochasticParseval, layers_of, parseval_step_
from lipkit.regularizers.weights.orthogonality import residual
from lipkit.regularizers.weights.parseval import parseval_step


def operator_of(module: nn.Module, *shape: int):
    return layers_of(module.double(), torch.zeros(1, *shape, dtype=torch.float64))[0].operator()


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 100))
def test_matrices(rows: int, cols: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(rows, cols, dtype=torch.float64)
    layer: Any = nn.Linear(cols, rows).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
    found = float(Orthogonality()(layers_of(layer, torch.zeros(1, cols, dtype=torch.float64))).detach())
    by_rows = float((weight @ weight.mT - torch.eye(rows)).square().sum())
    by_cols = float((weight.mT @ weight - torch.eye(cols)).square().sum())
    assert found == pytest.approx(min(by_rows, by_cols), rel=1e-10)
    # The larger side differs by a constant, so no choice is lost.
    assert by_rows - by_cols == pytest.approx(rows - cols, rel=1e-9, abs=1e-9 * (by_rows + by_cols))


@given(
    st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4]), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99)
)
def test_convolutions_are_the_published_l_orth(stride: int, kernel: int, outs: int, ins: int, seed: int) -> None:
    torch.manual_seed(seed)
    conv: Any = nn.Conv2d(ins, outs, kernel, stride=stride, padding=kernel // 2)
    op = operator_of(conv, ins, 12, 12)
    weight = conv.weight.detach()
    # Inputs that no window sees count as a constant in the published form only.
    skipped = max(0, min(outs, stride**2 * ins) - min(outs, min(kernel, stride) ** 2 * ins))
    pad = (kernel - 1) // stride * stride
    gram = functional.conv2d(weight, weight, padding=pad, stride=stride)
    target = torch.zeros_like(gram)
    target[..., gram.shape[-2] // 2, gram.shape[-1] // 2] = torch.eye(outs, dtype=torch.float64)
    published = float((gram - target).square().sum()) - max(0, outs - stride**2 * ins) - skipped
    assert float(residual(op).detach()) == pytest.approx(published, rel=1e-9, abs=1e-9)


def test_convolutions_are_a_mean_over_positions_of_the_dense_gram() -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular", groups=2)
    op = operator_of(conv, 4, 8)
    dense = materialize(op).detach()
    explicit = (dense.mT @ dense - torch.eye(32)).square().sum() / 8
    assert float(residual(op).detach()) == pytest.approx(float(explicit), rel=1e-12)


def test_zero_if_and_only_if_orthogonal() -> None:
    torch.manual_seed(0)
    conv: Any = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
    q = torch.linalg.qr(torch.randn(4, 2, dtype=torch.float64))[0]
    with torch.no_grad():
        conv.weight.zero_()
        # A shift by one pixel, then an isometry of the channels.
        conv.weight[:, :, 0, 2] = q
    op = operator_of(conv, 2, 6, 6)
    # float32 weights, made wide afterwards: 2^-24 in each entry, squared.
    assert float(residual(op).detach()) < 1e-12
    assert torch.allclose(torch.linalg.svdvals(materialize(op).detach()), torch.ones(72).double(), atol=1e-6)
    with torch.no_grad():
        conv.weight[0, 0, 1, 1] += 0.1
    assert float(residual(operator_of(conv, 2, 6, 6)).detach()) > 1e-2


def test_gradients() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    conv: Any = nn.Conv2d(2, 3, 3, stride=2).double()

    def penalty(w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            conv.weight.copy_(w)
        del conv.weight
        conv.weight = w  # pyright: ignore[reportAttributeAccessIssue]
        found = residual(layers_of(conv, torch.zeros(1, 2, 7, 7, dtype=torch.float64))[0].operator())
        del conv.weight
        conv.weight = nn.Parameter(w.detach().clone())
        return found

    assert torch.autograd.gradcheck(penalty, (weight,))


def test_autocast_does_not_reach_the_products() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
    layers = layers_of(model, torch.zeros(1, 2, 4))
    seed = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    expected = [Orthogonality()(layers), StochasticParseval(3, seed())(layers)]
    stepped = copy.deepcopy(model)
    parseval_step_(stepped, 0.2)
    with torch.autocast("cpu", torch.bfloat16):
        found = [Orthogonality()(layers), StochasticParseval(3, seed())(layers)]
        parseval_step_(model, 0.2)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), stepped.parameters(), strict=True))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(4, 7), (4,)),
        (nn.Linear(7, 4), (7,)),
        (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 5)),
        (nn.ConvTranspose1d(3, 2, 3, stride=2), (3, 4)),
    ],
    ids=str,
)
def test_the_stochastic_form_has_the_dense_mean(module: nn.Module, shape: tuple[int, ...]) -> None:
    layers = layers_of(module.double(), torch.zeros(1, *shape, dtype=torch.float64))
    dense = materialize(layers[0].operator()).detach()
    gram = dense.mT @ dense if dense.shape[0] >= dense.shape[1] else dense @ dense.mT
    difference = torch.eye(len(gram)) - gram
    expected = float(difference.square().sum()) / 2
    draws = 20_000
    found = StochasticParseval(draws, torch.Generator().manual_seed(0))(layers)
    # x'M x with M the square of the difference has variance 2 ||M||_F^2; five standard deviations.
    deviation = math.sqrt(2 * float((difference @ difference).square().sum()) / draws) / 2
    assert abs(float(found.detach()) - expected) < 5 * deviation
    again = StochasticParseval(draws, torch.Generator().manual_seed(0))(layers)
    assert torch.equal(found, again)


def test_the_stochastic_form_is_differentiable() -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(3, 4).double()
    layers = layers_of(layer, torch.zeros(1, 3, dtype=torch.float64))
    penalty = StochasticParseval(50_000, torch.Generator().manual_seed(1))(layers)
    (found,) = torch.autograd.grad(penalty, [layer.weight])
    w = layer.weight.detach()
    expected = 2 * (w @ w.mT @ w - w)
    # 50,000 draws: a relative deviation of about 1e-2.
    assert float((found - expected).norm()) < 0.05 * float(expected.norm())


@given(st.floats(0.01, 0.5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_a_parseval_step_moves_singular_values_towards_one(rate: float, rows: int, cols: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(rows, cols, dtype=torch.float64)
    weight = weight / torch.linalg.svdvals(weight)[0]
    before = torch.linalg.svdvals(weight)
    after = torch.linalg.svdvals(parseval_step(weight, rate))
    assert torch.allclose(after, before + rate * before * (1 - before**2), atol=1e-12)
    assert bool((after >= before - 1e-12).all())
    assert float(after[0]) <= 1 + 1e-12


def test_repeated_steps_make_every_layer_a_contraction() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(64, 5))
    model[0].to(memory_format=torch.channels_last)
    layers = layers_of(model, torch.zeros(1, 2, 4, 4))
    for _ in range(60):
        parseval_step_(model, 0.5)
    norms = [float(torch.linalg.svdvals(materialize(layer.operator()).detach())[0]) for layer in layers]
    # float32: n 2^-24 and a little.
    assert norms[0] <= 1 + 1e-5
    assert norms[1] == pytest.approx(1.0, abs=1e-5)


def test_a_share_of_the_rows() -> None:
    torch.manual_seed(0)
    model: Any = nn.Linear(12, 10)
    with torch.no_grad():
        model.weight.div_(torch.linalg.svdvals(model.weight)[0])
    before = model.weight.detach().clone()
    parseval_step_(model, 0.1, rows=0.3, generator=torch.Generator().manual_seed(0))
    changed = (model.weight != before).any(1)
    assert int(changed.sum()) == 3
    assert torch.allclose(model.weight[changed], parseval_step(before[changed], 0.1), atol=1e-6)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="1/2"):
        parseval_step(torch.eye(2), 0.6)
    with pytest.raises(ArgumentError, match="share"):
        parseval_step_(nn.Linear(2, 2), rows=0.0)
    with pytest.raises(ArgumentError, match="draws"):
        StochasticParseval(0)
    first = nn.Linear(2, 2)
    before = first.weight.detach().clone()
    with pytest.raises(UnsupportedError, match="parametrization"):
        parseval_step_(nn.Sequential(first, weight_norm(nn.Linear(2, 2))), 0.5)
    assert torch.equal(first.weight, before)
    for penalty in (Orthogonality(), StochasticParseval()):
        with pytest.raises(ArgumentError, match="no layers"):
            penalty([])
