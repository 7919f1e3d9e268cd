"""What tells the code of a function from other code."""

import hashlib
import types


def code_hash(code: types.CodeType, doc: str | None = None) -> str:
    """A hash of what the code does: its operations, constants and names; neither its place nor its docstring count.

    It is the same in every process of one version of Python.
    """
    constants = [_constant(one) for one in code.co_consts if doc is None or one != doc]
    told = repr((constants, code.co_names, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]))
    return hashlib.sha256(code.co_code + code.co_exceptiontable + told.encode()).hexdigest()[:16]


def names_in(code: types.CodeType) -> set[str]:
    """All names that the code, and functions defined in it, look up."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return code_hash(value)
    # The order of a set differs from process to process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
