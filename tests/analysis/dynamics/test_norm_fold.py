"""log K of networks that are no chain: against the fold of the bounds with the same norms, by hand, by differences."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis, lipschitz
from lipkit.analysis.dynamics.norm_fold import NormFold, fold_of
from lipkit.analysis.dynamics.tracked_layers import AsMatrix, AsOperator, Reading
from lipkit.bound import Bound, Kind
from lipkit.bounds import DAG
from lipkit.bounds.fold.dag import Term, fold_row
from lipkit.bounds.lipschitz import network_of
from lipkit.regularizers import layers_of
from lipkit.trace.rewrites.fuse import EveryOp


class Block(nn.Module):
    """A residual block with batch normalisation, and a projection where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.skip = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.norm(self.first(x)).relu()) + self.skip(x)).relu()


def resnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), Block(4, 4, 1), Block(4, 6, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
    ).double()


class Branches(nn.Module):
    """Two branches side by side, a layer used twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 5)
        self.twice, self.unused = nn.Linear(8, 8), nn.Linear(2, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([self.a(x), self.b(x)], dim=1)
        return self.twice(self.twice(joined).relu())


def norms(model: nn.Module, x: Tensor, reading: Reading) -> dict[str, float]:
    return {layer.name: layer.measure(layer.weight(), 0).value for layer in reading.track(layers_of(model, x))}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def profile(model: nn.Module, x: Tensor, reading: Reading | None = None) -> analysis.History:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with analysis.Profiler(model, optimizer, x, every=2, convolutions=reading) as profile:
        train(model, optimizer, x, 4)
    return profile.history


def test_a_residual_network_by_hand():
    model = resnet()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    known = norms(model, x, AsMatrix())
    history = profile(model, x)
    assert history.refused.keys() == {"expected", "sampled"}
    body = (1 + known["2.first"] * known["2.second"]) * (known["3.skip"] + known["3.first"] * known["3.second"])
    # A few roundings of numbers near 10.
    assert float(history.log_constant[0].exp()) == pytest.approx(known["0"] * body * known["6"], rel=1e-12)
    shares = {layer.name: float(layer.share[0]) for layer in history.layers if layer.share is not None}
    inside = known["2.first"] * known["2.second"]
    assert shares["0"] == pytest.approx(1, rel=1e-12)
    assert shares["2.first"] == pytest.approx(inside / (1 + inside), rel=1e-12)
    assert shares["3.skip"] + shares["3.second"] == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("make", [resnet, Branches])
@pytest.mark.parametrize("reading", [AsMatrix(), AsOperator()])
def test_the_fold_of_the_bounds_at_the_same_norms(make: Callable[[], nn.Module], reading: Reading):
    model = make().eval()
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64) if make is resnet else torch.randn(1, 4, dtype=torch.float64)
    layers = reading.track(layers_of(model, x))
    network = network_of(model, x)
    logs = torch.randn(len(layers), 3, dtype=torch.float64)
    by_place = {layer.weight().data_ptr(): row for layer, row in zip(layers, logs, strict=True)}
    found = fold_of(network, layers).log_constant(logs)
    for time in range(3):
        out = {0: torch.zeros((), dtype=torch.float64)}
        for k, row in network.rows().items():
            terms: list[Term] = []
            for j, op in row.items():
                held = [by_place[t.data_ptr()][time].exp().item() for t in op.tensors() if t.data_ptr() in by_place]
                terms.append(Term(op, Bound.from_value(held[0] if held else 1.0, Kind.ESTIMATE, "stated"), out[j]))
            out[k] = fold_row(terms, 2.0, None).log_constant
        # The bound is rounded up at each of some twenty rows.
        assert float(found[time]) == pytest.approx(float(out[network.sink]), rel=1e-12, abs=1e-12)


def test_with_true_norms_and_without_normalisation_it_is_the_bound():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), Plain(), nn.Flatten(), nn.Linear(32, 3)).double()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    history = profile(model, x, AsOperator())
    bound = lipschitz(model, x, DAG(cut=EveryOp()))
    # The bound's norms are exact up to roundings, and rounded up; a joint norm of a row could only make it smaller.
    assert float(history.log_constant[-1]) == pytest.approx(float(bound.log_value.detach()), rel=1e-6)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def test_branches_side_by_side_add_as_squares_and_a_layer_counts_as_often_as_it_is_used():
    model = Branches()
    x = torch.randn(4, 4, dtype=torch.float64)
    known = norms(model, x, AsMatrix())
    history = profile(model, x)
    joined = (known["a"] ** 2 + known["b"] ** 2) ** 0.5
    assert float(history.log_constant[0].exp()) == pytest.approx(joined * known["twice"] ** 2, rel=1e-12)
    shares = {layer.name: float(layer.share[0]) for layer in history.layers if layer.share is not None}
    assert shares["twice"] == pytest.approx(2, rel=1e-12)
    assert shares["a"] == pytest.approx(known["a"] ** 2 / joined**2, rel=1e-12)
    assert shares["unused"] == 0


def test_shares_are_differences_and_those_of_a_chain_are_one():
    model = resnet()
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    layers = AsMatrix().track(layers_of(model, x))
    fold = fold_of(network_of(model.eval(), x), layers)
    logs = torch.randn(len(layers), 4, dtype=torch.float64)
    shares = fold.shares(logs)
    step = 1e-6
    for index in range(len(layers)):
        moved = logs.clone()
        moved[index] += step
        back = logs.clone()
        back[index] -= step
        slope = (fold.log_constant(moved) - fold.log_constant(back)) / (2 * step)
        # Central differences: rounding of 1e-16 over 1e-6, times a few.
        torch.testing.assert_close(shares[index], slope, rtol=0, atol=1e-8)
    chain = NormFold()
    assert torch.equal(chain.log_constant(logs), logs.sum(0))
    assert torch.equal(chain.shares(logs), torch.ones_like(logs))


def test_the_trackers_of_a_residual_network_stay_with_it():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), Plain(), nn.Flatten(), nn.Linear(32, 3)).double()
    x = torch.randn(16, 1, 4, 4, dtype=torch.float64)
    history = profile(model, x)
    assert history.refused == {}
    moved = (history.log_constant - history.log_constant[0]).abs().max()
    assert float(moved) > 1e-3
    # Third order in steps of a thousandth.
    torch.testing.assert_close(history.realised, history.log_constant, rtol=0, atol=float(1e-2 * moved))


class Unreadable(nn.Module):
    """Its path depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        return self.two(y if bool(y.sum() > 0) else -y)


