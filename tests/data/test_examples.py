"""Examples: what they refuse, and how they are divided."""

import math
import sys

import pytest
import torch

from lipkit.data import Examples, digits
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

TEN = Examples(torch.arange(20.0).reshape(10, 2), torch.arange(10) % 3, ("a", "b", "c"))


def test_items_and_choices():
    assert len(TEN) == 10
    inputs, label = TEN[4]
    assert (inputs.tolist(), int(label)) == ([8, 9], 1)
    chosen = TEN.at([7, 2])
    assert chosen.inputs.tolist() == [[14, 15], [4, 5]]
    assert chosen.labels.tolist() == [1, 2]
    assert chosen.classes == TEN.classes


def test_a_split_is_a_partition_that_the_seed_decides():
    rest, held = TEN.split(3, seed=0)
    assert (len(rest), len(held)) == (7, 3)
    assert sorted(torch.cat([rest.inputs, held.inputs])[:, 0].tolist()) == TEN.inputs[:, 0].tolist()
    for part in (rest, held):
        assert torch.equal(part.labels, (part.inputs[:, 0] / 2).long() % 3)
    assert torch.equal(TEN.split(3, seed=0)[1].inputs, held.inputs)
    assert any(not torch.equal(TEN.split(3, seed=seed)[1].inputs, held.inputs) for seed in range(1, 4))


def test_nonsense_is_refused():
    with pytest.raises(ShapeError, match="got 1 for 2"):
        Examples(torch.zeros(2, 1), torch.zeros(1, dtype=torch.long), ("a",))
    for label in (-1, 1):
        with pytest.raises(ArgumentError, match=rf"lie in 0..0, got {label}..{label}"):
            Examples(torch.zeros(1, 1), torch.tensor([label]), ("a",))
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        Examples(torch.tensor([[math.inf]]), torch.tensor([0]), ("a",))
    for held in (0, 10):
        with pytest.raises(ArgumentError, match=f"between 1 and 9 can be held out, got {held}"):
            TEN.split(held, 0)


def test_digits_are_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs, found = datasets.load_digits(), digits()
    assert found.inputs.shape == (1797, 1, 8, 8)
    # Sixteen grey levels: exact in float32.
    assert torch.equal(found.inputs[:, 0].double() * 16, torch.from_numpy(theirs.images))
    assert torch.equal(found.labels, torch.from_numpy(theirs.target))
    assert (float(found.inputs.min()), float(found.inputs.max())) == (0, 1)


def test_without_scikit_learn_the_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ArgumentError, match=r"need scikit-learn; pip install 'lipkit\[data\]'"):
        digits()
