"""An operator with a stated rounding error."""

import torch

from lipkit.linops import Dense, StatedRounding, depth, magnitude, materialize, stack, support
from lipkit.norms import SVD, Lanczos


def example(size: float) -> StatedRounding:
    return StatedRounding(Dense(torch.arange(12.0, dtype=torch.float64).reshape(3, 4)), 7, size)


def test_it_is_the_inner_operator_with_another_error():
    op, x = example(5.0), torch.randn(2, 4, dtype=torch.float64)
    assert torch.equal(op.apply(x), op.inner.apply(x))
    assert torch.equal(materialize(op), materialize(op.inner))
    assert bool(support(op).all())
    assert depth(op) == 7
    assert magnitude(op).absolute == 5.0


def test_the_statement_widens_every_norm():
    true = torch.linalg.matrix_norm(materialize(example(0.0)), 2)
    # An error of gamma_7 1e9 is about 8e-7, six orders above what SVD itself may add.
    wide = SVD()(example(1e9)).value - true
    assert 7e-7 < wide < 2e-6
    assert SVD()(example(0.0)).value - true < 1e-12
    assert Lanczos()(example(1e9)).value > Lanczos()(example(0.0)).value


def test_a_stack_keeps_the_statement():
    assert magnitude(stack([example(3.0), example(3.0)])).absolute == 3.0