def test_a_network_that_cannot_be_read_has_the_product_and_says_so():
    model = Unreadable().double()
    history = profile(model, torch.randn(5, 3, dtype=torch.float64))
    assert "product of all norms" in history.refused["fold"]
    assert history.label.startswith("sum of log sigma_1")
    known = torch.stack([layer.norm.log() for layer in history.layers]).sum(0)
    torch.testing.assert_close(history.log_constant, known)
    assert all(layer.share is not None and bool((layer.share == 1).all()) for layer in history.layers)


class Attention(nn.Module):
    def __init__(self, *picks: int, **settings: Any) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(4, 2, batch_first=True, **settings)
        self.head, self.picks = nn.Linear(4, 3), picks

    def forward(self, x: Tensor) -> Tensor:
        known = x, 2 * x.tanh(), x.sigmoid()
        query, key, value = (known[i] for i in self.picks)
        return self.head(x + self.inside(query, key, value, need_weights=False)[0]).mean(1)


@pytest.mark.parametrize("picks", [(0, 0, 0), (1, 0, 0), (0, 1, 2), (0, 0, 1), (1, 1, 1)])
def test_packed_projections_are_three_layers(picks: tuple[int, int, int]):
    torch.manual_seed(0)
    model = Attention(*picks).double()
    history = profile(model, torch.randn(5, 3, 4, dtype=torch.float64))
    assert "fold" not in history.refused
    query, key, value = model.inside.in_proj_weight.detach().chunk(3)
    q, k, v, out, head = (
        float(torch.linalg.matrix_norm(one.detach(), 2))
        for one in (query, key, value, model.inside.out_proj.weight, model.head.weight)
    )
    # Projections write apart; everything else counts as 1, tanh, sigmoid and attention among it.
    inside = math.hypot(q, k, v)
    assert float(history.log_constant[-1].exp()) == pytest.approx((1 + out * inside) * head, rel=1e-12)
    found = {layer.name: float(layer.share[-1]) for layer in history.layers if layer.share is not None}
    branch = out * inside / (1 + out * inside)
    expected = {f"inside.{name}": branch * (s / inside) ** 2 for name, s in (("query", q), ("key", k), ("value", v))}
    assert found == pytest.approx({**expected, "inside.out_proj": branch, "head": 1}, rel=1e-12)


def test_a_transformer_layer_has_a_fold():
    torch.manual_seed(0)
    inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(inner, nn.Flatten(), nn.Linear(12, 3)).double()
    history = profile(model, torch.randn(5, 3, 4, dtype=torch.float64))
    assert "fold" not in history.refused
    norms = {layer.name: float(layer.norm[-1]) for layer in history.layers}
    inside = math.hypot(*(norms[f"0.self_attn.{name}"] for name in ("query", "key", "value")))
    attended = 1 + norms["0.self_attn.out_proj"] * inside
    expected = attended * (1 + norms["0.linear1"] * norms["0.linear2"]) * norms["2"]
    assert float(history.log_constant[-1].exp()) == pytest.approx(expected, rel=1e-12)


def test_a_computed_weight_is_found_by_its_module():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    nn.utils.parametrizations.weight_norm(model[0])
    history = profile(model, torch.randn(5, 4, dtype=torch.float64))
    assert "fold" not in history.refused
    known = torch.stack([layer.norm.log() for layer in history.layers]).sum(0)
    torch.testing.assert_close(history.log_constant, known)


def test_the_history_can_be_read_inside_the_block():
    model = resnet()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with analysis.Profiler(model, optimizer, x, every=1) as profile:
        train(model, optimizer, x, 1)
        assert "fold" not in profile.history.refused
        train(model, optimizer, x, 1)
    assert model.training
    assert profile.history.steps.tolist() == [0, 1, 2]


class Tied(nn.Module):
    """Two modules with one weight, in a branch and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b((x + self.a(x)).relu()).relu())


def test_one_weight_in_two_modules_counts_in_both_places():
    model = Tied().double()
    x = torch.randn(6, 4, dtype=torch.float64)
    known = norms(model, x, AsMatrix())
    history = profile(model, x)
    assert "fold" not in history.refused
    found = float(history.log_constant[0].exp())
    assert found == pytest.approx((1 + known["a"]) * known["b"] * known["head"], rel=1e-12)
    shares = {layer.name: float(layer.share[0]) for layer in history.layers if layer.share is not None}
    assert shares == pytest.approx({"a": known["a"] / (1 + known["a"]), "b": 1, "head": 1}, rel=1e-12)


def test_the_history_can_be_read_in_inference_mode():
    model = resnet()
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with analysis.Profiler(model, optimizer, x, every=1) as profile:
        train(model, optimizer, x, 1)
        with torch.inference_mode():
            found = profile.history
    for layer, same in zip(found.layers, profile.history.layers, strict=True):
        assert layer.share is not None
        assert same.share is not None
        assert torch.equal(layer.share, same.share)
