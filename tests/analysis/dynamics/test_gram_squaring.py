"""Largest singular values by squaring Gram matrices: against decompositions, for spectra that are hard."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.dynamics import books, layer_stack, tracked_layers
from lipkit.analysis.dynamics.gram_squaring import decompose_together, spectral_norms_together
from lipkit.analysis.singular_values.gram_decomposition import decompose_gram
from lipkit.errors import ArgumentError, NonFiniteError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_values(values: list[float], rows: int = 30, columns: int = 40) -> Tensor:
    """A matrix with these singular values, zeros after them, and random vectors."""
    middle = torch.zeros(rows, columns, dtype=torch.float64)
    middle.diagonal()[: len(values)] = torch.tensor(values, dtype=torch.float64)
    left, right = torch.linalg.qr(normal(rows, rows))[0], torch.linalg.qr(normal(columns, columns, seed=1))[0]
    return left @ middle @ right


RESOLVED: dict[str, Tensor] = {
    "wide": normal(64, 200),
    "tall": normal(100, 40),
    "square": normal(30, 30),
    "row": normal(1, 5),
    "column": normal(5, 1),
    "number": normal(1, 1),
    "diagonal": torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)),
    "gap 1e-2": with_values([1.0, 1 - 1e-2, *[0.5] * 10]),
    "gap 2e-3": with_values([1.0, 1 - 2e-3, *[0.9] * 20]),
    "a cluster below": with_values([2.0, *(1 - 1e-6 * i for i in range(20))]),
    "repeated below": with_values([2.0, *[1.0] * 20]),
    "rank two": with_values([3.0, 1.0]),
    "geometric": with_values([10.0**-i for i in range(20)]),
    "tiny": 1e-70 * normal(20, 30),
    "huge": 1e70 * normal(20, 30),
    "rows of other sizes": normal(20, 30) * torch.logspace(-30, 30, 20, dtype=torch.float64).unsqueeze(1),
}


def test_values_and_forms_are_those_of_decompositions():
    # All at once: sizes differ, and those of one size are multiplied together.
    for (name, matrix), found in zip(RESOLVED.items(), decompose_together(list(RESOLVED.values())), strict=True):
        assert found is not None, name
        dense = decompose_gram(matrix)
        largest = float(torch.linalg.svdvals(matrix)[0])
        # A sum of p squares and its root; the form loses the digits of gap / value, here at most three, twice.
        assert found.value == pytest.approx(largest, rel=1e-12), name
        assert found.gap == pytest.approx(dense.gap, abs=1e-12 * largest), name
        change = normal(3, *matrix.shape, seed=2)
        forms = [one.form(change @ one.right, one.left @ change) for one in (found, dense)]
        torch.testing.assert_close(*forms, rtol=1e-8, atol=1e-12 * float(change.square().sum()) / largest)
        assert torch.linalg.vector_norm(found.left) == pytest.approx(1, rel=1e-13)
        torch.testing.assert_close(matrix @ found.right / largest, found.left, rtol=0, atol=1e-10)


def test_the_form_is_the_second_difference_of_the_value():
    matrix, change = with_values([1.0, 0.95, *[0.5] * 10]), normal(30, 40, seed=3)
    (found,) = decompose_together([matrix])
    assert found is not None
    step = 1e-4
    ahead, here, behind = (float(torch.linalg.matrix_norm(matrix + h * change, 2)) for h in (step, 0.0, -step))
    # Fourth order in a step of 6e-4 of the gap's size, and the rounding 1e-16 / step^2 of a difference.
    form = float(found.form(change @ found.right, change.mT @ found.left))
    assert form == pytest.approx((ahead - 2 * here + behind) / step**2, rel=1e-3)


def test_a_matrix_of_rank_one_has_all_of_its_value_as_gap():
    (found,) = decompose_together([with_values([3.0])])
    assert found is not None
    assert found.value == pytest.approx(3.0, rel=1e-14)
    # The next value is the root of a rounding error of 9.
    assert found.gap == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-9, 1e-7, 1e-6])
def test_values_that_cannot_be_told_apart_are_left_to_a_decomposition(distance: float):
    clear, near = with_values([2.0, 1.0]), with_values([1.0, 1 - distance, 0.5])
    found = decompose_together([near, clear, torch.eye(30, dtype=torch.float64)])
    assert [one is None for one in found] == [True, False, True]


def test_small_gaps_keep_the_digits_that_the_gap_leaves():
    for distance in (1e-3, 1e-4, 1e-5, 4e-6):
        matrix = with_values([1.0, 1 - distance, *[0.5] * 10])
        (found,) = decompose_together([matrix])
        assert found is not None
        assert found.value == pytest.approx(1.0, rel=1e-13)
        assert found.gap == pytest.approx(distance, abs=1e-13)
        exact = torch.linalg.svd(matrix)[0][:, 0]
        # A rounding of the Gram matrix over the gap of its values.
        assert 1 - abs(float(found.u @ exact)) < (1e-14 / distance) ** 2 + 1e-14


def test_a_third_value_near_the_second_costs_digits_of_the_gap_only():
    # The worst distance, 2^-25, and one on each side of it.
    for distance in (1e-9, 2.0**-25, 1e-6):
        (found,) = decompose_together([with_values([2.0, 1.0, *[1 - distance] * 25])])
        assert found is not None
        assert found.value == pytest.approx(2.0, rel=1e-13)
        assert found.gap == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    "matrix",
    [torch.zeros(3, 4), torch.full((3, 4), math.nan), torch.full((3, 4), 1e200, dtype=torch.float64)],
)
def test_what_has_no_norm_spoils_no_other(matrix: Tensor):
    found = decompose_together([matrix, with_values([2.0, 1.0], 3, 4)])
    assert found[0] is None
    assert found[1] is not None
    assert found[1].value == pytest.approx(2.0, rel=1e-14)


def test_norms_together():
    matrices = [*RESOLVED.values(), with_values([1.0, 1.0, 0.5]), with_values([1.0, 1 - 1e-9])]
    expected = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in matrices]
    # log(p) / 2^25 at the worst, where two values cannot be told apart.
    assert spectral_norms_together(matrices) == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device counts as one where products are cheap."""
    for module in (tracked_layers, layer_stack, books):
        monkeypatch.setattr(module, "products_are_cheap", lambda _: True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh()),
        *(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)),
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 2, 4, 4, generator=draws), torch.arange(6) % 3) for _ in range(count)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def profile(dtype: torch.dtype, rate: float) -> tuple[analysis.History, nn.Module]:
    model = network().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=0.01)
    data = [(x.to(dtype), y) for x, y in batches(9)]
    with analysis.Profiler(model, optimizer, data[0][0], every=4) as found:
        train(model, optimizer, data)
    return found.history, model


