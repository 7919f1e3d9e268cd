"""A hundred thousand records over the layers of the library: none has a gradient above its limit, in float32 too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import losses, privacy
from lipkit.errors import UnsupportedError
from lipkit.nn.networks import mixer
from support.record_gradients import climb, drawn_records, gradient_norms, largest_ratios, natural_records

RADIUS = 2.0
IMAGE = (2, 6, 6)
SQUARE = (1, 8, 8)
CUBE = (2, 4, 4, 4)
CLASSES = 3
# Records of one model in the long test: 4,000 of them times 36 models.
MANY, PIECE, CLIMBING = 4_000, 500, 60


def images(*parts: nn.Module, shape: tuple[int, ...] = IMAGE) -> nn.Module:
    """Parts on images, then a head for three classes."""
    body = nn.Sequential(*parts, nn.Flatten())
    size = body(torch.zeros(2, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(size, CLASSES))


def vectors(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts, nn.Linear(6, CLASSES))


def turning(method: lnn.WeightMethod) -> nn.Module:
    """A convolution on a torus that a method makes orthogonal."""
    return images(lnn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", method=method), lnn.MaxMin())


def sequences(part: nn.Module, size: int) -> nn.Module:
    """A part on five tokens of four numbers, then a head."""
    return nn.Sequential(part, nn.Flatten(), nn.Linear(5 * size, CLASSES))


def frozen(part: nn.Module) -> nn.Module:
    return part.requires_grad_(False)


Made = tuple[Callable[[], nn.Module], tuple[int, ...]]
MODELS: dict[str, Made] = {
    "aol": (lambda: vectors(lnn.Linear(5, 6, method=lnn.AOL()), nn.ReLU()), (5,)),
    "cayley": (lambda: vectors(lnn.Linear(5, 6, method=lnn.Cayley()), nn.GELU()), (5,)),
    "spectral": (lambda: vectors(lnn.Linear(5, 6, method=lnn.Spectral()), lnn.FullSort()), (5,)),
    "unit rows": (lambda: vectors(lnn.Linear(5, 6, method=lnn.UnitRows()), lnn.Absolute()), (5,)),
    "sll": (lambda: nn.Sequential(lnn.SLL(5, 6), nn.Linear(5, CLASSES)), (5,)),
    "centered": (lambda: vectors(lnn.Linear(5, 6), lnn.LayerCentering(), lnn.MaxMin()), (5,)),
    "layer norm": (lambda: vectors(nn.Linear(5, 6), nn.LayerNorm(6, eps=0.1)), (5,)),
    "softmax": (lambda: vectors(nn.Linear(5, 6), nn.Softmax(1)), (5,)),
    "half residual": (lambda: vectors(nn.Linear(5, 6), lnn.ScaledResidual(lnn.Linear(6, 6)), lnn.MaxMin()), (5,)),
    "share": (lambda: vectors(nn.Linear(5, 6), lnn.ConvexResidual(lnn.Linear(6, 6)), lnn.MaxMin()), (5,)),
    "aol kernels": (lambda: images(lnn.Conv2d(2, 3, 3, padding=1, method=lnn.AOL()), nn.ReLU()), IMAGE),
    "rko": (lambda: images(lnn.Conv2d(2, 4, 3, padding=1, method=lnn.RKO()), lnn.MaxMin()), IMAGE),
    "bcop": (
        lambda: images(lnn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", method=lnn.BCOP()), lnn.MaxMin()),
        IMAGE,
    ),
    "aoc": (lambda: images(lnn.Conv2d(2, 4, 3, padding=1, method=lnn.AOC()), lnn.MaxMin()), IMAGE),
    "soc": (lambda: images(lnn.Conv2d(2, 4, 3, padding=1, method=lnn.SOC()), lnn.MaxMin()), IMAGE),
    "soc with a step": (
        lambda: images(lnn.Conv2d(2, 4, 3, 2, padding=1, padding_mode="circular", method=lnn.SOC()), lnn.MaxMin()),
        IMAGE,
    ),
    "cpl kernels": (lambda: images(lnn.CPLConv(2, 3)), IMAGE),
    "shifts": (lambda: images(nn.Conv2d(2, 8, 1), lnn.ShiftBlock(8)), IMAGE),
    "mean pool": (lambda: images(nn.Conv2d(2, 3, 3, padding=1), lnn.ScaledAvgPool2d(2), nn.ReLU()), IMAGE),
    "root pool": (lambda: images(nn.Conv2d(2, 3, 3, padding=1), lnn.L2NormPool2d(2)), IMAGE),
    "largest pool": (lambda: images(nn.Conv2d(2, 3, 3, padding=1), lnn.MaxPool2d(2)), IMAGE),
    "channels": (lambda: images(lnn.Conv2d(2, 4, 3, padding=1), lnn.LayerCentering(), lnn.MaxMin()), IMAGE),
    "space to depth": (lambda: images(lnn.SpaceToDepth(2), lnn.Conv2d(8, 4, 1), lnn.MaxMin()), IMAGE),
    "scattering": (lambda: images(frozen(lnn.Scattering2d(8, 2, 4)), shape=SQUARE), SQUARE),
    "lot": (lambda: turning(lnn.LOT((6, 6))), IMAGE),
    "bro": (lambda: turning(lnn.BRO((6, 6))), IMAGE),
    "fourier cayley": (lambda: turning(lnn.FourierCayley((6, 6))), IMAGE),
    "householder": (lambda: vectors(lnn.Linear(5, 6, method=lnn.Householder()), lnn.MaxMin()), (5,)),
    "transposed": (lambda: images(lnn.ConvTranspose2d(2, 2, 2, stride=2), lnn.MaxMin()), IMAGE),
    "transposed of torch": (lambda: images(nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1), nn.ReLU()), IMAGE),
    "one axis": (lambda: images(lnn.Conv1d(2, 4, 3, padding=1), lnn.MaxMin(), shape=(2, 9)), (2, 9)),
    "three axes": (lambda: images(lnn.Conv3d(2, 4, 3, padding=1), lnn.MaxMin(), shape=CUBE), CUBE),
    "contractive": (lambda: vectors(nn.Linear(5, 6), lnn.ContractiveStep(6)), (5,)),
    "contractive kernels": (lambda: images(lnn.ContractiveStepConv(2, 3)), IMAGE),
    "weighted residual": (lambda: vectors(nn.Linear(5, 6), lnn.WeightedResidual(lnn.Linear(6, 6)), lnn.MaxMin()), (5,)),
    "mixer": (lambda: mixer(SQUARE, CLASSES, patch=4, channels=4, depth=1, width=4), SQUARE),
}
# torch has no second derivative of these under vmap, which a climb needs.
NO_CLIMB = {"largest pool"}


def hardest(plain: nn.Module, x: Tensor) -> Tensor:
    """The least likely class of each record, whose gradient is the largest."""
    with torch.no_grad():
        return torch.cat([plain(part) for part in x.split(PIECE)]).argmin(1)


@pytest.mark.parametrize("count", [pytest.param(80, id="80"), pytest.param(MANY, id=f"{MANY}", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_no_record_is_above_its_limit(name: str, count: int):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, loss, inputs = make(), losses.TauCrossEntropy(tau=3.0), privacy.Inputs(shape, RADIUS)
    limits = privacy.sensitivity(model, loss, inputs)
    plain = lnn.condense(model)
    x = torch.cat([made(shape, RADIUS, count // 2, torch.float32) for made in (drawn_records, natural_records)])
    if count == MANY and name not in NO_CLIMB:
        start = x[:: len(x) // CLIMBING][:CLIMBING]
        y = hardest(plain, start)
        risen = climb(lambda at: gradient_norms(plain, loss, at, y), start, RADIUS, steps=10)
        x[:CLIMBING] = inputs(risen)
    x = inputs(x)
    y = hardest(plain, x)
    found = [gradient_norms(plain, loss, *part) for part in zip(x.split(PIECE), y.split(PIECE), strict=True)]
    norms = {name: torch.cat([one[name] for one in found]).nan_to_num(0.0) for name in limits}
    ratios = largest_ratios(limits, norms)
    assert max(ratios.values()) <= 1, ratios
    # A limit that nothing comes near would pass whatever is wrong.
    assert max(ratios.values()) > 0.1, ratios
    together = torch.stack(list(norms.values())).square().sum(0).sqrt().max()
    assert float(together) <= float(limits.total.value)


def test_the_long_test_has_a_hundred_thousand_records():
    assert len(MODELS) * MANY >= 100_000


def evaluated_batch_norm() -> nn.Module:
    """A batch norm with trained weight and bias, and statistics that are not the usual ones."""
    norm = nn.BatchNorm2d(2)
    assert norm.running_mean is not None
    norm.running_mean.fill_(0.3)
    return images(nn.Conv2d(2, 2, 3, padding=1), norm, nn.ReLU()).eval()


# What has no limits, and the name by which it is refused.
WITHOUT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "sandwich": (lambda: vectors(lnn.Sandwich(5, 6)), (5,), "0.log_psi"),
    "sandwich kernels": (lambda: images(lnn.SandwichConv(2, 3, 3)), IMAGE, "0.log_psi"),
    "folded": (lambda: vectors(lnn.Linear(5, 6), lnn.HouseholderActivation(6)), (5,), "1.angles"),
    "attention of distances": (lambda: sequences(lnn.L2Attention(4, 2), 4), (5, 4), "0.log_scale"),
    "attention of cosines": (lambda: sequences(lnn.CosineAttention(4, 2), 4), (5, 4), "cosine_attention"),
    "recurrent": (lambda: sequences(lnn.RNN(4, 6), 6), (5, 4), "0.steps.0.linear.weight"),
    "recurrent and orthogonal": (lambda: sequences(lnn.OrthogonalRNN(4, 6), 6), (5, 4), "0.steps.0.state.weight"),
    "batch norm": (evaluated_batch_norm, IMAGE, "1.bias, 1.weight"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_limits_is_refused_by_name(name: str):
    torch.manual_seed(0)
    make, shape, said = WITHOUT[name]
    with pytest.raises(UnsupportedError, match=said):
        privacy.sensitivity(make(), losses.TauCrossEntropy(tau=3.0), privacy.Inputs(shape, RADIUS))
