"""Votes under noise against a plain loop over single samples."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.certify import smoothing as rs
from lipkit.certify.smoothing.sampler import Sampler, prepared
from lipkit.certify.smoothing.sources import Stream, open_source
from lipkit.errors import NonFiniteError, ShapeError

MAPS = (rs.Softmax(0.5), rs.Hardmax(), rs.Softmax(2.0), rs.Sparsemax(), rs.Sparsemax(mass=3.0, temperature=0.5))


def model(classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, classes)).double()


def drawn(one: nn.Module, maps: tuple[rs.SimplexMap, ...], classes: int, n: int, block: int) -> rs.Samples:
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    with prepared(one):
        return Sampler(one, rs.Gaussian(0.7), maps, classes, 3, block).draw(x, 11, 7, n)


def single_samples(one: nn.Module, n: int, block: int) -> list[Tensor]:
    """The logits of every sample, one by one, from the numbers of its block."""
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    found: list[Tensor] = []
    with torch.no_grad():
        for number in range(math.ceil(n / block)):
            noise = 0.7 * open_source(3, 11, Stream.PROOF, number, x).normal((block, 6))
            found += [one((x + row)[None])[0] for row in noise]
    return found[:n]


@pytest.mark.parametrize(("n", "block"), [(40, 8), (41, 8), (8, 8), (1, 1)])
def test_counts_and_moments_are_those_of_a_loop_over_samples(n: int, block: int) -> None:
    one = model()
    found = drawn(one, MAPS, 5, n, block)
    rows = single_samples(one, n, block)
    votes = Counter(int(row.argmax()) for row in rows)
    assert found.counts.tolist() == [[votes[k] for k in range(5)]]
    assert found.spent.tolist() == [n]
    assert found.maps == MAPS
    assert [m.map for m in found.moments] == [one for one in MAPS if one != rs.Hardmax()]
    for moments in found.moments:
        shares = torch.stack([moments.map(row) for row in rows])
        # The matrix products of a block and of one row round differently: a few units of float64, on votes up to 3.
        torch.testing.assert_close(moments.first[0, :-1], shares.sum(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moments.second[0, :-1], shares.square().sum(0), rtol=1e-12, atol=1e-12)
        assert moments.first[0, -1] == 0


def test_rows_beyond_n_are_computed_and_not_counted() -> None:
    sizes: list[int] = []

    def watched(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return torch.stack([x[:, 0], x[:, 1]], 1)

    sampler = Sampler(watched, rs.Gaussian(1.0), (rs.Hardmax(),), 2, 0, 16)
    found = sampler.draw(torch.zeros(3), 0, 5, 37)
    # The samples that choose are a block of their own size; those that prove always fill theirs.
    assert sizes == [5, 16, 16, 16]
    assert int(found.counts.sum()) == 37
    longer = sampler.draw(torch.zeros(3), 0, 5, 48)
    last = open_source(0, 0, Stream.PROOF, 2, torch.zeros(3)).normal((16, 3))[5:]
    more = torch.bincount(last[:, :2].argmax(1), minlength=2)
    assert (longer.counts[0] - found.counts[0]).tolist() == more.tolist()


def test_beyond_64_classes_the_likeliest_are_kept_and_the_rest_is_one_sum() -> None:
    one = model(100)
    found = drawn(one, (rs.Softmax(1.0), rs.Sparsemax()), 100, 30, 10)
    assert found.counts.shape == (1, 100)
    assert found.tracked.shape == (1, 64)
    kept = found.tracked[0].tolist()
    means = found.selection[0].double().softmax(1).mean(0)
    assert set(kept) == set(means.argsort(descending=True)[:64].tolist())
    rows = single_samples(one, 30, 10)
    others = [k for k in range(100) if k not in kept]
    for moments in found.moments:
        shares = torch.stack([moments.map(row) for row in rows])
        rest = shares[:, others].sum(1)
        wanted = torch.cat([shares[:, kept].sum(0), rest.sum()[None]])
        squares = torch.cat([shares[:, kept].square().sum(0), rest.square().sum()[None]])
        torch.testing.assert_close(moments.first[0], wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moments.second[0], squares, rtol=1e-12, atol=1e-12)


def test_temperatures_of_a_family_do_not_overflow() -> None:
    def steep(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] + 1e30, x[:, 1] - 1e30], 1)

    maps = (rs.Softmax(1e-20), rs.Softmax(1.0))
    found = Sampler(steep, rs.Gaussian(1.0), maps, 2, 0, 4).draw(torch.zeros(2), 0, 1, 4)
    for moments in found.moments:
        assert moments.first.tolist() == [[4.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda x: x[:, :2] / 0.0, NonFiniteError, "NaN or infinite logits for noisy copies of image 9"),
        (lambda x: x, ShapeError, r"shape \(4, 3\) for 4 noisy copies, expected logits of shape \(4, 2\)"),
        (lambda x: x[:, :2].long(), ShapeError, "int64"),
        (lambda _: None, ShapeError, "NoneType"),
    ],
)
def test_what_is_no_logits_is_refused(wrong: Callable[[Tensor], Tensor], error: type[Exception], words: str) -> None:
    sampler = Sampler(wrong, rs.Gaussian(1.0), (rs.Hardmax(),), 2, 0, 4)
    with pytest.raises(error, match=words):
        sampler.draw(torch.ones(3), 9, 4, 4)


def test_a_late_infinity_is_noticed() -> None:
    calls: list[int] = []

    def late(x: Tensor) -> Tensor:
        calls.append(1)
        found = x[:, :2].clone()
        if len(calls) == 3:
            found[-1, 0] = math.inf
        return found

    sampler = Sampler(late, rs.Gaussian(1.0), (rs.Hardmax(),), 2, 0, 4)
    with pytest.raises(NonFiniteError):
        sampler.draw(torch.ones(3), 0, 4, 12)


def test_noise_is_added_in_float32_and_rounded_to_the_type_of_the_model() -> None:
    seen: list[Tensor] = []

    def half(x: Tensor) -> Tensor:
        seen.append(x)
        return x[:, :2]

    x = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    found = Sampler(half, rs.Gaussian(1.0), (rs.Softmax(1.0),), 2, 0, 4).draw(x, 0, 4, 4)
    noise = open_source(0, 0, Stream.PROOF, 0, torch.zeros(())).normal((4, 2))
    assert torch.equal(seen[1], (x.float() + noise).bfloat16())
    assert found.selection.dtype == torch.float32


def test_a_model_is_evaluated_in_evaluation_mode_with_its_weights_held_and_left_as_it_was() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(lnn.Linear(6, 6), nn.Dropout(0.9), nn.Linear(6, 3)).train()
    with prepared(net):
        assert not net.training
        found = Sampler(net, rs.Gaussian(0.1), (rs.Hardmax(),), 3, 0, 8).draw(torch.ones(6), 0, 4, 16)
        again = Sampler(net, rs.Gaussian(0.1), (rs.Hardmax(),), 3, 0, 8).draw(torch.ones(6), 0, 4, 16)
    assert net.training
    assert torch.equal(found.selection, again.selection)
    assert not found.selection.requires_grad


def test_settings_of_cudnn_are_put_back_and_the_precision_of_products_is_left_alone() -> None:
    cudnn = torch.backends.cudnn
    torch.set_float32_matmul_precision("high")
    cudnn.benchmark = True
    try:
        with prepared(model()):
            assert (cudnn.benchmark, cudnn.deterministic) == (False, True)
            assert torch.get_float32_matmul_precision() == "high"
        assert (cudnn.benchmark, cudnn.deterministic) == (True, False)
    finally:
        torch.set_float32_matmul_precision("highest")
        cudnn.benchmark = False


def test_maps_of_a_family_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    votes = rs.Softmax.__call__

    def watched(self: rs.Softmax, logits: Tensor) -> Tensor:
        calls.append(logits.ndim)
        return votes(self, logits)

    monkeypatch.setattr(rs.Softmax, "__call__", watched)
    maps = tuple(rs.Softmax(t) for t in (0.1, 1.0, 10.0))
    Sampler(lambda x: x[:, :2], rs.Gaussian(1.0), maps, 2, 0, 4).draw(torch.zeros(2), 0, 4, 8)
    assert calls == [3, 3]


def test_a_temperature_of_another_meaning_is_left_to_its_map() -> None:
    @dataclasses.dataclass(frozen=True)
    class Blended(rs.SimplexMap):
        temperature: float

        @property
        def joint(self) -> float:
            return math.inf

        coordinate = pair = joint  # pyright: ignore[reportIncompatibleMethodOverride]

        def __call__(self, logits: Tensor) -> Tensor:
            return (1 - self.temperature) * logits.softmax(-1) + self.temperature / logits.shape[-1]

    def sums(*maps: rs.SimplexMap) -> Tensor:
        sampler = Sampler(lambda x: x[:, :2], rs.Gaussian(1.0), maps, 2, 0, 4)
        return sampler.draw(torch.ones(2), 0, 4, 8).moments[0].first

    assert torch.equal(sums(Blended(0.5), Blended(0.9)), sums(Blended(0.5)))


def test_a_model_may_write_its_answers_where_the_last_ones_were() -> None:
    place = torch.zeros(4, 2)

    def reused(x: Tensor) -> Tensor:
        return place.copy_(x[:, :2])

    found, fresh = (
        Sampler(one, rs.Gaussian(1.0), MAPS, 2, 0, 4).draw(torch.ones(2), 0, 12, 8) for one in (reused, lambda x: x)
    )
    assert torch.equal(found.selection, fresh.selection)
    assert torch.equal(found.counts, fresh.counts)
