"""Bound: values, metrics, failure probabilities, shapes, gradients and printing."""

import dataclasses
import math

import pytest
import torch
from jaxtyping import TypeCheckError

from lipkit.bound import L2, Bound, Kind, Metric, Rule, Scope, Witness
from lipkit.errors import ArgumentError, KindError, LipkitError, MetricError, NonFiniteError, ShapeError
from lipkit.regions import Ball, Everywhere

BALL = Ball(torch.zeros(3), 0.5)


def made(value: float, kind: Kind = Kind.UPPER, failure: float = 0.0, on: Ball | Everywhere | None = None) -> Bound:
    bound = Bound.from_value(value, kind, "given")
    lower = bound.lower if on is None else None
    return dataclasses.replace(bound, failure=failure, region=on or Everywhere(), lower=lower)


def near(value: float) -> object:
    # A logarithm of size l is moved by l 2^-51 an operation; |l| < 200 and six operations stay below 1e-12.
    return pytest.approx(value, rel=1e-12, abs=0.0)


# ---- values and parts


def test_values_of_the_algebra():
    two, three = made(2.0), made(3.0)
    assert two.compose(three).value.item() == near(6.0)
    assert two.sum(three).value.item() == near(5.0)
    assert two.max(three).value.item() == near(3.0)
    assert two.best(three).value.item() == near(2.0)
    assert two.scale(-4.0).value.item() == near(8.0)


def test_every_result_knows_its_rule_and_its_parts():
    a, b = made(2.0), made(3.0)
    results = [(a.compose(b), Rule.COMPOSE), (a.sum(b), Rule.SUM), (a.max(b), Rule.MAX), (a.best(b), Rule.BEST)]
    for result, rule in results:
        assert result.method is rule
        assert result.parts == (a, b)
    assert a.scale(2.0).method is Rule.SCALE
    assert a.scale(2.0).parts == (a,)


def test_lower_sides_are_kept_where_they_remain_true():
    a, b = made(2.0, Kind.EXACT), made(3.0, Kind.EXACT)
    assert a.compose(b).lower is None
    assert a.sum(b).lower is None
    for result, value in [(a.max(b), 3.0), (a.best(b), 3.0), (a.scale(-2.0), 4.0), (made(9.0).best(a), 2.0)]:
        assert result.lower is not None
        assert result.lower.kind is Kind.LOWER
        assert result.lower.value.item() == near(value)
    assert made(9.0).max(a).lower is None


def test_the_best_keeps_the_witness_of_the_winner():
    witness = Witness(torch.ones(1), torch.ones(1))
    winner = dataclasses.replace(made(2.0), witness=witness)
    assert winner.best(made(3.0)).witness is witness
    assert winner.best(made(1.0)).witness is None


# ---- metrics


def test_composition_chains_the_norms():
    outer = Bound.from_value(2.0, Kind.UPPER, "given", Metric(math.inf, 2.0))
    inner = Bound.from_value(3.0, Kind.UPPER, "given", Metric(1.0, math.inf))
    assert outer.compose(inner).metric == Metric(1.0, 2.0)
    with pytest.raises(MetricError, match="the norms in the middle differ"):
        inner.compose(outer.compose(inner))


def test_bounds_in_different_norms_are_not_mixed():
    other = Bound.from_value(2.0, Kind.UPPER, "given", Metric(1.0, 2.0))
    for operation in (made(1.0).sum, made(1.0).max, made(1.0).best):
        with pytest.raises(MetricError, match=r"l2->l2 and one in l1->l2"):
            operation(other)


def test_the_larger_block_is_a_bound_only_towards_larger_exponents():
    # diag(1, 1) from linf to l1 has norm 2: the larger block, 1, is no bound.
    worst = Bound.from_value(1.0, Kind.EXACT, "given", Metric(math.inf, 1.0))
    with pytest.raises(MetricError, match="use `sum`"):
        worst.max(worst)
    fine = Bound.from_value(1.0, Kind.EXACT, "given", Metric(1.0, math.inf))
    assert fine.max(fine).kind is Kind.EXACT


# ---- failure probabilities


