"""Private steps: what is added up, how much noise is on it, what becomes of it, and that nothing is released twice."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import lipkit.nn as lnn
from lipkit import losses, optim, privacy
from lipkit.errors import ArgumentError, RecordError
from lipkit.privacy.private_steps.drawn_rows import Batches
from lipkit.privacy.private_steps.record_sums import RecordSums
from support.record_gradients import drawn_records, gradient_norms, largest_ratios

DELTA = 1e-4
# Noise that no digit of a float32 weight can show.
NEGLIGIBLE = 1e-14


def plan_of(
    steps: int = 5,
    sigma: float = NEGLIGIBLE,
    records: int = 40,
    batch: int = 40,
    sampling: privacy.Sampling | None = None,
) -> privacy.Plan:
    drawn = sampling or (privacy.Whole() if batch == records else privacy.Poisson())
    return privacy.Plan(records, batch, steps, DELTA, sigma=sigma, accountant=privacy.RDP(), sampling=drawn)


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def labels(count: int) -> Tensor:
    return torch.arange(count) % 3


def training_of(
    model: nn.Module, path: Path, plan: privacy.Plan, rows: int = 40, rate: float = 1.0, **more: Any
) -> privacy.Training:
    x = drawn_records((6,), 3.0, max(rows, 40))[:rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loss = more.pop("loss", nn.CrossEntropyLoss())
    inputs = privacy.Inputs((6,), 2.0)
    return privacy.Training(model, loss, optimizer, (x, labels(rows)), plan, inputs, ledger=path, **more)


def copies(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), losses.TauCrossEntropy(5.0)]
)
@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_a_step_is_the_sum_of_the_records_gradients_over_the_planned_batch(loss: nn.Module, chunk: int, tmp_path: Path):
    model = dense()
    x = privacy.Inputs((6,), 2.0)(drawn_records((6,), 3.0, 40))
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for row, label in zip(x, labels(40), strict=True):
        gradients = torch.autograd.grad(loss(model(row[None]), label[None]), list(model.parameters()))
        expected = [e + g for e, g in zip(expected, gradients, strict=True)]
    before = copies(model)
    # 40 rows and a plan of 50 records: the divisor is planned, not counted.
    with training_of(model, tmp_path / "ledger", plan_of(records=50, batch=50), loss=loss, chunk=chunk) as training:
        training.step()
    for p, old, total in zip(model.parameters(), before, expected, strict=True):
        # Sums of 40 numbers of float64, and noise of 1e-14.
        assert torch.allclose(old - p, total / 50, rtol=0, atol=1e-12)


@pytest.mark.parametrize("allocation", [privacy.Optimal(), privacy.PerTensor(), privacy.Global()])
def test_the_noise_on_zero_gradients_has_its_deviations(allocation: privacy.Allocation, tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 3)).double()
    plan = plan_of(sigma=1.7, records=50, batch=10)
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((6,), 2.0))
    expected = allocation.deviations(limits, 1.7)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # No rows: every batch is empty, and is a step.
    with training_of(model, tmp_path / "ledger", plan, rows=0, allocation=allocation) as training:
        training.step()
        assert training.spent().steps == 1
    for name, p in model.named_parameters():
        noise = (p.detach() - before[name]) * plan.batch / expected[name]
        # Six deviations of a mean and of a variance of so many normal numbers (chi-squared, wider for the three of the
        # last bias, for which 20 is beyond 1e-12): false once in 1e7 runs.
        n = noise.numel()
        assert abs(float(noise.mean())) < 6 / math.sqrt(n)
        assert n < 100 or abs(float(noise.square().mean()) - 1) < 6 * math.sqrt(2 / n)
        assert float(noise.square().mean()) < 20


def test_the_noise_does_not_depend_on_the_records(tmp_path: Path):
    moved = []
    for number, rows in enumerate((0, 40)):
        exact, noised = dense(), dense()
        with training_of(exact, tmp_path / f"exact{number}", plan_of(), rows=rows) as training:
            training.step()
        entropy = privacy.Repeatable(3)
        with training_of(noised, tmp_path / f"{number}", plan_of(sigma=2.0), rows=rows, entropy=entropy) as training:
            training.step()
        moved.append([a.detach() - b.detach() for a, b in zip(noised.parameters(), exact.parameters(), strict=True)])
    for one, other in zip(*moved, strict=True):
        assert float(one.abs().max()) > 1e-3
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bjorck": lambda: nn.Sequential(lnn.Linear(6, 8), lnn.MaxMin(), lnn.Linear(8, 3)),
    "cayley": lambda: nn.Sequential(lnn.Linear(6, 6, method=lnn.Cayley()), lnn.MaxMin(), lnn.Linear(6, 3)),
    "chain": lambda: lnn.Sequential(lnn.Linear(6, 8), lnn.MaxMin(), lnn.Linear(8, 3), K=2.0),
    "sll": lambda: nn.Sequential(lnn.SLL(6, 8), lnn.Linear(6, 3)),
    "cpl": lambda: nn.Sequential(lnn.CPL(6, 8), lnn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_without_noise_constrained_layers_get_the_gradient_of_autograd(name: str, tmp_path: Path):
    torch.manual_seed(0)
    model = LAYERS[name]().double()
    x = privacy.Inputs((6,), 2.0)(drawn_records((6,), 3.0, 40))
    for step in range(2):
        expected = torch.autograd.grad(nn.CrossEntropyLoss()(model(x), labels(40)), list(model.parameters()))
        before = copies(model)
        with training_of(model, tmp_path / "ledger", plan_of(), rate=0.1, at_least=step) as training:
            training.step()
        for p, old, gradient in zip(model.parameters(), before, expected, strict=True):
            # Methods in evaluation and in training differ in their last digits, as 1e-9 of float64 iterations.
            assert torch.allclose(old - p, 0.1 * gradient, rtol=1e-7, atol=1e-9)


def test_noise_is_added_to_the_weight_and_then_pulled_back(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(6, 3, bias=False)).double()
    raw = model.get_parameter("0.parametrizations.weight.original")
    start = raw.detach().clone()
    constraint: Any = model.get_submodule("0.parametrizations.weight.0")
    limits = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((6,), 2.0))
    deviation = privacy.Optimal().deviations(limits, 2.0)["0.weight"]
    with training_of(model, tmp_path / "ledger", plan_of(sigma=2.0), rows=0, entropy=privacy.Repeatable(5)) as training:
        training.step()
    noise = privacy.Repeatable(5).normal(start.new_empty(3, 6), deviation) / 40
    free = start.clone().requires_grad_()
    (by_hand,) = torch.autograd.grad(constraint.compute(free), free, noise)
    assert float(by_hand.abs().max()) > 1e-3
    assert torch.allclose(start - raw.detach(), by_hand, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("method", "least"), [(lnn.Bjorck(), 5.0), (lnn.QR(), 5.0)], ids=["bjorck", "qr"])
def test_noise_on_free_numbers_would_be_far_too_little(method: lnn.WeightMethod, least: float):
    # The defect: noise scaled by the limit of the weight, added to the gradient of the free numbers.
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Linear(24, 16, bias=False, method=method)).double()
    raw = model.get_parameter("0.parametrizations.weight.original")
    with torch.no_grad():
        raw.mul_(0.05)
    loss, inputs = nn.CrossEntropyLoss(), privacy.Inputs((24,), 1.0)
    limits = privacy.sensitivity(model, loss, inputs)
    x = inputs(drawn_records((24,), 1.0, 100))
    y = torch.arange(100) % 16
    assert max(largest_ratios(limits, gradient_norms(lnn.condense(model), loss, x, y)).values()) <= 1
    largest = 0.0
    for row, label in zip(x, y, strict=True):
        (gradient,) = torch.autograd.grad(loss(model(row[None]), label[None]), raw)
        largest = max(largest, float(gradient.norm()))
    assert largest > least * float(limits.total.value)


def test_batches_are_poisson_whole_or_cut_from_an_order():
    draws = Batches(plan_of(records=1_000, batch=100), 600, privacy.SystemEntropy())
    sizes = torch.tensor([float(len(draws.draw(k))) for k in range(1, 3_001)])
    # The rate is the plan's, 0.1, whatever the number of rows; six standard errors.
    assert abs(sizes.mean() - 60) < 6 * math.sqrt(54 / 3_000)
    assert abs(sizes.var() / 54 - 1) < 6 * math.sqrt(2 / 3_000)
    whole = Batches(plan_of(), 37, privacy.SystemEntropy())
    assert whole.draw(1).tolist() == list(range(37))
    shuffled = Batches(plan_of(records=10, batch=3, sampling=privacy.Shuffled()), 11, privacy.SystemEntropy())
    for epoch in range(3):
        rows = torch.cat([shuffled.draw(3 * epoch + k) for k in (1, 2, 3)])
        assert len(rows) == len(rows.unique()) == 9


def test_there_are_no_more_steps_than_planned(tmp_path: Path):
    model = dense()
    with training_of(model, tmp_path / "ledger", plan_of(steps=2, sigma=1.0)) as training:
        training.step()
        training.step()
        before = copies(model)
        with pytest.raises(RecordError, match="All 2 planned steps are spent"):
            training.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert training.spent().steps == 2
        assert training.spent().epsilon == plan_of(steps=2, sigma=1.0).epsilon
        assert training.spent().delta == DELTA


def test_what_a_killed_training_leaves_counts_at_least_its_steps(tmp_path: Path):
    path, plan = tmp_path / "ledger", plan_of(steps=400, sigma=1.0)
    with training_of(dense(), path, plan) as training:
        training.step()
        training.step()
        # The bytes on the disk at this moment are what a kill leaves.
        shutil.copy(path, tmp_path / "left")
    with training_of(dense(), tmp_path / "left", plan, at_least=2) as after:
        assert 2 <= after.spent().steps <= 256
        after.step()
        assert after.spent().steps >= 3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_negligible_noise_is_projected_gradient_descent(momentum: float, tmp_path: Path):
    ours, theirs = dense(), dense()
    x, y = drawn_records((6,), 3.0, 40), labels(40)
    inputs, plan = privacy.Inputs((6,), 2.0), plan_of(steps=6)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.3, momentum=momentum)
    after = lambda: lnn.project(ours, linear=lnn.Bjorck())  # noqa: E731
    loss = nn.CrossEntropyLoss()
    with privacy.Training(
        ours, loss, optimizer, (x, y), plan, inputs, ledger=tmp_path / "ledger", after=after
    ) as training:
        for _ in range(6):
            training.step()
    plain = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=momentum)
    for _ in range(6):
        plain.zero_grad()
        loss(theirs(inputs(x)), y).backward()
        plain.step()
        lnn.project(theirs, linear=lnn.Bjorck())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        # Differences of 1e-14 in gradients, through six projections.
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
    moved = ours.get_parameter("0.weight") - dense().get_parameter("0.weight")
    assert float(moved.detach().abs().max()) > 0.01


def test_the_noise_follows_the_weights(tmp_path: Path):
    # Stale limits: after the head grew tenfold, the first layer needs ten times the noise.
    model = dense()
    with training_of(model, tmp_path / "ledger", plan_of(sigma=1.0), rate=0.0) as training:
        training.step()
        before = training._limits().values_by_name()["0.weight"]
        with torch.no_grad():
            model.get_parameter("2.weight").mul_(10)
        training.step()
        assert training._limits().values_by_name()["0.weight"] == pytest.approx(10 * before, rel=1e-3)


def test_a_residual_layer_is_read_again_in_every_step(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(lnn.CPL(6, 8), lnn.Linear(6, 3)).double()
    with training_of(model, tmp_path / "ledger", plan_of(sigma=0.5)) as training:
        first = training._sensitivity
        training.step()
        assert training._sensitivity is not first
        assert training._limits().values_by_name()


class Root(nn.Module):
    """|x|, with a derivative that autograd does not have at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().sum(1, keepdim=True).sqrt() * torch.ones(1, 3, dtype=x.dtype)


