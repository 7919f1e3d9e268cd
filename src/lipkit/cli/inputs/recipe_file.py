"""Recipes from files."""

import inspect
from pathlib import Path

from lipkit.cli.inputs import load
from lipkit.cli.training import Recipe
from lipkit.errors import ArgumentError


def recipe_class(path: Path) -> type[Recipe]:
    """The recipe that a Python file defines or names; the file is executed, like any program one runs."""
    if path.suffix != ".py":
        raise ArgumentError(f"A recipe is a Python file such as recipes/digits.py, got {path}.")
    module = load.python_file(path)
    found = {
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, Recipe) and not inspect.isabstract(cls)
    }
    # A class that another one of the file is made from is only its base.
    leaves = [cls for cls in found if not any(other is not cls and issubclass(other, cls) for other in found)]
    if len(leaves) != 1:
        names = ", ".join(sorted(cls.__name__ for cls in leaves)) or "none"
        raise ArgumentError(f"{path} must define one recipe, a subclass of lipkit.cli.training.Recipe; it has {names}.")
    return leaves[0]
