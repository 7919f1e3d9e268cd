"""One suite for every constrained layer: what `lipkit.nn` promises, over all geometries, against dense SVD."""

import dataclasses
import inspect
import os
import shutil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import nn as lnn
from lipkit.nn import WeightMethod, convex
from lipkit.nn.methods._base import Promise
from support.layers.checks import (
    check_declared,
    check_evaluation,
    check_gradients,
    check_isometry,
    check_norm,
    check_saving,
    check_steps,
    promised,
)
from support.layers.examples import EVERY, FURTHER, LAYERS, METHODS, PARTS, QUIET, SECOND, UNITARY, WITHOUT_CONSTANT
from support.layers.geometries import FILLS, Drawn, accepted, filled, layers, unitary
from support.programs.run import PROGRAMS, run_program

every_layer = pytest.mark.parametrize("name", LAYERS)
every_part = pytest.mark.parametrize("name", PARTS)
every_unitary = pytest.mark.parametrize("method", UNITARY, ids=repr)
every_method = pytest.mark.parametrize("method", EVERY, ids=repr)
PUBLIC = vars(lnn) | vars(convex)
DTYPES = ("float32", "float64", "bfloat16")
COMPLEX = (torch.complex64, torch.complex128)


def test_every_method_is_in_the_suite() -> None:
    found = {
        v for v in PUBLIC.values() if inspect.isclass(v) and issubclass(v, WeightMethod) and not inspect.isabstract(v)
    }
    assert found == set(METHODS)


def test_every_layer_is_in_the_suite() -> None:
    # PICNN, sums and Concat take several inputs, Embedding takes tokens, and LipschitzTwin comes from conversion; they
    # have tests of their own.
    others = {"Concat", "ConvexSum", "Embedding", "ScaledSum", "LipschitzTwin", "PICNN"}
    public = {name for name, v in PUBLIC.items() if inspect.isclass(v) and issubclass(v, torch.nn.Module)}
    assert public - others == {name.partition(" of ")[0] for name in (*PARTS, *WITHOUT_CONSTANT)}


@every_method
def test_is_a_frozen_value_that_prints(method: Any) -> None:
    assert dataclasses.replace(method) == method
    assert hash(dataclasses.replace(method)) == hash(method)
    assert str(method) != repr(method)


@pytest.mark.parametrize("method", [*EVERY, *FURTHER], ids=repr)
@settings(max_examples=18)
@given(data=st.data())
def test_the_norm_of_the_stored_weights_is_at_most_one(method: WeightMethod, data: st.DataObject) -> None:
    drawn: Drawn = data.draw(layers(method))
    if drawn.layer is None:
        return
    layer = drawn.layer.to(getattr(torch, data.draw(st.sampled_from(DTYPES))))
    filled(layer, data.draw(st.sampled_from(sorted(FILLS))))
    check_norm(layer, drawn.in_shape)
    weight = layer.weight
    (gradient,) = torch.autograd.grad((weight * torch.randn_like(weight)).sum(), layer.parametrizations.weight.original)
    assert bool(torch.isfinite(gradient).all())


@every_method
@settings(max_examples=7)
@given(data=st.data())
def test_isometries_keep_all_singular_values(method: WeightMethod, data: st.DataObject) -> None:
    drawn: Drawn = data.draw(accepted(method))
    layer = drawn.layer
    if promised(layer) is Promise.ISOMETRY:
        check_isometry(layer, drawn.in_shape, 1 - 2e-5)
        assert layer.parametrizations.weight[0].is_feasible(layer.weight)
        check_isometry(layer.to(torch.bfloat16), drawn.in_shape, 1 - 1e-2)


@every_method
@settings(max_examples=3)
@given(data=st.data())
def test_the_norm_holds_while_training(method: WeightMethod, data: st.DataObject) -> None:
    drawn: Drawn = data.draw(accepted(method))
    check_steps(drawn.layer, drawn.in_shape)


@every_method
@settings(max_examples=2)
@given(data=st.data())
def test_gradients(method: WeightMethod, data: st.DataObject) -> None:
    drawn: Drawn = data.draw(accepted(method))
    filled(drawn.layer, "moved")
    check_gradients(drawn.layer, torch.randn(2, *drawn.in_shape))


@every_unitary
@settings(max_examples=18)
@given(data=st.data())
def test_the_norm_of_stored_complex_weights_is_at_most_one(method: WeightMethod, data: st.DataObject) -> None:
    drawn: Drawn = data.draw(unitary(method, data.draw(st.sampled_from(COMPLEX))))
    layer = drawn.layer
    filled(layer, data.draw(st.sampled_from(sorted(FILLS))))
    check_norm(layer, drawn.in_shape)
    weight = layer.weight
    loss = (weight * torch.randn_like(weight)).sum().real
    (gradient,) = torch.autograd.grad(loss, layer.parametrizations.weight.original)
    assert bool(torch.isfinite(gradient).all())


@every_unitary
@settings(max_examples=6)
@given(data=st.data())
def test_unitary_layers_keep_all_singular_values(method: WeightMethod, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(COMPLEX))
    drawn: Drawn = data.draw(unitary(method, dtype))
    layer = drawn.layer
    if promised(layer) is Promise.ISOMETRY:
        check_isometry(layer, drawn.in_shape, 1 - 2e-5)
        assert layer.parametrizations.weight[0].is_feasible(layer.weight)
    check_steps(layer, drawn.in_shape, dtype)


@every_unitary
def test_unitary_layers_are_differentiated_saved_and_frozen(method: WeightMethod) -> None:
    for inputs, outputs in ((4, 4), (6, 3), (2, 5)):
        layer = lnn.Linear(inputs, outputs, dtype=torch.complex128, method=method)
        x = torch.randn(2, inputs, dtype=torch.complex128)
        check_gradients(layer, x)
        check_evaluation(layer, x)
        check_saving(lambda: lnn.Linear(inputs, outputs, dtype=torch.complex128, method=method), x)  # noqa: B023


@every_layer
def test_saving(name: str) -> None:
    def build() -> torch.nn.Module:
        return LAYERS[name]()[0]

    check_saving(build, torch.randn(3, *LAYERS[name]()[1]))


@every_layer
def test_evaluation(name: str) -> None:
    layer, in_shape = LAYERS[name]()
    check_evaluation(layer, torch.randn(3, *in_shape))


@every_part
def test_the_declared_constant_holds(name: str) -> None:
    layer, in_shape = PARTS[name]()
    check_declared(layer, in_shape)


@pytest.mark.parametrize("name", [*PARTS, *WITHOUT_CONSTANT, *SECOND])
def test_derivatives(name: str) -> None:
    layer, in_shape = (LAYERS | SECOND)[name]()
    check_gradients(layer.eval(), torch.randn(2, *in_shape))


COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None or bool(os.environ.get("CI")),
    reason="machine code needs a C++ compiler, and a minute that continuous integration does not have",
)


@pytest.mark.compile
@pytest.mark.process
@pytest.mark.parametrize("what", ["half", "other", "distributed", pytest.param("inductor", marks=COMPILER)])
def test_runs_as_a_program(what: str) -> None:
    # Without shape checks, which compilation does not see through.
    found = run_program(PROGRAMS / "layer_programs.py", [what], variables=QUIET)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]
