"""Convolution methods and residual layers compiled and exported, in a process without the hooks that check shapes."""

import os
import subprocess
import sys

SCRIPT = """
import torch
from torch import nn
from lipkit import nn as lnn
from lipkit.nn.methods.aol import AOL
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.rescale import Rescale
from lipkit.nn.methods.rko import RKO
from lipkit.nn.methods.spectral import Spectral
from lipkit.nn.residual.cpl import CPL
from lipkit.nn.residual.sll import SLLConv
from lipkit.nn.shift import ShiftBlock

conv = [lnn.Conv2d(8, 8, 3, 2, 1, method=m) for m in (AOL(), Rescale(2), RKO(Bjorck(3)), Spectral(2, 0.3))]
for layer in [*conv, CPL(6), SLLConv(8, 3, 4, padding_mode="circular"), ShiftBlock(8, method=Bjorck(3))]:
    x = torch.randn(2, 8, 6, 6)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = layer(x)
    torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=1e-5)
    free = list(layer.parameters())
    gradients = torch.autograd.grad(expected.square().sum(), free)
    found = torch.autograd.grad(compiled(x).square().sum(), free)
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    exported = torch.export.export(layer.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), expected, atol=1e-5, rtol=1e-5)
    print("fine:", type(layer).__name__)
"""


def test_layers_compile_and_export() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("fine:") == 7, ran.stdout