def test_a_gradient_that_is_not_a_number_counts_as_zero_for_its_record_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Root(), nn.Linear(3, 3)).double()
    x = torch.randn(9, 4, dtype=torch.float64)
    x[5] = 0
    sums = RecordSums(model, nn.CrossEntropyLoss(), None)
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    sums.add(x, labels(9), totals)
    others = torch.tensor([k for k in range(9) if k != 5])
    expected = torch.autograd.grad(
        nn.CrossEntropyLoss(reduction="sum")(model(x[others]), labels(9)[others]), model.get_parameter("0.weight")
    )[0]
    assert torch.allclose(totals["0.weight"], expected)
    assert all(bool(t.isfinite().all()) for t in totals.values())


@pytest.mark.parametrize("clip", [privacy.Fixed(0.05), privacy.Quantile(0.05, 20.0)])
def test_clipped_sums_are_those_of_clipped_records(clip: privacy.Clip):
    model = dense()
    x = drawn_records((6,), 2.0, 40)
    sums = RecordSums(model, nn.CrossEntropyLoss(), clip)
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    count = sums.add(x, labels(40), totals)
    outputs = model(x)
    ends = outputs.softmax(1) - nn.functional.one_hot(labels(40), 3)
    norms = ends.norm(dim=1, keepdim=True)
    clipped = ends * (0.05 / norms).clamp(max=1.0)
    expected = torch.autograd.grad(outputs, list(model.parameters()), clipped.detach())
    assert all(torch.allclose(a, b) for a, b in zip(totals.values(), expected, strict=True))
    assert count == (float((norms <= 0.05).sum()) - 20 if isinstance(clip, privacy.Quantile) else 0.0)


