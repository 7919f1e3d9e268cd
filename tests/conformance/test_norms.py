"""One suite for every norm method: what `Norm` promises, against the dense matrix of operators of every kind."""

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit import norms
from lipkit.bound import L2, Bound, Kind, Metric, Witness
from lipkit.errors import ArgumentError, NonFiniteError, UnsupportedError
from lipkit.linops import Conv, ConvTranspose, Dense, DenseStack, Diagonal, LinearOperator, magnitude, materialize
from lipkit.norms import Cholesky, Lanczos, Monomial, Norm, Power, PublishedGrid, ReshapedKernel
from support.operators.conv_geometries import built
from support.operators.geometries import KINDS, tensors
from support.operators.norm_examples import EXAMPLES, METHODS, applies, covered_by, drawn_for, example, inexact

DRAWS = 16
LINEAR = (Dense, DenseStack, Conv, ConvTranspose, Diagonal)

every_method = pytest.mark.parametrize("method", METHODS, ids=repr)

CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "as drawn": torch.clone,
    "as drawn too": torch.clone,
    "zero": torch.zeros_like,
    "all alike": torch.ones_like,
    "huge": lambda t: t * 2.0**100,
    "tiny": lambda t: t * 2.0**-100,
}


def largest_ratio(matrix: Tensor, metric: Metric) -> Tensor:
    """sup ||A x|| / ||x||, by definition where the unit ball has few extreme points, from below elsewhere."""
    if metric == L2:
        return torch.linalg.svdvals(matrix).max()
    if metric.p_out == math.inf and metric.p_in > 1:
        # A maximiser for each row, x_j = conj(sign(a_j)) |a_j|^(q - 1).
        q = metric.p_in / (metric.p_in - 1) if metric.p_in < math.inf else 1.0
        points = (matrix.sgn().conj() * matrix.abs() ** (q - 1)).mT
    else:
        # The extreme points of the l1 ball; otherwise merely some points.
        points = torch.eye(matrix.shape[1], dtype=matrix.dtype)
    points = points / torch.linalg.vector_norm(points, metric.p_in, dim=0).clamp(min=1e-300)
    return torch.linalg.vector_norm(matrix @ points, metric.p_out, dim=0).max()


def holds(bound: Bound, op: LinearOperator) -> None:
    """Everything a bound says about `op` is true of its float64 matrix."""
    matrix = materialize(op.to(torch.float64)).detach()
    truth, size = largest_ratio(matrix, bound.metric), magnitude(op)
    # The reference itself may be off by n * 2^-53; nothing else is forgiven.
    rounding = max(matrix.shape) * 2.0**-53
    assert bound.log_value.dtype == torch.float64
    assert bound.log_value.ndim == 0
    if bound.kind.certifies:
        assert bound.value >= truth * (1 - rounding)
    if bound.kind is Kind.EXACT:
        # n^2 2^-53 at n = 150 is 3e-12. Where the parts of an operator cancel, their rounding is all that is left.
        assert bound.value <= truth * (1 + 1e-8) + 1e-11 * (size.absolute + size.relative * truth)
    lower = bound if bound.kind is Kind.LOWER else bound.lower
    if lower is not None:
        assert lower.kind is Kind.LOWER
        assert lower.value <= truth * (1 + rounding)
    if bound.witness is not None and lower is not None:
        witnessed(bound.witness, lower, op.to(torch.float64))


def witnessed(witness: Witness, lower: Bound, op: LinearOperator) -> None:
    left, right = witness
    assert (left.shape, right.shape) == (op.out_shape, op.in_shape)
    pair = (left.conj() * op.apply(right)).sum().real if left.is_complex() else (left * op.apply(right)).sum()
    size = magnitude(op)
    # The lower side is the same number less its worst-case rounding, of n^2 2^-53 of the operator without signs.
    assert abs(pair - lower.value) <= 1e-10 * (size.absolute + (1 + size.relative) * pair.abs())
    if lower.value > 0:
        for vector in witness:
            assert abs(torch.linalg.vector_norm(vector) - 1) <= 1e-12


