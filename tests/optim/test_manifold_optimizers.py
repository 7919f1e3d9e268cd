"""All optimizers on orthonormal matrices, held to the same promises: where they go and stay, what they store."""

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.optim import (
    SAM,
    CayleyRetraction,
    ExponentialRetraction,
    Landing,
    LeadingDirections,
    PolarRetraction,
    Projected,
    ProjUNND,
    ProjUNNT,
    RiemannianAdam,
    RiemannianSGD,
    SampledColumns,
    StiefelMuon,
)
from lipkit.optim._optimizer import StiefelOptimizer
from support.orthonormal import orthonormal, parameter, polar, residual

Build = Callable[[Any, float], torch.optim.Optimizer]

# Each takes parameters and a rate.
BUILDERS: dict[str, Build] = {
    "RiemannianSGD": RiemannianSGD,
    "RiemannianSGD, exponential": lambda p, lr: RiemannianSGD(p, lr, retraction=ExponentialRetraction()),
    "RiemannianSGD, momentum": lambda p, lr: RiemannianSGD(p, lr / 2, 0.5),
    "RiemannianAdam": RiemannianAdam,
    "RiemannianAdam, polar": lambda p, lr: RiemannianAdam(p, lr, retraction=PolarRetraction()),
    "Landing": Landing,
    "Landing, momentum": lambda p, lr: Landing(p, lr / 2, 0.5),
    "ProjUNND": lambda p, lr: ProjUNND(p, lr, rank=3),
    "ProjUNNT": lambda p, lr: ProjUNNT(p, lr, rank=3),
    "ProjUNND, momentum": lambda p, lr: ProjUNND(p, lr / 2, 3, 0.5, LeadingDirections()),
    "ProjUNNT, columns": lambda p, lr: ProjUNNT(p, lr, 3, directions=SampledColumns()),
    "Projected": lambda p, lr: Projected(torch.optim.SGD(p, lr)),
}
# With these, a step does not depend on what else is in the batch.
UNMIXED = [name for name in BUILDERS if name not in ("ProjUNND", "ProjUNNT", "ProjUNNT, columns")]
SHAPES = ((6, 6), (9, 4), (4, 9), (7, 1), (5, 3, 1, 1))
TYPES = (torch.float32, torch.float64)


