"""The checker behind the shape annotations: beartype, reading hints as a static type checker does."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ForwardRef, Self, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype

# An int passes for a float; Self is left to the static checker, for beartype cannot resolve it on a single method.
checked = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,
        violation_type=jaxtyping.TypeCheckError,
        hint_overrides=FrozenDict({Self: object}),
    )
)

# How many calls of a function are checked in each test: a loop of thousands repeats what the first ones show, and
# checking every one would double the time of the suite.
MOST = 3

_thorough = jaxtyping.jaxtyped
# Sizes of named axes are compared between the checks made inside one such block.
_one_call = _thorough("context")
# How often a function was called in this test; not in the function itself, whose contents are compared.
_calls: dict[CodeType, int] = {}
# Those that were called often enough: most calls of a test find their function here and do nothing else.
_enough: set[CodeType] = set()
# What has been made of local functions, and the name of the argument through which it reaches the function.
_made: dict[object, tuple[Any, list[str]]] = {}


def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """What jaxtyping's decorator of this name checks, at a fraction of its cost, which is most of what tests spend.

    jaxtyping binds the arguments of every call and checks them twice, before it and again with what is returned, so
    that it can say which one was wrong. Here beartype checks both in one pass, and names it as well.
    """

    def decorate(it: Any) -> Any:
        if inspect.isclass(it):
            if dataclasses.is_dataclass(it) and not hasattr(it.__init__, "is_checked"):
                it.__init__ = decorate(it.__init__)
            return it
        strict = _local(it, typechecker) if "<locals>" in it.__qualname__ else _strict(it, typechecker)
        found = _thorough(it, typechecker=typechecker) if strict is None else _switched(it, strict)
        found.__dict__["is_checked"] = True
        return found

    return decorate


def begin_test() -> None:
    """Check the first calls of every function again; conftest.py calls this before each test."""
    _calls.clear()
    _enough.clear()


def _switched(it: Any, strict: Any) -> Any:
    """Either of two functions: the first while checks are turned off, and after enough calls in one test."""

    @functools.wraps(it)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if it.__code__ in _enough or jaxtyping.config.jaxtyping_disable:
            return it(*args, **kwargs)
        _calls[it.__code__] = _calls.get(it.__code__, 0) + 1
        if _calls[it.__code__] == MOST:
            _enough.add(it.__code__)
        with _one_call:
            return strict(*args, **kwargs)

    return it if strict is it else wrapped


def _strict(it: Any, typechecker: Any) -> Any:
    """The function with its checks; itself where there are none, and None where one pass does not do."""
    written = it.__annotations__
    hints = {name: _resolved(hint, it.__globals__) for name, hint in written.items()}
    # What a generator yields is checked after the call.
    if inspect.isgeneratorfunction(it) or any(map(_is_special, hints.values())):
        return None
    it.__annotations__ = hints
    strict = typechecker(it)
    it.__annotations__ = written
    return strict


def _local(it: Any, typechecker: Any) -> Any:
    """The same for a function that is made again and again: beartype writes and compiles its checks once."""
    key = it.__code__, tuple(it.__annotations__.items())
    if key not in _made:
        strict = _strict(it, typechecker)
        # Beartype's functions keep the one they check as a default argument.
        places = [] if strict is it or strict is None else [k for k, v in strict.__kwdefaults__.items() if v is it]
        _made[key] = strict, places
        return strict
    strict, places = _made[key]
    if strict is None or strict.__code__ is it.__code__:
        return None if strict is None else it
    (place,) = places
    twin = FunctionType(strict.__code__, strict.__globals__, strict.__name__, strict.__defaults__, strict.__closure__)
    twin.__kwdefaults__ = {**strict.__kwdefaults__, place: it}
    return twin


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """The hint with its quoted parts evaluated; one that names what is defined later is left to the static checker."""

    def holder(value: Any) -> None:
        del value

    holder.__annotations__ = {"value": hint}
    try:
        return get_type_hints(holder, names, include_extras=True)["value"]
    except NameError:
        return Any


def _is_special(hint: Any) -> bool:
    """Axes named by arguments, which have to be bound for it; types that contain themselves."""
    return "{" in getattr(hint, "dim_str", "") or isinstance(hint, ForwardRef) or any(map(_is_special, get_args(hint)))
