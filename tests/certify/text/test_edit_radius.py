"""Edit radii against every text within them."""

import itertools
from collections.abc import Callable

import pytest
import torch

from lipkit.certify.text import UNLIMITED, EditClassifier, EditConstants, Pool, edit_radius
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


def constants(k: float, pool: Pool = Pool.SUM) -> EditConstants:
    one = torch.tensor(k, dtype=torch.float64)
    heads = torch.ones(2, 2, dtype=torch.float64) - torch.eye(2, dtype=torch.float64)
    return EditConstants(one, one, torch.zeros((), dtype=torch.float64), heads, pool)


def test_the_largest_integer_strictly_below_the_margin():
    gaps = torch.tensor([-1.0, 0.0, 0.5, 1.0, 1.0001, 2.9, 3.1], dtype=torch.float64)
    logits = torch.stack([gaps, torch.zeros_like(gaps)], 1)
    # One edit costs 1: a margin of exactly 1 may be used up by one edit, which is a tie.
    expected = [-1, -1, 0, 0, 1, 2, 3]
    assert edit_radius(logits, torch.zeros(7).long(), constants(1.0)).tolist() == expected
    assert edit_radius(logits, torch.zeros(7).long(), constants(1.0), error=0.1).tolist() == [-1, -1, 0, 0, 0, 2, 2]


def test_a_constant_of_zero_gives_no_limit():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert edit_radius(logits, torch.tensor([0, 0]), constants(0.0)).tolist() == [UNLIMITED, -1]


def test_means_pay_for_the_positions_that_are_left():
    # N = 3: edits cost K/3, K/2, K/1, K, K, ...: with K = 6 that is 2, 5, 11, 17 in all.
    gaps = torch.tensor([1.9, 2.1, 4.9, 5.1, 11.1, 16.9, 17.1, 23.1], dtype=torch.float64)
    logits = torch.stack([gaps, torch.zeros_like(gaps)], 1)
    three = torch.full((8,), 3)
    found = edit_radius(logits, torch.zeros(8).long(), constants(6.0, Pool.MEAN), positions=three)
    assert found.tolist() == [0, 1, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("pool", list(Pool))
def test_no_text_within_the_radius_changes_its_class(pool: Pool, single_edits: Callable):
    torch.manual_seed(1)
    model = EditClassifier(3, 2, (2,), kernel=2, classes=2, pool=pool).double()
    with torch.no_grad():
        # A head that makes classes clear, so that radii are not all zero.
        model.head.weight.copy_(torch.tensor([[1.0, 0.2], [-1.0, 0.2]]))
        model.head.bias.copy_(torch.tensor([2.5, -2.5]))
        words = [w for n in range(4) for w in itertools.product((1, 2), repeat=n)]
        classes = {w: int(answer(model, w).argmax()) for w in words}
        seen = 0
        for word in words:
            length = torch.tensor([len(word)])
            radius = edit_radius(
                answer(model, word)[None],
                torch.tensor([classes[word]]),
                model.constants(),
                positions=model.positions(length) if pool is Pool.MEAN else None,
            )
            ball = {word}
            for _ in range(min(int(radius), 3)):
                ball |= {edit for inner in ball for edit in single_edits(inner, 2)}
            seen = max(seen, int(radius))
            assert all(int(answer(model, other).argmax()) == classes[word] for other in ball)
        assert seen >= 1


def answer(model: EditClassifier, word: tuple[int, ...]) -> torch.Tensor:
    return model(torch.tensor([list(word) or [0]]))[0]


def test_wrong_arguments_are_named():
    two = torch.zeros(1, 2)
    with pytest.raises(ShapeError, match="2 classes"):
        edit_radius(torch.zeros(1, 3), torch.zeros(1).long(), constants(1.0))
    with pytest.raises(NonFiniteError, match="NaN"):
        edit_radius(two * torch.nan, torch.zeros(1).long(), constants(1.0))
    with pytest.raises(ArgumentError, match="needed for means"):
        edit_radius(two, torch.zeros(1).long(), constants(1.0), positions=torch.ones(1).long())
    with pytest.raises(ArgumentError, match="needed for means"):
        edit_radius(two, torch.zeros(1).long(), constants(1.0, Pool.MEAN))
    with pytest.raises(ArgumentError, match=r"0\.\.1"):
        edit_radius(two, torch.tensor([2]), constants(1.0))