def start(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(orthonormal(shape[0], shape[1], seed, dtype).reshape(shape))


def run(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return float(loss().detach())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_hundreds_of_steps_along_noise_stay_on_the_manifold(name: str, dtype: torch.dtype) -> None:
    weights = [start(shape, seed, dtype) for seed, shape in enumerate(SHAPES)]
    optimizer = BUILDERS[name](weights, 0.03)
    torch.manual_seed(0)
    farthest = 0.0
    for step in range(200):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        if step % 50 == 49:
            farthest = max(farthest, *map(residual, weights))
    if isinstance(optimizer, Landing):
        # Noise keeps it off the manifold, inside the radius; a residual in norm is at most one in Frobenius norm.
        assert 1e-3 < farthest <= 0.5 * (1 + 1e-5)
        optimizer.retract()
        farthest = max(map(residual, weights))
    # Products of matrices with nine rows; projUNN is projected at every hundredth step and adds up rounding before.
    assert farthest < (1e-5 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (6, 6)])
@pytest.mark.parametrize("name", BUILDERS)
def test_procrustes_problems_are_solved(name: str, shape: tuple[int, int]) -> None:
    """min ||W - M||^2 has the solution polar(M)."""
    torch.manual_seed(3)
    solution = orthonormal(*shape, seed=1)
    scale = torch.diag(torch.linspace(1.0, 2.0, min(shape), dtype=torch.float64))
    target = solution @ scale if shape[0] >= shape[1] else scale @ solution
    assert torch.allclose(polar(target), solution, atol=1e-12)
    # Not too far: among square matrices half lie on the other component, where no path leads.
    weight = nn.Parameter(polar(solution + 0.2 * torch.randn(shape, dtype=torch.float64)))
    optimizer = BUILDERS[name]([weight], 0.02 if "Adam" in name else 0.1)
    # The gradient has full rank, and does not vanish at the solution: a part of it would lead elsewhere.
    optimizer.param_groups[0].update({"rank": 99} if "ProjUNN" in name else {})
    if "Adam" in name:
        # Steps do not shrink with the gradient.
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        for _ in range(600):
            run(optimizer, lambda: (weight - target).square().sum(), 1)
            schedule.step()
    else:
        run(optimizer, lambda: (weight - target).square().sum(), 600)
    # Linear convergence by a factor of at least 0.95 a step.
    assert float((weight.detach() - solution).norm()) < 1e-5


@pytest.mark.parametrize("name", BUILDERS)
def test_principal_components_are_found(name: str) -> None:
    """max tr(W'CW) is the sum of the largest eigenvalues of C."""
    basis = orthonormal(10, 10, seed=5)
    values = torch.tensor([3.0, 2.5, 2.0, *[0.5] * 7], dtype=torch.float64)
    covariance = basis @ torch.diag(values) @ basis.mT
    weight = parameter(10, 3, seed=6)
    optimizer = BUILDERS[name]([weight], 0.05)
    found = -run(optimizer, lambda: -(weight.mT @ covariance @ weight).trace() / 2, 500) * 2
    if isinstance(optimizer, StiefelOptimizer):
        optimizer.retract()
        found = float((weight.mT @ covariance @ weight).trace().detach())
    # Adam with a constant rate circles the optimum: a distance of the rate, squared, times the gap.
    assert 7.5 - found < (0.05 if "Adam" in name else 1e-6)
    assert found < 7.5 + 1e-10


def tangent_by_hand(weight: Tensor, gradient: Tensor) -> Tensor:
    inner = weight.T @ gradient
    return gradient - weight @ (inner + inner.T) / 2


def relative_by_hand(weight: Tensor, gradient: Tensor) -> Tensor:
    return (gradient - weight @ gradient.T @ weight) / 2


FIRST_ORDER: dict[str, tuple[Build, Callable[[Tensor, Tensor], Tensor]]] = {
    "RiemannianSGD": (RiemannianSGD, tangent_by_hand),
    "exponential": (lambda p, lr: RiemannianSGD(p, lr, retraction=ExponentialRetraction()), tangent_by_hand),
    # The root of the second moment is divided out below.
    "RiemannianAdam": (lambda p, lr: RiemannianAdam(p, lr, eps=1e-12), tangent_by_hand),
    "Landing": (Landing, relative_by_hand),
    "ProjUNND": (lambda p, lr: ProjUNND(p, lr, 99, directions=LeadingDirections()), tangent_by_hand),
    "ProjUNNT": (lambda p, lr: ProjUNNT(p, lr, 99, directions=LeadingDirections()), relative_by_hand),
    "Projected": (lambda p, lr: Projected(torch.optim.SGD(p, lr)), tangent_by_hand),
}


@pytest.mark.parametrize("shape", [(6, 6), (9, 4)])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_short_step_goes_along_the_gradient_on_the_manifold(name: str, shape: tuple[int, int]) -> None:
    build, direction = FIRST_ORDER[name]
    torch.manual_seed(0)
    target = torch.randn(shape, dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        return (w - target).pow(4).sum()

    weight = parameter(*shape, seed=2)
    before = weight.detach().clone()
    gradient = torch.func.grad(loss)(before)
    expected = -direction(before, gradient)
    h = 1e-6
    if name == "RiemannianAdam":
        expected = expected / expected.square().mean().sqrt()
    else:
        h = h / float(expected.norm())
    weight.grad = gradient.clone()
    build([weight], h).step()
    slope = (weight.detach() - before) / h
    # Forward differences: off by h/2 times a second derivative, relative to the size of the direction.
    assert float((slope - expected).norm()) < 1e-4 * float(expected.norm())
    # On square matrices both directions agree, on all of them both descend, by their inner product with the gradient.
    change = (float(loss(weight.detach())) - float(loss(before))) / h
    assert change == pytest.approx(float((gradient * expected).sum()), rel=1e-3)
    assert change < 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", UNMIXED)
def test_equal_shapes_are_moved_as_each_alone(name: str, dtype: torch.dtype) -> None:
    # A wide matrix and a tall one, transposed, are one batch too.
    together = [start(shape, seed, dtype) for seed, shape in enumerate([(6, 4), (6, 4), (4, 6), (6, 4, 1, 1)])]
    alone = [nn.Parameter(w.detach().clone()) for w in together]
    torch.manual_seed(0)
    gradients = [torch.randn_like(w) for w in together]
    optimizers = [BUILDERS[name](together, 0.05), *(BUILDERS[name]([w], 0.05) for w in alone)]
    for _ in range(3):
        for group in (together, alone):
            for weight, gradient in zip(group, gradients, strict=True):
                weight.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(together, alone, strict=True):
        # Batched factorisations may round otherwise.
        assert torch.allclose(a, b, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_a_run_resumes_to_the_bit(name: str, dtype: torch.dtype) -> None:
    weights = [start(shape, seed, dtype) for seed, shape in enumerate(SHAPES)]
    torch.manual_seed(0)
    targets = [torch.randn_like(weight) for weight in weights]

    def loss(of: Iterable[Tensor]) -> Tensor:
        return torch.stack([(w - t).square().sum() for w, t in zip(of, targets, strict=True)]).sum()

    optimizer = BUILDERS[name](weights, 0.02)
    run(optimizer, lambda: loss(weights), 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = [nn.Parameter(weight.detach().clone()) for weight in weights]
    # Another rate, which the state brings back.
    other = BUILDERS[name](again, 0.5)
    other.load_state_dict(torch.load(file))
    twin = copy.deepcopy(optimizer)
    copies = twin.param_groups[0]["params"]
    for who, of in ((optimizer, weights), (other, again), (twin, copies)):
        run(who, lambda of=of: loss(of), 3)
    for a, b, c in zip(weights, again, copies, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("name", BUILDERS)
def test_closures_are_called_once_with_gradients_enabled(name: str) -> None:
    weight = parameter(5, 3)
    optimizer, calls = BUILDERS[name]([weight], 0.05), []
    before = weight.detach().clone()

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss

    # torch types losses as floats, and passes on whatever the closure returns.
    loss: Any = optimizer.step(closure)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert float(loss.detach()) == pytest.approx(float((before - 1).square().sum()))
    assert calls == [True]
    assert not torch.equal(weight, before)


@pytest.mark.parametrize("name", BUILDERS)
def test_parameters_without_gradient_rest_and_zero_gradients_move_nothing(name: str) -> None:
    moved, resting = parameter(5, 3, 1), parameter(5, 3, 2)
    optimizer = BUILDERS[name]([moved, resting], 0.05)
    moved.grad = torch.zeros_like(moved)
    before = moved.detach().clone(), resting.detach().clone()
    optimizer.step()
    # A way back to where it is, up to rounding.
    assert torch.allclose(moved, before[0], atol=1e-14)
    assert torch.equal(resting, before[1])


@pytest.mark.parametrize("name", ["RiemannianAdam", "Landing", "ProjUNNT"])
def test_wrappers_go_around(name: str) -> None:
    weight = parameter(6, 4)
    optimizer = SAM(BUILDERS[name]([weight], 0.02), rho=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss

    first = float(closure().detach())
    for _ in range(50):
        optimizer.step(closure)
    assert float(closure().detach()) < first
    # The last step of landing is not over when it stops.
    assert residual(weight) < (0.1 if name == "Landing" else 1e-12)


def embed(matrix: Tensor) -> Tensor:
    """A complex matrix as a real one of twice the size: products and adjoints go along."""
    return torch.cat([torch.cat([matrix.real, -matrix.imag], -1), torch.cat([matrix.imag, matrix.real], -1)], -2)


EMBEDDED: dict[str, tuple[Build, Build]] = {
    **{
        str(r): ((lambda p, lr, r=r: RiemannianSGD(p, lr, 0.5, r)),) * 2
        for r in (CayleyRetraction(), ExponentialRetraction(), PolarRetraction())
    },
    # The norms that make a step safe are larger by the root of two; this one is short enough.
    "Landing": (Landing, Landing),
    "Projected": (BUILDERS["Projected"], BUILDERS["Projected"]),
    # A direction of a complex gradient is two of a real one.
    **{
        kind.__name__: tuple(
            (lambda p, lr, kind=kind, rank=rank: kind(p, lr, rank, directions=LeadingDirections())) for rank in (2, 4)
        )
        for kind in (ProjUNND, ProjUNNT)
    },
}  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize("shape", [(5, 5), (6, 3), (3, 6)])
@pytest.mark.parametrize("name", EMBEDDED)
def test_steps_of_complex_matrices_are_those_of_the_real_ones_they_stand_for(name: str, shape: tuple[int, int]) -> None:
    unitary = parameter(*shape, dtype=torch.complex128)
    real = nn.Parameter(embed(unitary.detach()))
    of_complex, of_real = (build([w], 0.05) for build, w in zip(EMBEDDED[name], (unitary, real), strict=True))
    torch.manual_seed(0)
    for _ in range(4):
        gradient = torch.randn(shape, dtype=torch.complex128)
        unitary.grad, real.grad = gradient, embed(gradient)
        of_complex.step()
        of_real.step()
    # Rounding of a few products and factorisations.
    assert torch.allclose(embed(unitary.detach()), real, atol=1e-12)


@pytest.mark.parametrize("name", BUILDERS)
def test_unitary_matrices_are_learned(name: str) -> None:
    """R11 asks for a thousand steps that stay unitary to 1e-6; min ||U - M||^2 has the solution polar(M)."""
    target = orthonormal(5, 5, 1, torch.complex128) @ torch.diag(torch.linspace(1.0, 2.0, 5)).to(torch.complex128)
    weight = nn.Parameter(orthonormal(5, 5, 2, torch.complex64))
    optimizer = BUILDERS[name]([weight], 0.01 if "Adam" in name else 0.1)
    optimizer.param_groups[0].update({"rank": 5} if "ProjUNN" in name else {})
    run(optimizer, lambda: (weight - target.to(torch.complex64)).abs().square().sum(), 1000)
    # The unitary group is connected: every start leads there. Adam circles with the size of its steps.
    assert float((weight.detach() - polar(target)).norm()) < (0.05 if "Adam" in name else 1e-5)
    assert residual(weight) < 5e-6


def square() -> list[nn.Parameter]:
    return [nn.Parameter(torch.eye(3))]


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        *((lambda b=b: b([nn.Parameter(torch.zeros(3))], 0.1), ShapeError, "matrices") for b in BUILDERS.values()),
        *(
            (lambda b=b: b([nn.Parameter(torch.randn(3, 2, 3, 3))], 0.1), ShapeError, "one tap")
            for b in BUILDERS.values()
        ),
        *(
            (lambda b=b: b([nn.Parameter(torch.full((3, 3), 0.5))], 0.1), ArgumentError, "orthonormal_")
            for b in BUILDERS.values()
        ),
        *(
            (lambda b=b: b(square(), -0.1), ArgumentError, "lr")
            for name, b in BUILDERS.items()
            # Its rate is checked by torch.
            if name != "Projected"
        ),
        *(
            (lambda b=b: b([nn.Parameter(torch.eye(3, dtype=torch.bfloat16))], 0.1), ArgumentError, "float32")
            for b in (RiemannianAdam, Landing, BUILDERS["ProjUNND"])
        ),
        (lambda: RiemannianAdam(square(), betas=(1.0, 0.9)), ArgumentError, r"betas\[0\]"),
        (lambda: RiemannianAdam(square(), betas=(0.9, -0.1)), ArgumentError, r"betas\[1\]"),
        (lambda: RiemannianAdam(square(), eps=0.0), ArgumentError, "eps"),
        (lambda: Landing(square(), 0.1, momentum=1.0), ArgumentError, "momentum"),
        (lambda: Landing(square(), 0.1, attraction=0.0), ArgumentError, "attraction"),
        (lambda: Landing(square(), 0.1, radius=1.0), ArgumentError, "radius"),
        (lambda: Landing([nn.Parameter(1.04 * torch.eye(100))], 0.1), ArgumentError, "0.816"),
        (lambda: ProjUNND(square(), 0.1, rank=0), ArgumentError, "rank"),
        (lambda: ProjUNNT(square(), 0.1, 1, project_every=0), ArgumentError, "project_every"),
        (lambda: ProjUNNT(square(), 0.1, 1, seed=-1), ArgumentError, "seed"),
        (lambda: Projected(torch.optim.SGD(square(), 0.1), every=0), ArgumentError, "every"),
    ],
)
def test_refuses(build: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize("name", [*BUILDERS, "StiefelMuon"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_no_numbers_are_refused_before_anything_moves(name: str, bad: float) -> None:
    weights = [parameter(4, 3), parameter(3, 3)]
    optimizer = BUILDERS.get(name, StiefelMuon)(weights, 0.1)
    before = [w.detach().clone() for w in weights]

    def spoil() -> Tensor:
        weights[0].grad, weights[1].grad = torch.ones(4, 3, dtype=torch.float64), torch.full((3, 3), bad).double()
        return torch.zeros(())

    closure: Any = spoil
    spoil()
    for given in ((), (closure,)):
        with pytest.raises(NonFiniteError, match=r"shape \(3, 3\) is NaN or infinite; lower the learning rate"):
            optimizer.step(*given)
        assert all(torch.equal(w, b) for w, b in zip(weights, before, strict=True))


def test_sparse_gradients_are_refused() -> None:
    weight = parameter(4, 3)
    optimizer = RiemannianAdam([weight])
    weight.grad = torch.ones(4, 3, dtype=torch.float64).to_sparse()
    with pytest.raises(ArgumentError, match="sparse"):
        optimizer.step()


def test_a_group_that_is_refused_is_not_kept() -> None:
    for name, build in BUILDERS.items():
        optimizer = build([parameter(3, 3)], 0.1)
        with pytest.raises(ArgumentError):
            optimizer.add_param_group({"params": torch.nn.Parameter(torch.full((2, 2), 0.3))})
        assert len(optimizer.param_groups) == 1, name
        optimizer.add_param_group({"params": parameter(4, 2)})
        assert len(optimizer.param_groups) == 2, name
