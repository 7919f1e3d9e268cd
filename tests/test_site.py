"""The reference on the site has every public name, with an explanation."""

import functools
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import griffe
import pytest

from support.repository import ROOT

# A page takes what a package exports; the option is what makes mkdocstrings follow `from a import b as b`.
ENTRY = re.compile(r"^::: ([\w.]+)\n    options:\n      members: true$", flags=re.MULTILINE)
ENTRIES = [name for page in sorted((ROOT / "docs" / "api").glob("*.md")) for name in ENTRY.findall(page.read_text())]


def public(module: ModuleType) -> set[str]:
    """The classes and functions that users import from a module."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.partition(".")[0] == module.__name__.partition(".")[0]
    }


def explained(name: str, source: Path) -> set[str]:
    """The names of a module for which mkdocstrings finds a docstring."""
    package, _, inner = name.partition(".")
    whole = sources(package, source)
    return {member.name for member in (whole[inner] if inner else whole).members.values() if member.has_docstring}


@functools.cache
def sources(package: str, source: Path) -> griffe.Object | griffe.Alias:
    """A package as mkdocstrings sees it, which reads its files and does not import them."""
    return griffe.load(package, search_paths=[source], allow_inspection=False, resolve_aliases=True)


def packages(name: str) -> set[str]:
    """The modules that a package offers. Others below it are bound to names too, but by imports of another form."""
    text = inspect.getsource(importlib.import_module(name))
    return {f"{name}.{inner}" for inner in re.findall(rf"^from {name} import (\w+) as \1$", text, flags=re.MULTILINE)}


def test_every_package_that_lipkit_offers_has_an_entry():
    assert "lipkit" in ENTRIES
    assert "lipkit.certify.text" in packages("lipkit.certify")
    for name in ENTRIES:
        assert packages(name) - set(ENTRIES) == set()


@pytest.mark.parametrize("name", ENTRIES)
def test_every_public_name_is_explained(name: str):
    found = public(importlib.import_module(name))
    assert found
    assert found - explained(name, ROOT / "src") == set()


def test_a_name_without_an_explanation_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "planted"
    package.mkdir()
    (package / "inside.py").write_text('class Known:\n    """K."""\nclass Silent: ...\ndef quiet(): ...\n')
    names = ("Known", "Silent", "quiet")
    (package / "__init__.py").write_text("".join(f"from planted.inside import {name} as {name}\n" for name in names))
    monkeypatch.syspath_prepend(tmp_path)
    assert public(importlib.import_module("planted")) - explained("planted", tmp_path) == {"Silent", "quiet"}