# Float32 vectors that follow round in another order; at the larger rate steps are beyond half the gap, and cross.
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_the_history_is_that_of_layers_one_by_one(
    dtype: torch.dtype, close: float, rate: float, request: pytest.FixtureRequest
):
    alone, model = profile(dtype, rate)
    request.getfixturevalue("on_a_gpu")
    together, same = profile(dtype, rate)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert together.refused == alone.refused == {}
    assert any(layer.crossings.any() for layer in alone.layers) == (rate == 1.0)
    for one, other in zip(together.layers, alone.layers, strict=True):
        torch.testing.assert_close(one.norm, other.norm, rtol=1e-12, atol=0)
        for name in ("gap", "drift", "curvature", "decay", "rest", "crossings", "kappa", "diffusion"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=close, atol=close, msg=name)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_an_interrupted_run_of_stacks_has_the_same_history(stop: int):
    data, model = batches(9), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, data[0][0], every=4) as whole:
        train(model, optimizer, data[:stop])
        state, weights = whole.state_dict(), copy.deepcopy(model.state_dict())
        train(model, optimizer, data[stop:])
    second = network()
    second.load_state_dict(weights)
    after = torch.optim.SGD(second.parameters(), lr=0.1)
    resumed = analysis.Profiler(second, after, data[0][0], every=4)
    resumed.load_state_dict(state)
    with resumed:
        train(second, after, data[stop:])
    for one, other in zip(resumed.history.layers, whole.history.layers, strict=True):
        for name in ("norm", "gap", "drift", "curvature", "decay", "rest", "crossings", "kappa", "diffusion"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.usefixtures("on_a_gpu")
def test_layers_without_a_norm_are_named_in_a_stack():
    model, ((x, _),) = network(), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = model[11]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    with pytest.raises(ArgumentError, match="'11' is zero after 0 steps"):
        analysis.Profiler(model, optimizer, x).__enter__()
    nn.init.constant_(last.weight, math.nan)
    with pytest.raises(NonFiniteError, match="'11' has NaN"):
        analysis.Profiler(model, optimizer, x).__enter__()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_curvature_of_a_step_is_that_of_the_weight_before_it(dtype: torch.dtype):
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, bias=False).to(dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    matrix = layer.weight.detach().double().clone()
    with analysis.Profiler(layer, optimizer, torch.zeros(1, 6, dtype=dtype), every=1) as found:
        layer.weight.grad = normal(5, 6, seed=1).to(dtype)
        optimizer.step()
    change = layer.weight.detach().double() - matrix
    hessian = analysis.singular_value_hessian(matrix)
    value, u, v = hessian.triplet()
    expected = float(hessian.form(change)) / (2 * value) - float(u @ change @ v / value) ** 2 / 2
    assert float(found.history.layers[0].curvature[0]) == pytest.approx(expected, rel=1e-6)
