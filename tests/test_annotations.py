"""The checks of annotations find what they are there to find, in every kind of function."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from lipkit.linops import Dense
from support import annotations
from support.unchecked import unchecked

strict = annotations.jaxtyped(typechecker=annotations.checked)
A, B = torch.zeros(2, 3), torch.zeros(3, 4)


@strict
def product(a: Float[Tensor, "n m"], b: Float[Tensor, "m k"], wrong: bool = False) -> Float[Tensor, "n k"]:
    return a if wrong else a @ b


@strict
def ones(n: int) -> Float[Tensor, "{n}"]:
    return torch.ones(min(n, 3))


@strict
def named(n: int) -> "float":
    return "three" if n == 3 else float(n)  # pyright: ignore[reportReturnType]


@strict
def numbers(n: int) -> Iterator[int]:
    yield from range(n)


@strict
@dataclass
class Pair:
    first: Float[Tensor, " n"]
    second: Float[Tensor, " n"]


@strict
@dataclass
class Triple(Pair):
    third: int


def local(shift: int) -> Callable[[int], int]:
    @strict
    def add(n: int) -> int:
        return n + shift if n < 100 else str(n)  # pyright: ignore[reportReturnType]

    return add


def test_what_is_right_passes() -> None:
    assert product(A, B).shape == (2, 4)
    assert ones(3).shape == (3,)
    assert named(2) == 2
    assert list(numbers(3)) == [0, 1, 2]
    assert Triple(A[0], A[1], third=3).third == 3
    # Functions of one text share their checks and nothing else.
    assert [local(k)(1) for k in range(3)] == [1, 2, 3]


WRONG: dict[str, Callable[[], Any]] = {
    "a type": lambda: product(A, "b"),  # pyright: ignore[reportArgumentType]
    "a dtype": lambda: product(A, B.long()),
    "a number of axes": lambda: product(A, B[0]),
    "axes of one name": lambda: product(A, A),
    "axes of what is returned": lambda: product(A, B, wrong=True),
    "an axis named by an argument": lambda: ones(4),
    "a quoted hint": lambda: named(3),
    "a field": lambda: Pair(A[0], B[0]),
    "a field of the base": lambda: Triple(A[0], B[0], 3),
    "what a generator is given": lambda: numbers("3"),  # pyright: ignore[reportArgumentType]
    "what a local function is given": lambda: local(1)("n"),  # pyright: ignore[reportArgumentType]
    "what a local function returns": lambda: local(1)(100),
    "an argument of the library": lambda: Dense("weight"),  # pyright: ignore[reportArgumentType]
    "a shape of the library": lambda: Dense(A[0]),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_does_not(what: str) -> None:
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            WRONG[what]()


def test_they_can_be_turned_off() -> None:
    with unchecked():
        assert product(A, B, wrong=True) is A
        assert local(1)(100) == "100"


def test_a_check_does_not_reach_into_the_calls_inside() -> None:
    @strict
    def outer(a: Float[Tensor, "n m"]) -> Float[Tensor, "m n"]:
        return product(a.mT, a).mT[:, : a.shape[0]]

    # Inside, n is 3; outside it is 2.
    assert outer(A).shape == (3, 2)


def test_enough_calls_in_one_test_are_enough() -> None:
    """The first calls of every test are checked; thousands of others would say the same."""

    @strict
    def same(n: int) -> int:
        return n

    for _ in range(annotations.MOST):
        with pytest.raises(TypeCheckError):
            same("n")  # pyright: ignore[reportArgumentType]
    assert same("n") == "n"  # pyright: ignore[reportArgumentType]
    annotations.begin_test()
    with pytest.raises(TypeCheckError):
        same("n")  # pyright: ignore[reportArgumentType]