def test_failure_probabilities_add():
    a, b = made(2.0, failure=0.25), made(3.0, failure=0.5)
    assert [x.failure for x in (a.compose(b), a.sum(b), a.max(b), a.best(b))] == [0.75] * 4
    assert a.scale(2.0).failure == 0.25
    assert a.compose(b).confidence == 0.25
    with pytest.raises(ArgumentError, match="add up to 1"):
        b.sum(b)


def test_a_deterministic_winner_does_not_fail_and_a_random_one_was_chosen_by_looking():
    certain, random = made(2.0), made(3.0, failure=0.25)
    assert certain.best(random).failure == 0.0
    assert certain.scale(5.0).best(random).failure == 0.25


def test_the_larger_of_two_random_lower_sides_fails_as_often_as_both():
    def sided(value: float, failure: float) -> Bound:
        return dataclasses.replace(made(9.0), lower=made(value, Kind.LOWER, failure))

    lower = sided(2.0, 0.25).best(sided(3.0, 0.125)).lower
    assert lower is not None
    assert (lower.failure, lower.kind) == (0.375, Kind.LOWER)


# ---- one value, or one for each class, pair or sample


@pytest.mark.parametrize(
    ("of", "shape"), [(Scope.WHOLE, ()), (Scope.CLASS, (4,)), (Scope.PAIR, (4, 4)), (Scope.SAMPLE, (5,))]
)
def test_the_shape_follows_what_a_value_is_for(of: Scope, shape: tuple[int, ...]):
    two = Bound.from_value(torch.full(shape, 2.0), Kind.UPPER, "given", of=of)
    three = Bound.from_value(torch.full(shape, 3.0), Kind.UPPER, "given", of=of)
    for result, value in [
        (two.compose(three), 6.0),
        (two.sum(three), 5.0),
        (two.max(three), 3.0),
        (two.best(three), 2.0),
        (two.scale(4.0), 8.0),
    ]:
        assert (result.of, result.value.shape) == (of, torch.Size(shape))
        assert result.value.flatten().tolist() == near([value] * math.prod(shape))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="set `of`"):
        Bound.from_value(torch.ones(*shape, 2), Kind.UPPER, "given", of=of)


def test_values_for_different_things_are_not_mixed():
    classes = Bound.from_value(torch.ones(4), Kind.UPPER, "given", of=Scope.CLASS)
    for other in (
        made(1.0),
        Bound.from_value(torch.ones(4), Kind.UPPER, "given", of=Scope.SAMPLE),
        Bound.from_value(torch.ones(1), Kind.UPPER, "given", of=Scope.CLASS),
    ):
        with pytest.raises(ShapeError, match="Cannot combine"):
            classes.compose(other)


def test_the_best_is_taken_entry_by_entry_with_one_kind_for_all():
    a = Bound.from_value(torch.tensor([1.0, 4.0]), Kind.EXACT, "given", of=Scope.CLASS)
    b = Bound.from_value(torch.tensor([3.0, 2.0]), Kind.UPPER, "given", of=Scope.CLASS)
    best = a.best(b)
    assert best.kind is Kind.UPPER
    assert best.value.tolist() == [near(1.0), near(2.0)]


# ---- gradients


def test_gradients_reach_the_numbers_through_every_rule():
    a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    one, other = (Bound.from_value(x, Kind.UPPER, "given") for x in (a, b))
    # d(ab) = (b, a), d(a + b) = (1, 1), d max = (0, 1), d min = (1, 0), d(5 a) = (5, 0).
    for result, expected in [
        (one.compose(other), (3.0, 2.0)),
        (one.sum(other), (1.0, 1.0)),
        (one.max(other), (0.0, 1.0)),
        (one.best(other), (1.0, 0.0)),
        (one.scale(-5.0).sum(other.scale(0.0)), (5.0, 0.0)),
        (one.scale(b), (3.0, 2.0)),
    ]:
        grads = torch.autograd.grad(result.value, (a, b), allow_unused=True, materialize_grads=True, retain_graph=True)
        assert [g.item() for g in grads] == [pytest.approx(e, rel=1e-12, abs=0.0) for e in expected]