def test_every_method_is_in_the_suite() -> None:
    found = {
        v for v in vars(norms).values() if inspect.isclass(v) and issubclass(v, Norm) and not inspect.isabstract(v)
    }
    assert found == set(EXAMPLES)
    assert all(some and all(type(method) is kind for method in some) for kind, some in EXAMPLES.items())
    assert len(METHODS) * DRAWS >= 500


@every_method
def test_is_a_frozen_value_that_prints(method: Norm) -> None:
    assert dataclasses.is_dataclass(method)
    assert dataclasses.replace(method) == method
    assert hash(dataclasses.replace(method)) == hash(method)
    assert str(method) != repr(method)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.steps = 3  # pyright: ignore[reportAttributeAccessIssue]


@every_method
def test_bounds_are_true_of_operators_of_every_kind(method: Norm) -> None:
    answered, refused = 0, 0

    @settings(max_examples=DRAWS)
    @given(drawn_for(method), st.sampled_from(sorted(CHANGES)), st.sampled_from(("float64", "float32", "bfloat16")))
    def check(drawn: LinearOperator, change: str, dtype: str) -> None:
        nonlocal answered, refused
        narrow = torch.float32 if drawn.dtype.is_complex and dtype == "bfloat16" else getattr(torch, dtype)
        op = drawn.to(narrow).map(lambda t: CHANGES[change](t) if inexact(t) else t)
        if not applies(method, op):
            refused += 1
            with pytest.raises((UnsupportedError, ArgumentError)):
                method(op)
            return
        answered += 1
        bound = method(op)
        holds(bound, op)
        assert bound.kind.value in str(bound)
        assert not bound.log_value.requires_grad
        if isinstance(method, PublishedGrid | ReshapedKernel):
            assert bound.kind is Kind.ESTIMATE

    check()
    assert answered + refused >= DRAWS
    assert answered >= DRAWS // 8


@every_method
def test_many_is_one_by_one(method: Norm) -> None:
    # Batches share Lanczos steps, so a guess may be better in company, within its tolerance.
    inner = getattr(method, "inner", method)
    slack = 4 * inner.rtol if isinstance(inner, Cholesky) else 1e-11

    @settings(max_examples=3)
    @given(covered_by(method), drawn_for(method))
    def check(op: LinearOperator, other: LinearOperator) -> None:
        ops = [op, op.map(lambda t: 3 * t if inexact(t) else t), op.map(torch.clone)]
        if applies(method, other):
            ops.insert(1, other)
        together = method.many(ops)
        assert len(together) == len(ops)
        for bound, one in zip(together, ops, strict=True):
            holds(bound, one)
            alone = method(one)
            assert (bound.kind, bound.metric) == (alone.kind, alone.metric)
            if not isinstance(method, Lanczos):  # Its starts are drawn afresh.
                torch.testing.assert_close(bound.log_value, alone.log_value, rtol=slack, atol=slack)

    check()
    assert method.many([]) == []


@every_method
def test_gradients_reach_every_tensor(method: Norm) -> None:
    """Finite everywhere; and, of methods that differentiate what they return, between the one-sided differences."""
    approximate = isinstance(getattr(method, "inner", method), Cholesky | Lanczos | Power)
    step = 1e-6

    @settings(max_examples=5)
    @given(built(covered_by(method).filter(lambda op: any(map(inexact, op.tensors())))), st.data())
    def check(drawn: LinearOperator, data: st.DataObject) -> None:
        op = drawn.map(lambda t: t.clone().requires_grad_() if inexact(t) else t)
        live = [t for t in op.tensors() if inexact(t)]
        bound = method(op)
        grads = torch.autograd.grad(bound.value, live)
        assert all(bool(torch.isfinite(g).all()) for g in grads)
        if approximate:
            return
        directions = [data.draw(tensors(tuple(t.shape), t.dtype)) for t in live]
        ends: list[Tensor] = []
        for sign in (-1, 1):
            supply = iter(directions)
            moved = drawn.map(lambda t, s=supply, sign=sign: t + sign * step * next(s) if inexact(t) else t)
            ends.append(method(moved).value)
        middle = bound.value.detach()
        left, right = sorted((float((middle - ends[0]) / step), float((ends[1] - middle) / step)))
        parts = [(g.conj() * d).real if g.is_complex() else g * d for g, d in zip(grads, directions, strict=True)]
        slope = float(sum(part.sum() for part in parts))
        # Values carry 1e-12 of rounding at most, so differences 1e-6; a second derivative opens the interval by itself.
        slack = 1e-5 * (float(middle) + float(magnitude(drawn).absolute) + sum(float(p.abs().sum()) for p in parts))
        assert left - slack <= slope <= right + slack

    check()


