"""Parameters that several modules share, which their twins share too."""

from typing import final

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.parametrize import type_before_parametrizations as plain_type


@final
class Ties:
    """The shared parameters of a model, and the free parameters that took their places first."""

    def __init__(self, model: nn.Module) -> None:
        self.owners: dict[nn.Parameter, list[str]] = {}
        for path, module in model.named_modules():
            for parameter in module.parameters(recurse=False):
                self.owners.setdefault(parameter, []).append(path)
        self.first: dict[nn.Parameter, tuple[str, nn.Module, nn.Parameter | None]] = {}

    def keep(self, path: str, old: nn.Module, new: nn.Module) -> str:
        """Give `new` the free parameters of the twin that came first; says so, or which tie is lost."""
        said = ""
        for name, parameter in list(old.named_parameters(recurse=False)):
            if len(self.owners.get(parameter, ())) < 2:
                continue
            free = _free(new, name)
            other, twin, found = self.first.setdefault(parameter, (path, new, free))
            if twin is new:
                continue
            # Free numbers mean the same in layers of one kind only: a skipped layer must not get those of a twin.
            if found is not free and (plain_type(twin) is not plain_type(new) or found is None or free is None):
                said += f"; its {name} is no longer shared with {other}"
                continue
            if found is not free and is_parametrized(new, name):
                new.get_submodule(f"parametrizations.{name}").register_parameter("original", found)
            elif found is not free:
                new.register_parameter(name, found)
            said += f"; its {name} is shared with {other}"
        return said


def _free(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter that training changes, behind a constrained tensor or in its place."""
    if is_parametrized(module, name):
        found = getattr(module.get_submodule(f"parametrizations.{name}"), "original", None)
    else:
        found = getattr(module, name, None)
    return found if isinstance(found, nn.Parameter) else None
