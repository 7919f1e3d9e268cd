"""The reference on the site names everything that is public; `python tests/test_site.py` writes its pages anew."""

import importlib
import inspect
from types import ModuleType

import pytest

from support.repository import ROOT

DOCS = ROOT / "docs"
PAGES = {
    "front": ("The front door: lipkit", ("lipkit",)),
    "bounds": ("Bounds of networks: lipkit.bounds", ("lipkit.bounds",)),
    "nn": ("Layers: lipkit.nn", ("lipkit.nn",)),
    "losses": ("Losses: lipkit.losses", ("lipkit.losses",)),
    "regularizers": ("Regularizers: lipkit.regularizers", ("lipkit.regularizers",)),
    "optim": ("Optimizers: lipkit.optim", ("lipkit.optim",)),
    "certify": ("Certificates: lipkit.certify", ("lipkit.certify", "lipkit.certify.attacks", "lipkit.certify.text")),
    "norms": ("Norms of operators: lipkit.norms", ("lipkit.norms",)),
    "linops": ("Linear operators: lipkit.linops", ("lipkit.linops",)),
    "data": ("Data sets: lipkit.data", ("lipkit.data",)),
    "recipes": ("Recipes and runs: lipkit.cli.training", ("lipkit.cli.training",)),
    "errors": ("Errors: lipkit.errors", ("lipkit.errors",)),
}


def public(module: ModuleType) -> dict[str, str]:
    """The classes and functions that a package offers, by name, with the place where each is written."""
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name: f"{value.__module__}.{value.__qualname__}"
        for name, value in sorted(found.items())
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("lipkit.")
    }


def page(name: str) -> str:
    """A page: what each package is for, then one entry for each of its names."""
    title, modules = PAGES[name]
    parts = [f"# {title}"]
    for module in map(importlib.import_module, modules):
        if len(modules) > 1:
            parts.append(f"## {module.__name__}")
        parts.append((module.__doc__ or "").strip().splitlines()[0])
        level = 3 if len(modules) > 1 else 2
        parts += [f"::: {path}\n    options:\n      heading_level: {level}" for path in public(module).values()]
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_complete(name: str) -> None:
    assert (DOCS / "api" / f"{name}.md").read_text() == page(name)


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / "api" / f"{each}.md").write_text(page(each))
