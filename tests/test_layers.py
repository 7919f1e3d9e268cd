"""The shape of the package: imports go down, extras stay optional, files stay small, public names are explained."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import pytest

from support.repository import ROOT

SOURCE = ROOT / "src" / "lipkit"

# From the bottom up; a unit is a module or a package right below lipkit, and `lipkit` is its __init__.py.
LAYERS = (
    (
        "errors",
        "rounding",
        "_files",
        "_png",
        "_checksums",
        "_locks",
        "_version",
        "_seeds",
        "_compilers",
        "regions",
        "bound",
        "_typing",
        "_runtime",
        "data",
    ),
    ("linops",),
    ("norms", "implicit"),
    ("trace", "nn"),
    ("bounds",),
    ("losses", "regularizers", "optim"),
    ("certify", "privacy", "transport", "sdf", "analysis", "concepts"),
    ("lipkit",),
    ("estimators",),
    ("cli", "report", "integrations"),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}

# Imports within one layer that are part of the design.
SIDEWAYS = {
    ("regions", "errors"),
    ("regions", "rounding"),
    ("_files", "errors"),
    ("_checksums", "errors"),
    ("_locks", "errors"),
    ("data", "_files"),
    ("bound", "errors"),
    ("bound", "rounding"),
    ("rounding", "errors"),
    ("data", "_seeds"),
    ("_seeds", "errors"),
    ("_runtime", "errors"),
    ("_runtime", "_compilers"),
    ("bound", "regions"),
    ("_typing", "bound"),
    ("data", "errors"),
    ("sdf", "transport"),
    ("privacy", "certify"),
    ("sdf", "certify"),
    ("cli", "report"),
}

# Imports that would go down and are still wrong: `trace` says what a network is, not how large.
FORBIDDEN = {("trace", "norms")}

# Data sets are read without building models.
FOREIGN = {("data", "torch.nn")}

CORE = {"torch", "numpy", "scipy", "jaxtyping"}
# Estimators are classes derived from those of scikit-learn, so their unit loads it, and nothing below loads that unit.
AT_IMPORT = {("estimators", "sklearn")}
EXTRAS = (
    *("matplotlib", "rich", "cvxpy", "sklearn", "typer", "safetensors", "pandas", "hypothesis", "pytest", "beartype"),
    *("foolbox", "torchattacks", "pooch", "PIL", "tensorboard", "wandb", "lightning", "transformers"),
    *("dp_accounting", "trimesh", "skimage"),
)


@dataclass(frozen=True)
class Import:
    """One imported module, where it stands, and whether importing the file runs it."""

    file: Path
    unit: str
    target: str
    line: int
    runs: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def files(root: Path) -> list[Path]:
    found = sorted(root.rglob("*.py"))
    assert found, f"no source files below {root}"
    return found


def imports(root: Path) -> Iterator[Import]:
    for path in files(root):
        file = path.relative_to(root)
        unit = "lipkit" if file.name == "__init__.py" and len(file.parts) == 1 else file.parts[0].removesuffix(".py")
        package = ["lipkit", *file.parts[:-1]]
        for node, runs in nodes(ast.parse(path.read_text()), runs=True):
            for target in targets(node, package):
                yield Import(file, unit, target, node.lineno, runs)


def nodes(tree: ast.AST, runs: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, runs
        idle = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        )
        yield from nodes(child, runs and not idle)


def targets(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = package[: len(package) + 1 - node.level] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    # `from lipkit import norms` imports the unit norms; `from lipkit import Bound` goes through lipkit/__init__.py.
    return [f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module for alias in node.names]


MODULES = {f"lipkit.{unit}" for unit in LEVEL} | {"torch.nn"}


def violations(root: Path) -> list[str]:
    """Every import that breaks a layer or an optional dependency, as a sentence."""
    found: list[str] = []
    optional: dict[str, set[Path]] = {}
    for one in imports(root):
        top, *rest = one.target.split(".")
        if top == "lipkit":
            found += [f"{one}: {why}" for why in wrong_direction(one.unit, rest[0] if rest else "lipkit")]
            continue
        found += [f"{one}, which {unit} must not" for unit, name in FOREIGN if unit == one.unit and name in one.target]
        if (one.unit, top) in AT_IMPORT:
            continue
        if top not in CORE and top not in sys.stdlib_module_names:
            optional.setdefault(top, set()).add(one.file)
            if one.runs:
                found.append(f"{one} outside of a function")
    found += [f"{name} enters through {len(where)} files" for name, where in optional.items() if len(where) > 1]
    return found


def wrong_direction(source: str, target: str) -> list[str]:
    unknown = [f"{unit} is in no layer" for unit in (source, target) if unit not in LEVEL]
    if unknown or source == target:
        return unknown
    if (source, target) in FORBIDDEN:
        return [f"{source} must not know {target}"]
    if LEVEL[source] > LEVEL[target] or (source, target) in SIDEWAYS:
        return []
    return [f"{source} may only import from below"]


def test_imports_only_go_down():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("linops/conv.py", "from lipkit.norms import SVD", "linops may only import from below"),
        ("linops/conv.py", "import lipkit.norms.svd", "linops may only import from below"),
        ("linops/conv.py", "from lipkit import norms", "linops may only import from below"),
        ("linops/conv.py", "from ..norms import svd", "linops may only import from below"),
        ("linops/conv.py", "def f():\n    from lipkit.norms import svd", "linops may only import from below"),
        ("norms/svd.py", "from lipkit import Bound", "norms may only import from below"),
        ("norms/svd.py", "import lipkit", "norms may only import from below"),
        ("errors.py", "from lipkit.bound import Bound", "errors may only import from below"),
        ("trace/lowering.py", "from lipkit.norms import SVD", "trace must not know norms"),
        ("trace/lowering.py", "from lipkit.nn import Linear", "trace may only import from below"),
        ("nn/layers/linear.py", "from lipkit.trace import capture", "nn may only import from below"),
        ("transport/duals.py", "from lipkit.sdf import surface", "transport may only import from below"),
        ("certify/radii/radius.py", "from lipkit.privacy import audit", "certify may only import from below"),
        ("__init__.py", "from lipkit.cli import demo", "lipkit may only import from below"),
        ("__init__.py", "from lipkit import estimators", "lipkit may only import from below"),
        ("sdf/walk.py", "from sklearn.base import BaseEstimator", "outside of a function"),
        ("helpers/more.py", "import lipkit.errors", "helpers is in no layer"),
        ("norms/svd.py", "import lipkit.helpers", "helpers is in no layer"),
        ("data/idx.py", "from torch import nn", "data must not"),
        ("report/method_figures.py", "import matplotlib.pyplot as plt", "outside of a function"),
        ("report/method_figures.py", "class A:\n    from rich import print", "outside of a function"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str, complaint: str):
    plant(tmp_path, file, code)
    assert [complaint in found for found in violations(tmp_path)] == [True]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (
            "norms/svd.py",
            "from lipkit.linops import Conv\nfrom lipkit.bound import Bound\nfrom lipkit.norms import power",
        ),
        ("norms/svd.py", "import math\nimport torch\nfrom scipy import linalg\nfrom lipkit import linops"),
        ("sdf/surface.py", "from lipkit.transport import metrics"),
        ("estimators/one_class.py", "from sklearn.base import BaseEstimator\nfrom lipkit import sdf"),
        ("regularizers/weights/spectral_norms.py", "from lipkit.bounds import dag"),
        ("cli/demo/demo.py", "import lipkit\nfrom lipkit.report import figures\ndef f():\n    import rich"),
        (
            "report/method_figures.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from matplotlib.figure import Figure",
        ),
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path: Path, file: str, code: str):
    plant(tmp_path, file, code)
    assert violations(tmp_path) == []


def test_an_optional_dependency_enters_through_one_file(tmp_path: Path):
    for file in ("report/method_figures.py", "report/html/page.py"):
        plant(tmp_path, file, "def f():\n    import matplotlib")
    assert violations(tmp_path) == ["matplotlib enters through 2 files"]


def plant(root: Path, file: str, code: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)


def extras_loaded_by(code: str) -> set[str]:
    """Which optional packages a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys\nprint(*[name for name in {EXTRAS!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env, timeout=600
    )
    return set(run.stdout.split())


@pytest.mark.process
def test_importing_lipkit_loads_no_extra():
    assert extras_loaded_by("import lipkit") == set()


@pytest.mark.process
def test_importing_lipkit_loads_nothing_slow_that_it_may_not_need():
    slow = {"torch._dynamo", "torch._inductor", "scipy.stats", "torch.onnx"}
    code = f"import torch, sys; before = set(sys.modules); import lipkit; print(*{slow} & (set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.process
def test_an_extra_that_is_loaded_is_noticed():
    assert "rich" in extras_loaded_by("import rich.console")


def test_files_are_small():
    long = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in files(SOURCE)}
    assert {file: lines for file, lines in long.items() if lines > 300} == {}


def crowded(root: Path) -> dict[str, int]:
    """Folders with more files than one can survey."""
    counts: dict[str, int] = {}
    for path in files(root):
        folder = path.parent.relative_to(root).as_posix()
        counts[folder] = counts.get(folder, 0) + 1
    return {folder: count for folder, count in counts.items() if count > 18}


def test_no_folder_is_crowded():
    assert crowded(SOURCE) == {}


def test_a_crowded_folder_is_noticed(tmp_path: Path):
    for number in range(19):
        plant(tmp_path, f"norms/method_{number}.py", "")
    assert crowded(tmp_path) == {"norms": 19}


# Two files may share a name only if both are about the same thing.
SAME_THING = {
    "_base": "what all parts of a folder have in common",
    "auto": "the method that chooses between the others",
    "absolute": "absolute values: of an operator, and as an activation",
    "batch_norm": "batch normalisation: as an operator, and as a rule",
    "bound": "the result type, and the command that prints one",
    "conv": "convolutions: as an operator, and as a layer",
    "conv_transpose": "transposed convolutions: as an operator, and as a layer",
    "digits": "handwritten digits: the data, and the classifier of the demonstration",
    "frobenius": "the Frobenius norm: of an operator, as a bound, and as a constraint",
    "normalization": "normalisation: as a node, as a rule, and as a layer",
    "pointwise": "functions of single entries: as a node, and as rules",
    "softmax": "softmax: as a node, and as a rule",
    "sorting": "sorts: as rules, and as activations",
    "surface": "learned surfaces: the training, and the command that runs it",
}


def shared_names(root: Path) -> set[str]:
    """Names of several files."""
    names = [path.stem for path in files(root) if path.stem != "__init__"]
    return {name for name in names if names.count(name) > 1}


def test_one_file_name_means_one_thing():
    assert shared_names(SOURCE) - SAME_THING.keys() == set()


def test_a_second_meaning_of_a_name_is_noticed(tmp_path: Path):
    for folder in ("linops", "report"):
        plant(tmp_path, f"{folder}/depth.py", "")
    assert shared_names(tmp_path) == {"depth"}


def test_there_is_no_drawer_for_everything():
    assert [
        path for path in files(SOURCE) if path.stem.strip("_") in {"utils", "util", "helpers", "misc", "common"}
    ] == []


def bare_powers(root: Path) -> list[str]:
    """Small powers of two outside of `rounding` that are no named constant of their file, as places."""
    found: list[str] = []
    for path in files(root):
        file = path.relative_to(root)
        if file.parts[0] == "rounding":
            continue
        for statement in ast.parse(path.read_text()).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
            names = [name for one in targets for name in (one.elts if isinstance(one, ast.Tuple) else [one])]
            named = bool(names) and all(isinstance(name, ast.Name) and name.id.isupper() for name in names)
            found += [f"{file}:{node.lineno}" for node in ast.walk(statement) if not named and is_small_power(node)]
    return found


def is_small_power(node: ast.AST) -> TypeGuard[ast.BinOp]:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Constant)):
        return False
    return node.left.value == 2 and isinstance(node.right, ast.UnaryOp) and isinstance(node.right.operand, ast.Constant)