def test_a_quantile_moves_its_limit_and_is_paid_from_the_same_noise(tmp_path: Path):
    rule = privacy.Quantile(0.05, 20.0)
    with training_of(dense(), tmp_path / "ledger", plan_of(sigma=2.0), clip=rule) as training:
        assert training._noise_multiplier() == pytest.approx((2.0**-2 - 20.0**-2) ** -0.5)
        training.step()
        assert isinstance(training.clip, privacy.Quantile)
        # Nearly all gradients are longer than 0.05, so the limit rises towards their quantile.
        assert training.clip.value > 0.05


def test_functions_of_the_model_are_those_of_its_condensed_copy(tmp_path: Path):
    torch.manual_seed(0)
    model = LAYERS["bjorck"]().double()
    with training_of(model, tmp_path / "ledger", plan_of(sigma=1.0)) as training:
        for _ in range(3):
            training.step()
        training._free.write()
        x = drawn_records((6,), 2.0, 40)
        tensors: dict[str, Tensor] = dict(training._plain.named_parameters())
        # Weights of training and of evaluation agree to the digits of the iteration.
        assert torch.allclose(functional_call(training._plain, tensors, (x,)), model(x), atol=1e-9)


def orthonormal(bias: bool) -> nn.Sequential:
    """Two layers whose weights start with orthonormal rows."""
    torch.manual_seed(0)
    first, head = nn.Linear(6, 4, bias=bias), nn.Linear(4, 3, bias=bias)
    for layer in (first, head):
        nn.init.orthogonal_(layer.weight)
    return nn.Sequential(first, lnn.MaxMin(), head)