def test_a_dead_factor_gives_finite_gradients():
    a = torch.tensor(0.0, requires_grad=True)
    b = torch.tensor(3.0, requires_grad=True)
    one, other = (Bound.from_value(x, Kind.UPPER, "given") for x in (a, b))
    one.compose(other).sum(one).value.backward()
    assert a.grad is not None
    assert b.grad is not None
    assert math.isfinite(a.grad.item())
    assert b.grad.item() == 0.0


# ---- refusals


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (torch.tensor(math.nan, dtype=torch.float64), NonFiniteError),
        (torch.tensor(math.inf, dtype=torch.float64), NonFiniteError),
        (torch.tensor(0.0), ArgumentError),
        (torch.zeros(2, dtype=torch.float64), ShapeError),
    ],
)
def test_a_logarithm_is_one_finite_double_or_minus_infinity(log: torch.Tensor, error: type[LipkitError]):
    with pytest.raises(error):
        Bound(log, Kind.UPPER, "given")
    assert Bound(torch.tensor(-math.inf, dtype=torch.float64), Kind.UPPER, "given").value.item() == 0.0


def test_numbers_that_are_no_constants_are_refused():
    for value in (-1.0, math.nan):
        with pytest.raises(ArgumentError, match="a number >= 0"):
            made(value)
    with pytest.raises(NonFiniteError, match="given gave inf"):
        made(math.inf)
    for factor in (math.inf, math.nan):
        with pytest.raises(ArgumentError, match="finite number"):
            made(1.0).scale(factor)
    for failure in (-0.1, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="failure probability"):
            made(1.0, failure=failure)


def test_what_is_no_lower_bound_of_the_same_quantity_is_refused_as_one():
    for kind in (Kind.EXACT, Kind.UPPER, Kind.ESTIMATE):
        with pytest.raises(KindError, match="must be a lower bound"):
            dataclasses.replace(made(2.0), lower=made(1.0, kind))
    for other in (
        Bound.from_value(1.0, Kind.LOWER, "given", Metric(1.0, 1.0)),
        Bound.from_value(torch.ones(2), Kind.LOWER, "given", of=Scope.CLASS),
        made(1.0, Kind.LOWER, on=BALL),
    ):
        with pytest.raises(ArgumentError, match="same quantity"):
            dataclasses.replace(made(2.0), lower=other)


def test_annotations_are_checked_while_testing():
    with pytest.raises(TypeCheckError):
        Bound.from_value(torch.tensor(1 + 1j), Kind.UPPER, "given")
    with pytest.raises(TypeCheckError):
        made(1.0).scale(torch.ones(2))


def test_a_bound_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        made(1.0).kind = Kind.EXACT  # pyright: ignore[reportAttributeAccessIssue]


# ---- printing


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (
            Bound.from_value(1.2345, Kind.UPPER, "Gram iteration, 8 steps"),
            "1.2345 (upper bound, l2->l2, Gram iteration, 8 steps)",
        ),
        (Bound.from_value(2.0, Kind.EXACT, "SVD", Metric(1.0, math.inf)), "2 (exact, l1->linf, SVD)"),
        (made(2.0, Kind.LOWER, failure=1e-9), "2 (lower bound, l2->l2, given, failure <= 1e-09)"),
        (made(2.0, on=BALL), "2 (upper bound, l2->l2, on the l2 ball of radius 0.5, given)"),
        (made(2.0).compose(made(3.0)), "6 (upper bound, l2->l2, product of the parts)"),
        (made(1e200).compose(made(1e200)), "10^400.0000 (upper bound, l2->l2, product of the parts)"),
        (made(0.0, Kind.ESTIMATE), "0 (estimate, l2->l2, given)"),
        (
            Bound.from_value(torch.tensor([1.0, 2.5]), Kind.UPPER, "given", of=Scope.CLASS),
            "2 values up to 2.5 (upper bound, l2->l2, for each class, given)",
        ),
    ],
)
def test_printing(bound: Bound, text: str):
    assert str(bound) == text
    assert repr(bound) == f"<Bound {text}>"


def test_a_bound_with_a_graph_prints_without_a_warning():
    live = Bound.from_value(torch.tensor(2.0, requires_grad=True), Kind.UPPER, "given")
    assert str(live) == "2 (upper bound, l2->l2, given)"
    assert live.metric == L2
