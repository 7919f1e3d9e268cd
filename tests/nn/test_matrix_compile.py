"""Layers with each method under torch.compile and torch.export, in a process without the hooks that check shapes."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
from matrix_methods import METHODS
from lipkit import nn as lnn

x = torch.randn(5, 6)
kinds = {type(method): method for method in METHODS}
for method in kinds.values():
    layer = lnn.Linear(6, 4, method=method)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = layer(x)
    torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=1e-5)
    free = layer.get_parameter("parametrizations.weight.original")
    (gradient,) = torch.autograd.grad(expected.square().sum(), free)
    (found,) = torch.autograd.grad(compiled(x).square().sum(), free)
    torch.testing.assert_close(found, gradient, atol=1e-4, rtol=1e-4, msg=f"{method}: gradient")
    exported = torch.export.export(layer.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), expected, atol=1e-5, rtol=1e-5)
    print("fine:", method)
"""


def test_every_method_compiles_and_exports() -> None:
    tests = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        cwd=tests,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("fine:") == 12, ran.stdout
