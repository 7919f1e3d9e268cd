"""Every name that an error or a remedy of lipkit.nn mentions exists and can be imported."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import lipkit
from lipkit import nn as lnn
from lipkit.nn.conversion import converted_functions, converted_layers
from lipkit.nn.core.known_constants import Stated
from support.repository import ROOT

SOURCE = ROOT / "src" / "lipkit" / "nn"
# Where a name without a module in front of it is looked for; reports also name the small layers of conversions.
SPACES = (lnn, lnn.convex, lnn.networks, nn, torch, converted_functions, converted_layers, lipkit.errors, lipkit.norms)
ALIASES = {"nn": nn, "F": functional, "torch": torch, "lipkit": lipkit, "prune": prune, "lnn": lnn}
# A dotted name that begins with one of the modules above; a word with a capital inside; a word in backticks.
DOTTED = re.compile(r"(?<![\w.])(?:nn|F|torch|lipkit|prune|lnn)(?:\.[A-Za-z_]\w*)+")
CAMEL = re.compile(r"(?<![\w.])[A-Z][a-z0-9]+[A-Z]\w*|(?<![\w.])[A-Z]\w*(?=\()")
TICKED = re.compile(r"`([A-Za-z_]\w*)`")


def words_of(file: Path) -> Iterator[str]:
    """The texts of a file that users may read: all but docstrings, with a mark where values are filled in."""
    tree = ast.parse(file.read_text())
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in {*documents, *inside}:
            yield node.value


def sentences() -> list[tuple[str, str]]:
    files = sorted(SOURCE.rglob("*.py"))
    return [(file.name, text) for file in files for text in words_of(file) if " " in text]


def resolves(name: str) -> bool:
    """Whether a dotted name can be imported and read."""
    head, *rest = name.split(".")
    if head == "lipkit":
        for cut in range(len(rest), -1, -1):
            try:
                module = importlib.import_module(".".join((head, *rest[:cut])))
            except ModuleNotFoundError:
                continue
            return reads(module, rest[cut:])
    return reads(ALIASES[head], rest)


def reads(thing: object, names: list[str]) -> bool:
    missing = object()
    found = reduce(lambda held, name: held if held is missing else getattr(held, name, missing), names, thing)
    return found is not missing


def test_dotted_names_can_be_imported():
    found = [(place, name) for place, text in sentences() for name in DOTTED.findall(text)]
    assert len(found) > 20
    assert [(place, name) for place, name in found if not resolves(name)] == []


def test_classes_exist():
    found = [(place, name) for place, text in sentences() for name in CAMEL.findall(text)]
    assert len(found) > 20
    names = [(place, name) for place, name in found if name != "NaN"]
    assert [(place, name) for place, name in names if not any(reads(space, [name]) for space in SPACES)] == []


# Arguments and properties that remedies name, and where they are.
NAMED = {*inspect.signature(lnn.lipschitzify).parameters, *vars(Stated)}


@pytest.mark.parametrize("file", sorted((SOURCE / "conversion").glob("*.py")), ids=lambda file: file.stem)
def test_arguments_in_backticks_exist(file: Path):
    found = [name for text in words_of(file) for name in TICKED.findall(text)]
    assert [name for name in found if name not in NAMED] == []


def test_the_check_sees_names_that_do_not_exist():
    assert not resolves("lipkit.nn.Missing")
    assert not resolves("lipkit.missing.Missing")
    assert not resolves("nn.Missing")
    assert CAMEL.findall("use CircularMissing, or RKO(Bjorck())") == ["CircularMissing", "RKO", "Bjorck"]
    assert DOTTED.findall("call F.dropout(x), lipkit.nn.AOL or nn.Linear.") == [
        "F.dropout",
        "lipkit.nn.AOL",
        "nn.Linear",
    ]
