"""Looser norms are true and cheaper, and composed operators are applied rather than written out."""

import pytest
import torch

from lipkit.bound import Kind
from lipkit.bounds import LipLT
from lipkit.linops import Compose, Conv, LinearFunction, LinearOperator, StatedRounding, depth, materialize
from lipkit.norms import SVD, Auto, Cholesky, Lanczos
from lipkit.trace import chain
from lipkit.trace.nodes import RELU


def conv(c_out: int, c_in: int, size: int, seed: int) -> Conv:
    weight = torch.randn(c_out, c_in, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Conv(weight / (9 * c_in) ** 0.5, (size, size), (1, 1), ((1, 1),) * 2, (1, 1))


def test_a_looser_lanczos_is_above_the_norm_and_within_its_tolerance_after_fewer_steps():
    op, applied = conv(4, 4, 8, 0), []

    def counted(x: torch.Tensor) -> torch.Tensor:
        applied.append(len(applied))
        return op.apply(x)

    seen = LinearFunction(counted, op.in_shape, op.out_shape)
    truth = float(torch.linalg.matrix_norm(materialize(op), 2))
    counts: list[int] = []
    for factor in (1.0, 25.0):
        applied.clear()
        method = Lanczos(steps=300, rtol=1e-2).loosened(factor)
        bound = method(seen)
        assert bound.kind is Kind.UPPER
        assert truth <= float(bound.value) <= truth * (1 + 1e-2 * factor)
        counts.append(len(applied))
    # The steps go like one over the root of the tolerance, fewer on so few unknowns.
    assert counts[1] < 0.75 * counts[0]


def test_a_tolerance_is_never_tightened_and_ends_at_a_quarter():
    assert Auto(rtol=1e-2).loosened(3.0) == Auto(rtol=3e-2)
    assert Auto(rtol=1e-2).loosened(1e9) == Auto(rtol=0.25)
    assert Lanczos(rtol=0.5).loosened(2.0) == Lanczos(rtol=0.5)
    assert SVD().loosened(5.0) == SVD()


def composed(size: int) -> LinearOperator:
    op = Compose(conv(4, 4, size, 1), conv(4, 4, size, 2))
    return StatedRounding(op, depth(op), 20.0)


def test_a_composed_operator_with_many_entries_a_side_is_applied():
    assert isinstance(Auto().select(composed(16)).method, Lanczos)
    # What may not fail is written out, and so is what has few entries, or one layer.
    assert isinstance(Auto(failure=0.0).select(composed(16)).method, Cholesky)
    assert isinstance(Auto().select(composed(8)).method, Cholesky)
    assert isinstance(Auto().select(StatedRounding(conv(4, 4, 16, 1), 40, 20.0)).method, Cholesky)


@pytest.mark.slow
def test_minor_terms_of_liplt_are_measured_loosely_and_change_little():
    rtol = 1e-2
    network = chain([conv(4, 3, 20, 0), *(conv(4, 4, 20, i) for i in range(1, 6))], RELU)
    bound, closer = (LipLT(Lanczos(steps=400, rtol=r))(network) for r in (rtol, rtol / 10))
    used = {part.method.rtol for part in bound.parts if isinstance(part.method, Lanczos)}
    assert min(used) == rtol
    assert max(used) > 2 * rtol
    # Six rows, each within the tolerance and at most five sixteenths of it.
    room = 6 * (1 + 5 / 16) * rtol
    assert -room / 10 <= float(bound.log_value) - float(closer.log_value) <= room
