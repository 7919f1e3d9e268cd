"""The Hessian of a loss: quadratics exactly, models against `torch.func.hessian`, and what it refuses."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import analysis, norms, spectral_norm
from lipkit.analysis import Hessian
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NonFiniteError, UnsupportedError
from lipkit.linops import materialize
from support.unchecked import unchecked

# Forward mode of torch loads what it has written in TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3)
    return nn.Sequential(*layers).double().eval()


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64, generator=source)
    return x, torch.randint(0, 3, (5,), generator=source)


def reference(model: nn.Module, x: Tensor, y: Tensor, names: list[str]) -> Tensor:
    """The dense Hessian by torch.func, forward over reverse."""
    held = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [held[name].numel() for name in names]

    def value(flat: Tensor) -> Tensor:
        parts = {name: part.reshape(held[name].shape) for name, part in zip(names, flat.split(sizes), strict=True)}
        return functional.cross_entropy(torch.func.functional_call(model, {**held, **parts}, (x,)), y)

    flat = torch.cat([held[name].flatten() for name in names])
    found = torch.func.hessian(value)(flat)
    assert isinstance(found, Tensor)
    return found


class Quadratic(nn.Module):
    """theta -> theta' M theta / 2, whatever the input is."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.arange(len(matrix), dtype=matrix.dtype))
        self.register_buffer("matrix", matrix)
        self.matrix: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.theta @ self.matrix @ self.theta / 2 + 0 * x.sum()


def quadratic(n: int = 12, seed: int = 0) -> tuple[Hessian, Tensor]:
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    matrix = (matrix + matrix.mT) / 2
    data = torch.ones(1, dtype=torch.float64), torch.ones(1)
    return Hessian(Quadratic(matrix), lambda out, _: out, data), matrix


def test_a_quadratic_has_its_matrix():
    hessian, matrix = quadratic()
    assert torch.allclose(materialize(hessian), matrix, rtol=0, atol=1e-14)
    values = torch.linalg.eigvalsh(matrix)
    ends = analysis.extreme_eigenvalues(hessian)
    # Twelve steps span the whole space.
    assert ends.smallest == pytest.approx(float(values[0]), abs=1e-10)
    assert ends.largest == pytest.approx(float(values[-1]), abs=1e-10)
    assert ends.norm == pytest.approx(float(values.abs().max()), abs=1e-10)
    for value, vector in zip((ends.smallest, ends.largest), ends.vectors, strict=True):
        assert torch.allclose(matrix @ vector, value * vector, atol=1e-6)