@pytest.mark.parametrize(("lr", "off"), [(3e-3, 1e-4), (0.2, 0.2)])
def test_weights_on_a_manifold_by_retraction(lr: float, off: float, tmp_path: Path):
    model = orthonormal(bias=False)
    weights = [model.get_parameter("0.weight"), model.get_parameter("2.weight")]
    plan, loss, inputs = plan_of(steps=12, sigma=1.0), nn.CrossEntropyLoss(), privacy.Inputs((6,), 2.0)
    records = drawn_records((6,), 3.0, 40, torch.float32), labels(40)
    optimizer = optim.StiefelMuon(model.parameters(), lr=lr)
    started = copies(model)
    with privacy.Training(model, loss, optimizer, records, plan, inputs, ledger=tmp_path / "ledger") as training:
        for _ in range(plan.steps):
            training.step()
            # Closed forms, whatever a step has left of orthonormal rows: |x| |W_0| reaches the head, and its widest
            # pair of rows comes back.
            large = float(torch.linalg.svdvals(weights[0].detach().double())[0])
            widest = float(torch.pdist(weights[1].detach().double()).max())
            training._free.write()
            limits = training._limits().values_by_name()
            room = 1 + 2.0**-7
            # A float32 pass is allowed 2^-16 of what is added up, and the norm 2^-20.
            assert limits["0.weight"] == pytest.approx(2 * widest * room, rel=1e-4)
            assert limits["2.weight"] == pytest.approx(2 * large * math.sqrt(2) * room, rel=1e-3)
            assert limits["2.weight"] >= 2 * large * math.sqrt(2) * room
            norms = gradient_norms(training._plain, loss, inputs(records[0]), records[1])
            assert max(largest_ratios(training._limits(), norms).values()) <= 1
            for w in weights:
                defect = torch.linalg.matrix_norm(w.detach() @ w.detach().T - torch.eye(len(w)))
                assert float(defect) < off
    assert all(not torch.equal(a, b) for a, b in zip(weights, started, strict=True))


