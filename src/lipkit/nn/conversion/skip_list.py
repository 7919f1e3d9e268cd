"""Modules that a conversion leaves as they are."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from lipkit.errors import ArgumentError

# How many names an error shows.
_SHOWN = 8


def find_skipped(model: nn.Module, skip: Sequence[str | type[nn.Module]]) -> frozenset[nn.Module]:
    """The modules that the entries of `skip` name: qualified names, patterns of them such as "blocks.*", or types.

    An entry that names no module is an error, and so is one that names the whole model.
    """
    if isinstance(skip, str) or not isinstance(skip, Sequence):
        raise ArgumentError(
            f"skip is a sequence of names and types of modules, got {skip!r:.60}; write ({skip!r:.60},)."
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    found: set[nn.Module] = set()
    for entry in skip:
        if isinstance(entry, nn.Module):
            # The model was copied, so a module of it is not one of the copy.
            raise ArgumentError(
                f"skip takes names and types of modules, got the module {type(entry).__name__}; give its name, which "
                "model.named_modules() lists, such as skip=['fc']."
            )
        matched = [module for path, module in modules.items() if _names(entry, path, module)]
        if not matched:
            names = [path for path in modules if path]
            more = ", ..." if len(names) > _SHOWN else ""
            raise ArgumentError(
                f"skip names {entry!r:.60}, and {type(model).__name__} has no such module; its modules are "
                f"{', '.join(names[:_SHOWN]) or 'none'}{more}."
            )
        found.update(matched)
    if model in found:
        raise ArgumentError(
            f"skip names {type(model).__name__} itself, so nothing would be converted; name parts of it."
        )
    return frozenset(found)


def _names(entry: object, path: str, module: nn.Module) -> bool:
    if isinstance(entry, type) and issubclass(entry, nn.Module):
        return isinstance(module, entry)
    return isinstance(entry, str) and bool(path) and fnmatchcase(path, entry)
