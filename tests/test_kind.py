"""The algebra of kinds against tables written by hand from what each statement can prove.

Rows and columns are E(xact), U(pper), L(ower), ~ (estimate); X means that the operation must refuse.
"""

import pytest

from lipkit.bound import Bound, Kind
from lipkit.errors import KindError

KINDS = {"E": Kind.EXACT, "U": Kind.UPPER, "L": Kind.LOWER, "~": Kind.ESTIMATE}

# ||f g|| <= ||f|| ||g|| is an inequality even between exact numbers, and proves nothing from below.
COMPOSE = """
      E U L ~
    E U U ~ ~
    U U U ~ ~
    L ~ ~ ~ ~
    ~ ~ ~ ~ ~
"""

# ||f + g|| <= ||f|| + ||g||: the same.
SUM = COMPOSE

# The norm of diag(f, g) is max(||f||, ||g||): an equality, so a side that both parts know is known.
MAX = """
      E U L ~
    E E U L ~
    U U U ~ ~
    L L ~ L ~
    ~ ~ ~ ~ ~
"""

# Two statements about one number, the row's being the smaller: whichever is smaller keeps its own kind.
BEST = """
      E U L ~
    E E E X X
    U U U X X
    L X X X X
    ~ X X X X
"""


def entries(table: str) -> list[tuple[str, str, str]]:
    header, *rows = [line.split() for line in table.strip().splitlines()]
    return [(row[0], column, cell) for row in rows for column, cell in zip(header, row[1:], strict=True)]


def bound(value: float, letter: str) -> Bound:
    return Bound.from_value(value, KINDS[letter], "given")


def test_the_tables_are_complete_and_those_of_symmetric_operations_symmetric():
    for table in (COMPOSE, SUM, MAX, BEST):
        assert {(a, b) for a, b, _ in entries(table)} == {(a, b) for a in KINDS for b in KINDS}
    for table in (COMPOSE, SUM, MAX):
        assert {(a, b, c) for a, b, c in entries(table)} == {(b, a, c) for a, b, c in entries(table)}


@pytest.mark.parametrize(("a", "b", "result"), entries(COMPOSE))
def test_kind_of_a_composition(a: str, b: str, result: str):
    assert bound(2.0, a).compose(bound(3.0, b)).kind is KINDS[result]


@pytest.mark.parametrize(("a", "b", "result"), entries(SUM))
def test_kind_of_a_sum(a: str, b: str, result: str):
    assert bound(2.0, a).sum(bound(3.0, b)).kind is KINDS[result]


@pytest.mark.parametrize(("a", "b", "result"), entries(MAX))
@pytest.mark.parametrize("values", [(2.0, 3.0), (3.0, 2.0)])
def test_kind_of_a_maximum_whichever_part_is_larger(a: str, b: str, result: str, values: tuple[float, float]):
    assert bound(values[0], a).max(bound(values[1], b)).kind is KINDS[result]


@pytest.mark.parametrize(("a", "b", "result"), entries(BEST))
def test_kind_of_the_best_of_two(a: str, b: str, result: str):
    smaller, larger = bound(2.0, a), bound(3.0, b)
    for first, second in ((smaller, larger), (larger, smaller)):
        if result == "X":
            with pytest.raises(KindError, match="is no upper bound"):
                first.best(second)
        else:
            assert first.best(second).kind is KINDS[result]


@pytest.mark.parametrize("letter", KINDS)
@pytest.mark.parametrize("factor", [-2.0, 0.5, 1.0])
def test_scaling_keeps_the_kind(letter: str, factor: float):
    assert bound(2.0, letter).scale(factor).kind is KINDS[letter]


def test_only_exact_and_upper_numbers_certify():
    assert {letter for letter, kind in KINDS.items() if kind.certifies} == {"E", "U"}


def test_rounding_goes_up_where_a_number_certifies_and_down_where_it_is_a_lower_bound():
    assert {letter: kind.side for letter, kind in KINDS.items()} == {"E": 1.0, "U": 1.0, "L": -1.0, "~": 0.0}


def test_on_fewer_inputs_an_upper_bound_survives_and_nothing_else():
    assert {letter: kind.restricted for letter, kind in KINDS.items()} == {
        "E": Kind.UPPER,
        "U": Kind.UPPER,
        "L": Kind.ESTIMATE,
        "~": Kind.ESTIMATE,
    }
