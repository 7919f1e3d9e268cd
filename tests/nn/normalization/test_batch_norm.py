"""Normalisation layers: projectors, clipped scales, and what holds for a batch in training."""

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.normalization.batch_norm import BatchCentering, BatchNorm, CenterNorm, LayerCentering
from lipkit.nn.normalization.one_batch_norm import one_batch_norm
from support.jacobians import jacobian, norm_at

# A dense decomposition in float64 is off by some units of 2^-53.
ROUNDING = 1 + 1e-13


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, -1, (1, 2), (2, 3)])
def test_layer_centering_is_a_projector(dim: int | tuple[int, ...]):
    matrix = jacobian(LayerCentering(dim), points(1, 3, 2, 4))
    # The entries are sums of a few numbers near 1/n.
    assert torch.allclose(matrix @ matrix, matrix, atol=1e-14)
    assert torch.allclose(matrix, matrix.mT, atol=1e-14)
    singular = torch.linalg.svdvals(matrix)
    assert float(singular.max()) == pytest.approx(1, rel=1e-13)


def test_center_norm_has_constant_one_where_the_published_one_has_more():
    d = 5
    module = CenterNorm(d).double()
    x = points(1, d)
    assert norm_at(module, x) == pytest.approx(1, rel=1e-13)

    class Published(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return d / (d - 1) * (x - x.mean(-1, keepdim=True))

    assert norm_at(Published(), x) == pytest.approx(d / (d - 1), rel=1e-13)
    module.weight.data.copy_(10 * points(d))
    assert norm_at(module, x) <= ROUNDING
    assert CenterNorm(1)(torch.ones(1, 1)).tolist() == [[0.0]]


def moved(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with large parameters and statistics of all sizes."""
    for parameter in module.parameters():
        parameter.data.copy_(4 * points(*parameter.shape, seed=seed))
    for name, buffer in module.named_buffers():
        buffer.copy_(points(*buffer.shape, seed=seed + 1).exp() if name == "running_var" else points(*buffer.shape))
    return module.double()


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 4), (1, 3, 2, 2), (1, 3, 2, 2, 1)])
@pytest.mark.parametrize("build", [BatchCentering, BatchNorm])
def test_batch_layers_have_constant_one_in_evaluation(build: type[nn.Module], shape: tuple[int, ...]):
    for seed in range(4):
        assert norm_at(moved(build(3), seed).eval(), points(*shape)) <= ROUNDING


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 3), (2, 3, 2, 2)])
@pytest.mark.parametrize("build", [BatchCentering, BatchNorm])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 4.0, 100.0])
def test_in_training_the_whole_batch_is_one_input(build: type[nn.Module], shape: tuple[int, ...], scale: float):
    """The Jacobian of all outputs in all samples, statistics included."""
    for seed in range(3):
        assert norm_at(moved(build(3), seed).train(), scale * points(*shape, seed=seed)) <= ROUNDING


def test_plain_batch_normalisation_would_expand():
    x = 0.1 * points(8, 3)
    assert norm_at(nn.BatchNorm1d(3).double(), x) > 5
    assert norm_at(BatchNorm(3).double(), x) <= ROUNDING


def test_unclipped_batch_norm_is_torchs():
    x = 3 * points(50, 3, 4)
    ours, theirs = BatchNorm(3).double(), nn.BatchNorm1d(3).double()
    weight = torch.tensor([0.5, -0.3, 0.9]).double()
    for module in (ours, theirs):
        module.weight.data.copy_(weight)
        module.bias.data.copy_(weight + 1)
    # All deviations are near 3, so nothing is clipped; the same formula in another order.
    assert torch.allclose(ours(x), theirs(x), atol=1e-12)
    # torch's running variance is larger by n / (n - 1), n = 200, and moves by a tenth.
    assert torch.allclose(ours.running_var, theirs.get_buffer("running_var"), rtol=1e-2)
    assert torch.allclose(ours.running_mean, theirs.get_buffer("running_mean"), atol=1e-12)


def test_statistics_follow_the_batches_and_evaluation_writes_nothing():
    for build in (BatchCentering, BatchNorm):
        module = build(3, momentum=1.0).double()
        x = 2 + points(64, 3)
        module.train()(x)
        assert torch.allclose(module.running_mean, x.mean(0), atol=1e-14)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        module.eval()
        assert torch.equal(module(x), module(x))
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
        assert torch.allclose(module(x).mean(0), torch.zeros(3).double(), atol=1e-14)


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="shape"):
        BatchNorm(3)(torch.zeros(2, 4))
    with pytest.raises(ShapeError, match="shape"):
        BatchCentering(3)(torch.zeros(3))
    with pytest.raises(ShapeError, match="shape"):
        CenterNorm(3)(torch.zeros(2, 4))
    with pytest.raises(ArgumentError, match="momentum"):
        BatchNorm(3, momentum=0.0)


def test_one_batch_norm_is_left_in_front_of_the_last_dense_layer():
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)),
    )
    lean = one_batch_norm(model)
    kinds = [type(module) for module in lean.modules()]
    assert kinds.count(BatchNorm) == 1
    assert not {nn.BatchNorm1d, nn.BatchNorm2d} & set(kinds)
    last = lean.get_submodule("7")
    assert isinstance(last, nn.Sequential)
    assert isinstance(last[0], BatchNorm)
    assert lean(torch.randn(4, 1, 4, 4)).shape == (4, 2)
    assert sum(isinstance(m, nn.BatchNorm1d) for m in one_batch_norm(model, bounded=False).modules()) == 1
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 1
    with pytest.raises(UnsupportedError, match=r"no nn\.Linear"):
        one_batch_norm(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize("mode", [True, False])
def test_derivatives_and_number_types(mode: bool):
    for module in (LayerCentering(), CenterNorm(3), BatchCentering(3), BatchNorm(3)):
        module.train(mode)
        assert module.bfloat16()(points(5, 3).bfloat16()).dtype == torch.bfloat16
        module = moved(module)
        x = points(5, 3).requires_grad_()
        assert torch.autograd.gradcheck(module, x)
        assert torch.autograd.gradgradcheck(module, x)
    for module in (LayerCentering(), CenterNorm(3), BatchCentering(3).eval(), BatchNorm(3).eval()):
        each = torch.func.vmap(lambda one, m=module: m(one[None])[0])(points(4, 3).float())
        assert torch.allclose(each, module(points(4, 3).float()), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (4,), (4, 3), (2, 3, 4)])
def test_batch_layers_say_which_shapes_they_take(shape: tuple[int, ...]):
    for build in (BatchCentering, BatchNorm):
        for training in (True, False):
            with pytest.raises(
                ShapeError, match=r"takes batches \(batch, 4, \.\.\.\), so give one vector as x\[None\]"
            ):
                build(4).train(training)(torch.zeros(shape))