def test_products_are_those_of_the_dense_hessian():
    model, (x, y) = small_model(), batch()
    hessian = Hessian(model, nn.CrossEntropyLoss(), (x, y))
    dense = reference(model, x, y, [name for name, _ in model.named_parameters()])
    # Two ways through the same model in float64.
    assert torch.allclose(materialize(hessian), dense, rtol=0, atol=1e-13)
    v = torch.randn(2, 3, hessian.in_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(hessian.apply(v), v @ dense, atol=1e-12)
    assert torch.allclose(hessian.adjoint(v), v @ dense, atol=1e-12)
    assert hessian.apply(v[:0]).shape == v[:0].shape
    assert float(hessian.value()) == pytest.approx(float(functional.cross_entropy(model(x), y).detach()), rel=1e-14)


def test_layers_are_diagonal_blocks():
    model, (x, y) = small_model(), batch()
    for layers, names in ((["4"], ["4.weight", "4.bias"]), (["0.weight", "6"], ["0.weight", "6.weight", "6.bias"])):
        hessian = Hessian(model, functional.cross_entropy, (x, y), layers=layers)
        assert torch.allclose(materialize(hessian), reference(model, x, y, names), rtol=0, atol=1e-13)


def test_a_weight_that_changes_changes_the_operator():
    model, data = small_model(), batch()
    hessian = Hessian(model, functional.cross_entropy, data)
    before = materialize(hessian)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    after = reference(model, *data, [name for name, _ in model.named_parameters()])
    assert torch.allclose(materialize(hessian), after, rtol=0, atol=1e-12)
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize(
    "method",
    [norms.SVD(), norms.Auto(), norms.Frobenius(), norms.Cholesky(), norms.Power(), norms.Lanczos(), norms.Gram()],
    ids=str,
)
def test_every_norm_takes_it_and_none_certifies(method: norms.Norm):
    hessian, matrix = quadratic()
    bound = method(hessian)
    assert bound.kind is Kind.ESTIMATE
    assert bound.lower is None
    assert "not bounded" in bound.note
    truth = float(torch.linalg.matrix_norm(matrix, 2))
    largest = float(torch.linalg.matrix_norm(matrix)) if isinstance(method, norms.Frobenius) else 1.02 * truth
    assert 0.9 * truth < float(bound.value) <= largest * (1 + 1e-9)
    assert method.many([hessian, hessian])[1].kind is Kind.ESTIMATE


def test_a_single_precision_model_is_measured_in_double_precision():
    model, (x, y) = small_model(), batch()
    truth = torch.linalg.matrix_norm(reference(model, x, y, [name for name, _ in model.named_parameters()]), 2)
    single = Hessian(model.float(), nn.CrossEntropyLoss(weight=torch.ones(3)), (x.float(), y))
    assert single.dtype == torch.float32
    assert single.apply(torch.ones(single.in_size)).dtype == torch.float32
    # Data and weights are rounded to single precision, nothing else.
    assert float(spectral_norm(single).value) == pytest.approx(float(truth), rel=1e-5)


def test_the_relative_hessian_does_not_see_a_rescaled_neuron():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randint(0, 3, (7,))
    hessian = Hessian(model, functional.cross_entropy, (x, y))
    plain, relative = materialize(hessian), materialize(analysis.relative_hessian(hessian))
    with torch.no_grad():
        first, last = model[0], model[2]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        first.weight[2] *= 10
        first.bias[2] *= 10
        last.weight[:, 2] /= 10
    moved = materialize(analysis.relative_hessian(hessian))
    assert torch.allclose(torch.linalg.eigvalsh(moved), torch.linalg.eigvalsh(relative), atol=1e-12)
    assert float((materialize(hessian).trace() - plain.trace()).abs()) > 0.1
    assert spectral_norm(analysis.relative_hessian(hessian)).kind is Kind.ESTIMATE


def test_attention_has_a_hessian():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    hessian = Hessian(model, functional.mse_loss, (x, torch.zeros_like(x)), layers=["self_attn.out_proj"])
    dense = materialize(hessian)
    assert torch.allclose(dense, dense.mT, atol=1e-13)
    assert float(dense.abs().max()) > 0


def test_a_linear_loss_has_none_left():
    torch.manual_seed(0)
    x = torch.randn(3, 2)
    hessian = Hessian(nn.Linear(2, 2), lambda out, _: out.sum(), (x, x))
    assert not bool(hessian.apply(torch.ones(hessian.in_size)).any())


def test_what_has_no_hessian_is_refused():
    x, y = batch()
    with pytest.raises(UnsupportedError, match=r"2 \(BatchNorm2d\) is in training mode"):
        Hessian(small_model().train(), functional.cross_entropy, (x, y))
    noisy = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    with pytest.raises(UnsupportedError, match="random"):
        Hessian(noisy, functional.cross_entropy, (x, y))
    with unchecked(), pytest.raises(ArgumentError, match="must be a number"):
        Hessian(small_model(), nn.CrossEntropyLoss(reduction="none"), (x, y))
    with pytest.raises(NonFiniteError, match="nan"):
        Hessian(small_model(), functional.cross_entropy, (x * float("nan"), y))
    with pytest.raises(ArgumentError, match="no layer 'head'"):
        Hessian(small_model(), functional.cross_entropy, (x, y), layers=["head"])
    with pytest.raises(ArgumentError, match="requires gradients"):
        Hessian(small_model().requires_grad_(False), functional.cross_entropy, (x, y))


@pytest.mark.parametrize("layers", [None, ["4"]], ids=["all", "one layer"])
def test_products_are_those_of_curvlinops(layers: list[str] | None):
    peer = pytest.importorskip("curvlinops", reason="curvlinops-for-pytorch is not installed")
    model, (x, y) = small_model(), batch()
    ours = Hessian(model, nn.CrossEntropyLoss(), (x, y), layers=layers)
    chosen = [p for name, p in model.named_parameters() if layers is None or name.split(".")[0] in layers]
    theirs = peer.HessianLinearOperator(model, nn.CrossEntropyLoss(), chosen, [(x, y)])
    vectors = torch.randn(4, ours.in_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    # Two double backward passes through one model in float64.
    torch.testing.assert_close(ours.apply(vectors), torch.stack([theirs @ v for v in vectors]), rtol=0, atol=1e-13)