def test_two_optimizers_share_the_parameters(tmp_path: Path):
    model = orthonormal(bias=True)
    tied, free = optim.split_orthonormal(model)
    both = [optim.StiefelMuon(tied, lr=0.01), torch.optim.SGD(free, lr=0.5)]
    x = drawn_records((6,), 3.0, 40, torch.float32)
    plan, inputs = plan_of(steps=2, sigma=1.0), privacy.Inputs((6,), 2.0)
    before = copies(model)

    def training(name: str, given: Sequence[torch.optim.Optimizer]) -> privacy.Training:
        return privacy.Training(
            model, nn.CrossEntropyLoss(), given, (x, labels(40)), plan, inputs, ledger=tmp_path / name
        )

    with training("ledger", both) as made:
        made.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(ArgumentError, match="bias: trained, but not by the optimizer"):
        training("other", both[:1])
    with pytest.raises(ArgumentError, match="weight: moved by two optimizers"):
        training("other", [*both, torch.optim.SGD(tied, lr=0.1)])
    assert not (tmp_path / "other").exists()


def test_what_the_caller_does_with_the_records_later_does_not_count(tmp_path: Path):
    x = drawn_records((6,), 3.0, 40)
    model, inputs = dense(), privacy.Inputs((6,), 2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    kept = inputs(x)
    with privacy.Training(
        model, nn.CrossEntropyLoss(), optimizer, (x, labels(40)), plan_of(), inputs, ledger=tmp_path / "ledger", chunk=7
    ) as training:
        x.fill_(1e6)
        found, _ = training._records.rows(torch.arange(40), x.device)
        assert torch.equal(found, kept)


@pytest.mark.slow
def test_steps_measure_norms_as_sensitivity_does(tmp_path: Path):
    model = dense()
    with training_of(model, tmp_path / "ledger", plan_of()) as training:
        found = training._limits().values_by_name()
    exact = privacy.sensitivity(model, nn.CrossEntropyLoss(), privacy.Inputs((6,), 2.0)).values_by_name()
    assert all(exact[name] * (1 - 1e-5) <= found[name] <= exact[name] * (1 + 1e-5) for name in exact)