@every_method
def test_a_dead_group_gets_the_gradient_zero(method: Norm) -> None:
    weight = torch.tensor([[[0.0, 0.0]], [[1.5, -0.5]]], dtype=torch.float64, requires_grad=True)
    op: LinearOperator = Conv(weight, (4,), (1,), ((1, 1),), (1,), groups=2)
    if isinstance(method, Monomial):
        op = Diagonal(weight, (2, 1, 2))
    (gradient,) = torch.autograd.grad(method(op).value, weight)
    assert bool((gradient[0] == 0).all())
    assert bool(torch.isfinite(gradient).all())


@every_method
def test_a_zero_operator_has_norm_zero_and_gradient_zero(method: Norm) -> None:
    kinds = [KINDS[kind] for kind in LINEAR]

    @settings(max_examples=5)
    @given(built(st.one_of(*kinds).filter(lambda op: applies(method, op))))
    def check(drawn: LinearOperator) -> None:
        op = drawn.map(lambda t: torch.zeros_like(t).requires_grad_())
        bound = method(op)
        assert bound.value == 0
        assert bound.lower is None or bound.lower.value == 0
        (gradient,) = torch.autograd.grad(bound.value, op.tensors())
        assert bool((gradient == 0).all())

    check()


@every_method
def test_a_power_of_two_passes_through(method: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda _: 7)
    ops = [op for kind in LINEAR if applies(method, op := example(kind))]
    for op, exponent in itertools.product(ops, (-300, 40, 300)):
        shifted = method(op.map(lambda t, by=2.0**exponent: t * by)).log_value - exponent * math.log(2)
        # The logarithms are of numbers up to 1e90, so rounded by 2^-52 * 208 a few times over.
        assert abs(shifted - method(op).log_value) <= 1e-12


@every_method
def test_what_has_no_norm_is_refused(method: Norm) -> None:
    op = example(Diagonal if isinstance(method, Monomial) else Conv)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NonFiniteError, match=r"NaN|infinit"):
            method(op.map(lambda t, bad=bad: torch.full_like(t, bad)))
        mixed = op.map(lambda t, bad=bad: torch.cat([t[..., :1], torch.full_like(t[..., 1:], bad)], -1))
        with pytest.raises(NonFiniteError, match=r"NaN|infinit"):
            method(mixed)
    with pytest.raises(ArgumentError, match="empty"):
        method(Dense(torch.zeros(0, 3)))
    with pytest.raises(TypeError):  # Of the shape checks, where they are installed.
        method(torch.nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]


@every_method
def test_only_warm_starters_take_a_state(method: Norm) -> None:
    op = example(Diagonal if isinstance(method, Monomial) else Conv)
    state = torch.ones(4, dtype=torch.float64)
    if isinstance(method, Power | Lanczos):
        assert method(op, state=state).kind is Kind.LOWER
        with pytest.raises(ArgumentError, match="4 entries"):
            method(op, state=state[:3])
        for bad in (0.0, math.nan, math.inf):
            with pytest.raises(ArgumentError, match="finite and not zero"):
                method(op, state=bad * state)
    else:
        with pytest.raises(ArgumentError, match="no warm start"):
            method(op, state=state)
