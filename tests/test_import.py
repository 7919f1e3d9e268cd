"""What `import lipkit` does not load: large packages that only some functions need."""

import subprocess
import sys

import pytest

# Each takes a tenth of a second or more, and is loaded by the function that needs it.
HEAVY = ("scipy.optimize", "scipy.linalg", "scipy.special", "scipy.stats", "sympy", "torch._dynamo", "transformers",
         "matplotlib", "rich", "typer", "cvxpy", "sklearn")  # fmt: skip

_LOADED = """
import sys, torch
before = set(sys.modules)
import lipkit
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.process
def test_import_loads_nothing_heavy_beyond_torch():
    run = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "lipkit.bounds.auto" in loaded
    assert not set(HEAVY) & set(loaded)