def test_every_slack_has_a_name():
    assert bare_powers(SOURCE) == []


def test_a_bare_slack_is_noticed(tmp_path: Path):
    plant(
        tmp_path,
        "norms/a.py",
        "_FINE = 2.0**-8\nA, B = 2.0**-8, 1\nC: Final = 2.0**-8\n"
        "def f(x):\n    return x * (1 + 2.0**-50)\nslack = 2**-3",
    )
    plant(tmp_path, "rounding/slacks.py", "def f(x):\n    return 2.0**-50 * x")
    assert bare_powers(tmp_path) == ["norms/a.py:5", "norms/a.py:6"]


def undocumented(root: Path) -> list[str]:
    """Public functions, classes and methods without a docstring; overrides are explained where first declared."""
    # Two packages may use one name; whichever of them explains a method counts.
    classes: dict[str, list[ast.ClassDef]] = {}
    missing: list[str] = []
    trees = {path.relative_to(root): ast.parse(path.read_text()) for path in files(root)}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def explained(cls: ast.ClassDef, name: str) -> bool:
        own = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == name]
        bases = [found for base in map(ast.unparse, cls.bases) for found in classes.get(base, []) if found is not cls]
        return any(ast.get_docstring(node) for node in own) or any(explained(base, name) for base in bases)

    for file, tree in trees.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                missing.append(f"{file}: {node.name}")
            if isinstance(node, ast.ClassDef):
                methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                public = sorted(name for name in methods if not name.startswith("_"))
                missing += [f"{file}: {node.name}.{name}" for name in public if not explained(node, name)]
    return missing


def test_public_names_are_explained():
    assert undocumented(SOURCE) == []


def test_a_missing_docstring_is_noticed(tmp_path: Path):
    plant(tmp_path, "base.py", 'class Base:\n    """B."""\n    def known(self):\n        """K."""')
    plant(
        tmp_path,
        "code.py",
        "class A(Base):\n    def known(self): ...\n    def new(self): ...\ndef f(): ...\ndef _g(): ...",
    )
    assert undocumented(tmp_path) == ["code.py: A", "code.py: A.new", "code.py: f"]
