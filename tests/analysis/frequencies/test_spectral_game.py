"""Games against all orders of the players, and coalitions against filters one by one."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.frequencies.frequency_bands import Baseline
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_orders(values: Tensor) -> Tensor:
    """The mean of what each player adds, over all orders."""
    players = len(values).bit_length() - 1
    total = torch.zeros(players, dtype=torch.float64)
    for order in itertools.permutations(range(players)):
        there = 0
        for player in order:
            total[player] += values[there | 1 << player] - values[there]
            there |= 1 << player
    return total / math.factorial(players)


@given(st.integers(1, 5), st.integers(0, 10**6))
def test_shapley_values_are_means_over_all_orders(players: int, seed: int):
    values, other = draw(2, 2**players, seed=seed)
    found = analysis.shapley(values)
    torch.testing.assert_close(found, by_orders(values), atol=1e-12, rtol=0)
    assert math.isclose(float(found.sum()), float(values[-1] - values[0]), abs_tol=1e-12)
    both = analysis.shapley(torch.stack([values, other, 2 * values - 3 * other]))
    torch.testing.assert_close(both[2], 2 * both[0] - 3 * both[1], atol=1e-12, rtol=0)


def test_axioms():
    weights = torch.tensor([3.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    codes = torch.arange(16)[:, None] >> torch.arange(4) & 1
    additive = (codes * weights).sum(1) + 7
    torch.testing.assert_close(analysis.shapley(additive), weights)
    # The worth depends on players 0 and 1 together: they share alike, and player 2 gets nothing.
    together = torch.tensor([0.0, 0, 0, 1, 0, 0, 0, 1])
    assert analysis.shapley(together).tolist() == [0.5, 0.5, 0.0]


def test_the_printed_weight_lacks_an_inverse():
    players = 8
    right = sum(math.comb(7, size) / (players * math.comb(7, size)) for size in range(players))
    printed = sum(math.comb(7, size) * math.comb(7, size) / players for size in range(players))
    assert right == 1
    assert printed == 429


def test_published_scores():
    first, last = torch.eye(8, dtype=torch.float64)[[0, 7]]
    ramp = torch.arange(7, -1, -1, dtype=torch.float64)
    powers = analysis.importance(0.5 ** torch.arange(8, dtype=torch.float64))
    printed = analysis.score(torch.stack([first, last, ramp / 28, powers]), form=analysis.PrintedScore())
    assert [f"{x:.6f}" for x in printed.tolist()] == ["0.521717", "0.300156", "0.169486", "0.345540"]
    uniform = torch.full((8,), 0.125, dtype=torch.float64)
    signed = analysis.score(torch.stack([first, last, uniform]))
    assert math.isclose(float(signed[0]), 1)
    assert f"{float(signed[1]):.4f}" == "-0.5753"
    assert abs(float(signed[2])) < 1e-15
    assert abs(float(analysis.score(uniform, form=analysis.PrintedScore()))) < 1e-15


def test_noise_around_a_constant_does_not_look_uniform():
    for size in (1e-6, 1.0):
        sid = analysis.importance(5 + size * draw(4000, 8))
        printed = analysis.score(sid, form=analysis.PrintedScore())
        # The mean of 20,000 draws is 0.056; the standard error of 4,000 is below 0.001.
        assert abs(float(printed.mean()) - 0.056) < 0.004
        assert abs(float(printed.quantile(0.95)) - 0.133) < 0.01


def test_doubled_neurons_change_no_score():
    """The number of parameters decides nothing: the same function has the same score."""
    torch.manual_seed(0)
    first, last = nn.Linear(64, 16).double(), nn.Linear(16, 10).double()
    wide, end = nn.Linear(64, 32).double(), nn.Linear(32, 10).double()
    wide.weight.data, wide.bias.data = first.weight.data.repeat(2, 1), first.bias.data.repeat(2)
    end.weight.data, end.bias.data = last.weight.data.repeat(1, 2) / 2, last.bias.data
    models = [nn.Sequential(nn.Flatten(), a, nn.ReLU(), b) for a, b in ((first, last), (wide, end))]
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [1210, 2410]
    images, labels = draw(6, 1, 8, 8), torch.arange(6)
    one, other = (analysis.SpectralGame(model, 4)(images, labels) for model in models)
    assert float(analysis.score(one.sid)) == pytest.approx(float(analysis.score(other.sid)), abs=1e-12)


def test_importance_is_invariant_and_safe():
    psi = draw(3, 6)
    sid = analysis.importance(psi)
    torch.testing.assert_close(analysis.importance(4 * psi + 3), sid)
    torch.testing.assert_close(sid.sum(1), torch.ones(3, dtype=torch.float64))
    assert float(sid.min()) == 0
    assert analysis.importance(torch.full((4,), 2.0)).tolist() == [0.25] * 4


def classifier(seed: int = 0, pixels: int = 64) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 3)).double()


LABELS = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize(
    "baseline",
    [analysis.ZeroBaseline(), analysis.GaussianBaseline(8.0, seed=2), analysis.ReplacementBaseline(seed=1)],
)
@pytest.mark.parametrize("batch", [3, 16, 1000])
def test_coalitions_are_those_of_filters_one_by_one(baseline: Baseline, batch: int):
    model, x = classifier().train(), draw(4, 1, 8, 8)
    game = analysis.SpectralGame(model, bands=3, baseline=baseline, batch=batch)(x, LABELS)
    # The mode is what it was, although dropout was off.
    assert all(module.training for module in model.modules())
    filling = baseline.images(x)
    there, absent = analysis.bands(x, 3), torch.zeros(3, *x.shape) if filling is None else analysis.bands(filling, 3)
    model.eval()
    worth: list[Tensor] = []
    for code in range(8):
        mixed = sum((there[i] if code >> i & 1 else absent[i] for i in range(3)), torch.zeros_like(x))
        worth.append(-nn.functional.cross_entropy(model(mixed), LABELS, reduction="none"))
    values = torch.stack(worth, 1).detach()
    values = values - values[:, :1]
    assert game.values is not None
    torch.testing.assert_close(game.values, values.mean(0), atol=1e-12, rtol=0)
    each = torch.stack([by_orders(one) for one in values])
    torch.testing.assert_close(game.shapley, each.mean(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(game.error, each.std(0) / 2, atol=1e-12, rtol=0)
    assert float(game.sampling_error.abs().max()) == 0


def test_all_bands_are_the_image_whatever_the_baseline():
    model, x = classifier().eval(), draw(4, 1, 8, 8)
    ends: list[float] = []
    for baseline in (analysis.ZeroBaseline(), analysis.GaussianBaseline(3.0), analysis.ReplacementBaseline()):
        inner = analysis.SpectralGame(model, bands=4, baseline=baseline)
        empty = baseline.images(x)
        start = model(torch.zeros_like(x) if empty is None else empty).log_softmax(1).gather(1, LABELS[:, None]).mean()
        values = inner(x, LABELS).values
        assert values is not None
        assert float(values[0]) == 0
        ends.append(float(values[-1] + start.detach()))
    whole = float(model(x).log_softmax(1).gather(1, LABELS[:, None]).mean().detach())
    assert max(abs(end - whole) for end in ends) < 1e-12


def test_a_constant_classifier_learns_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    nn.init.zeros_(next(model.parameters()))
    game = analysis.SpectralGame(model, bands=4)(draw(4, 8, 8), LABELS)
    assert float(game.each.abs().max()) < 1e-14


def test_drawn_orders_estimate_an_additive_game_exactly_and_others_within_their_error():
    model, x = classifier(pixels=28 * 28).eval(), draw(4, 28, 28)
    drawn = analysis.SpectralGame(model, bands=13, orders=40, batch=64)(x, LABELS)
    assert drawn.values is None
    whole = model(x).log_softmax(1).gather(1, LABELS[:, None])[:, 0]
    none = model(torch.zeros_like(x)).log_softmax(1).gather(1, LABELS[:, None])[:, 0]
    # Every order adds up, so the mean does.
    torch.testing.assert_close(drawn.each.sum(1), (whole - none).detach(), atol=1e-10, rtol=0)
    again = analysis.SpectralGame(model, bands=13, orders=40, seed=7)(x, LABELS)
    apart = (drawn.shapley - again.shapley).abs() / (drawn.sampling_error**2 + again.sampling_error**2).sqrt()
    # Five standard errors of a difference, for 13 bands; and they do differ.
    assert float(apart.max()) < 5
    assert float(apart.square().mean().sqrt()) > 0.1
    # The deviation between images contains that of the orders.
    assert float(drawn.error.norm()) > float(drawn.sampling_error.norm())


def test_the_information_identity_on_a_discrete_joint():
    # I(X; Y) = E KL(P(y|x) | Q(y|x)) + H(Y) + E log Q(y|x), whatever Q.
    joint = draw(5, 3).softmax(0).double()
    joint = joint / joint.sum()
    guess = draw(5, 3, seed=1).log_softmax(1)
    p_x, p_y = joint.sum(1, keepdim=True), joint.sum(0)
    information = float((joint * (joint / (p_x * p_y)).log()).sum())
    divergence = float((joint * ((joint / p_x).log() - guess)).sum())
    entropy = -float((p_y * p_y.log()).sum())
    likelihood = float((joint * guess).sum())
    assert math.isclose(information, divergence + entropy + likelihood, abs_tol=1e-14)
    assert entropy + likelihood <= information


def test_an_interval_of_the_score_shrinks_with_images():
    generator = torch.Generator().manual_seed(0)
    psi = torch.tensor([3.0, 2, 1, 0.5], dtype=torch.float64)
    each = psi + torch.randn(1600, 4, generator=generator, dtype=torch.float64)
    zero = torch.zeros(4, dtype=torch.float64)
    wide = analysis.SpectralValues(None, each[:100], zero).score_interval()
    narrow = analysis.SpectralValues(None, each, zero).score_interval()
    truth = float(analysis.score(analysis.importance(psi)))
    assert wide.low <= wide.value <= wide.high
    assert narrow.low < truth < narrow.high
    # A factor of 16 in images is one of 4 in width.
    assert 2.5 < (wide.high - wide.low) / (narrow.high - narrow.low) < 6


def test_bad_input_is_refused():
    model, x = classifier(), draw(4, 8, 8)
    with pytest.raises(ArgumentError, match="two bands"):
        analysis.SpectralGame(model, bands=1)
    with pytest.raises(ArgumentError, match="orders"):
        analysis.SpectralGame(model, orders=1)
    game = analysis.SpectralGame(model, bands=3)
    with pytest.raises(ArgumentError, match=r"0\.\.2, got 0\.\.3"):
        game(x, torch.tensor([0, 3, 1, 1]))
    with pytest.raises(ShapeError, match="One label"):
        game(x, LABELS[:3])
    with pytest.raises(ShapeError, match="at least two images"):
        game(x[:1], LABELS[:1])
    with pytest.raises(NonFiniteError, match="images"):
        game(torch.full_like(x, math.nan), LABELS)
    nn.init.constant_(next(model.parameters()), math.nan)
    with pytest.raises(NonFiniteError, match="weights"):
        game(x, LABELS)
    with pytest.raises(ShapeError, match="logits"):
        analysis.SpectralGame(nn.Flatten(0), bands=3)(x, LABELS)
    with pytest.raises(ShapeError, match="values"):
        analysis.shapley(torch.zeros(6))
    with pytest.raises(NonFiniteError):
        analysis.shapley(torch.tensor([0.0, math.nan]))
    with pytest.raises(ArgumentError, match="beta"):
        analysis.score(torch.tensor([0.5, 0.5]), beta=1.0)
    with pytest.raises(ArgumentError, match="distribution"):
        analysis.score(torch.tensor([0.5, 0.6]))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x


def test_outputs_and_labels_of_other_kinds_are_refused():
    images = torch.rand(3, 1, 8, 8)
    with pytest.raises(ShapeError, match="tuple"):
        analysis.SpectralGame(Pair(), bands=4)(images, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"labels\.long"):
        analysis.SpectralGame(nn.Flatten(), bands=4)(images, torch.full((3,), 0.5))


def test_scores_stay_in_their_range_and_nan_is_no_uniform_distribution():
    sid = torch.zeros(8)
    sid[0] = 1 + 9e-5
    assert float(analysis.score(sid)) <= 1
    assert float(analysis.score(sid, form=analysis.PrintedScore())) <= 0.521718
    with pytest.raises(NonFiniteError, match="NaN"):
        analysis.importance(torch.tensor([float("nan"), 0.0, 1.0]))
