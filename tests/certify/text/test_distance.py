"""Edit distances against a search over edit scripts, the axioms, and each other."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.certify.text import erp, levenshtein, levenshtein_many
from lipkit.errors import ArgumentError, ShapeError

texts = st.text("abc", max_size=6)


def test_breadth_first_search_over_single_edits_agrees(single_edits: Callable):
    # All words of at most three letters over two: the ball of radius d is d applications of "every single edit".
    words = [w for n in range(4) for w in itertools.product((1, 2), repeat=n)]
    for start in words:
        seen, frontier = {start: 0}, {start}
        for d in range(1, 4):
            frontier = {edit for word in frontier for edit in single_edits(word, 2)} - seen.keys()
            seen |= dict.fromkeys(frontier, d)
        assert all(levenshtein(start, word) == seen[word] for word in words)


@given(texts, texts, texts)
@settings(max_examples=60, deadline=None)
def test_it_is_a_metric(a: str, b: str, c: str):
    assert (levenshtein(a, b) == 0) == (a == b)
    assert levenshtein(a, b) == levenshtein(b, a)
    assert levenshtein(a, c) <= levenshtein(a, b) + levenshtein(b, c)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_batch_gives_what_single_pairs_give(pairs: list[tuple[str, str]]):
    left, right = ([[ord(c) for c in p[side]] for p in pairs] for side in (0, 1))
    # Padding with a letter of the alphabet: what lies beyond a length must not matter.
    padded = [torch.tensor([w + [97] * (6 - len(w)) for w in words]) for words in (left, right)]
    lengths = [torch.tensor([len(w) for w in words]) for words in (left, right)]
    assert levenshtein_many(*padded, *lengths).tolist() == [levenshtein(a, b) for a, b in pairs]


@given(texts, texts)
@settings(max_examples=60, deadline=None)
def test_erp_of_one_hot_sequences_is_the_levenshtein_distance(a: str, b: str):
    one_hot = [torch.eye(3)[[ord(c) - 97 for c in word]].reshape(-1, 3) for word in (a, b)]
    assert erp(*one_hot, p=torch.inf) == levenshtein(a, b)


def test_erp_ignores_inserted_zeros_and_is_symmetric():
    torch.manual_seed(0)
    a, b, zero = torch.randn(4, 3), torch.randn(5, 3), torch.zeros(1, 3)
    # Sums of the same numbers in another order: equal up to a few roundings.
    assert erp(a, b).item() == pytest.approx(erp(b, a).item(), rel=1e-14)
    assert erp(torch.cat([a[:2], zero, a[2:]]), b).item() == pytest.approx(erp(a, b).item(), rel=1e-14)


def test_wrong_arguments_are_named():
    with pytest.raises(ShapeError, match="one size, got 3 and 2"):
        erp(torch.ones(1, 3), torch.ones(1, 2))
    with pytest.raises(ArgumentError, match=r"0\.\.2"):
        levenshtein_many(torch.ones(1, 2).long(), torch.ones(1, 2).long(), torch.tensor([3]), torch.tensor([1]))
