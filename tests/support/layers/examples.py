"""Every method and every layer of lipkit.nn, with what the conformance suite needs to build one."""

import math
from collections.abc import Callable

from torch import nn

from lipkit import nn as lnn
from lipkit.bound import Metric
from lipkit.errors import UnsupportedError
from lipkit.linops import Shape
from lipkit.nn import RescaledSide, WeightMethod, convex
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods.fourier._base import FourierMethod
from lipkit.nn.methods.qr import QRFactorization

# For processes of their own: one thread, and no matrix tiles, which some virtual machines announce and cannot execute.
QUIET = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}

METHODS: dict[type[WeightMethod], tuple[WeightMethod, ...]] = {
    lnn.AOC: (lnn.AOC(), lnn.AOC(lnn.Cayley())),
    lnn.AOL: (lnn.AOL(), lnn.AOL(RescaledSide.SMALLER)),
    lnn.BCOP: (lnn.BCOP(),),
    lnn.Bjorck: (lnn.Bjorck(), lnn.Bjorck(steps=3)),
    lnn.BRO: (lnn.BRO((4, 4)), lnn.BRO((5,), rank=1)),
    lnn.Cayley: (lnn.Cayley(),),
    lnn.Clip: (lnn.Clip(),),
    lnn.Exponential: (lnn.Exponential(),),
    lnn.FourierCayley: (lnn.FourierCayley((4, 4)), lnn.FourierCayley((5,))),
    lnn.Frobenius: (lnn.Frobenius(),),
    lnn.Householder: (lnn.Householder(),),
    lnn.LinearResidual: (lnn.LinearResidual(),),
    lnn.LOT: (lnn.LOT((4, 4)), lnn.LOT((5,)), lnn.LOT((2, 3, 2))),
    lnn.LpBall: (lnn.LpBall(),),
    lnn.NewtonSchulz: (lnn.NewtonSchulz(),),
    convex.NonNegative: tuple(map(convex.NonNegative, convex.NonNegativeMap)),
    convex.Orthostochastic: (convex.Orthostochastic(),),
    lnn.Polar: (lnn.Polar(),),
    lnn.QR: tuple(map(lnn.QR, QRFactorization)),
    lnn.Rescale: (lnn.Rescale(), lnn.Rescale(3)),
    lnn.RKO: (lnn.RKO(), lnn.RKO(lnn.Cayley())),
    lnn.SingularClip: (lnn.SingularClip(),),
    lnn.SOC: (lnn.SOC(),),
    lnn.Spectral: (lnn.Spectral(),),
    convex.Stochastic: (convex.Stochastic(), convex.Stochastic(None)),
    lnn.UnitLines: tuple(
        lnn.UnitLines(m) for m in (Metric(2.0, math.inf), Metric(math.inf, math.inf), Metric(1.0, 1.0))
    ),
    lnn.UnitRows: (lnn.UnitRows(),),
}
EVERY = [method for some in METHODS.values() for method in some]
# Those that also make unitary weights, from complex numbers.
UNITARY = [method for method in EVERY if method.takes_complex]
# Other settings of the same code, for sweeps that do not take long.
FURTHER: tuple[WeightMethod, ...] = (lnn.Rescale(2, RescaledSide.SMALLER), lnn.Spectral(steps=2, slack=0.2))


def covers(method: WeightMethod, kernel: bool) -> bool:
    """Whether the method takes kernels with several taps (True) or matrices (False)."""
    shape = (1, 2, 2, 3) if kernel else (1, 2, 2)
    geometry = Geometry(*shape[:3], shape[3:], (1,) * kernel, ((1, 1),) * kernel, (1,) * kernel)
    try:
        method.promise(geometry)
    except UnsupportedError:
        return False
    return True


def _with(method: WeightMethod) -> tuple[nn.Module, Shape]:
    if covers(method, kernel=False):
        return lnn.Linear(6, 6, method=method), (6,)
    if isinstance(method, FourierMethod):
        kind = (lnn.Conv1d, lnn.Conv2d, lnn.Conv3d)[len(method.in_size) - 1]
        return kind(2, 4, 3, padding=1, padding_mode="circular", method=method), (2, *method.in_size)
    return lnn.Conv1d(2, 4, 3, padding=1, method=method), (2, 5)


def _in_another_geometry(method: WeightMethod) -> tuple[nn.Module, Shape]:
    """Groups, and either dilation around a circle or the adjoint of a stride, around one where it can be."""
    if isinstance(method, FourierMethod):
        kind = (lnn.Conv1d, lnn.Conv2d, lnn.Conv3d)[len(method.in_size) - 1]
        walk = (3, 1, "same", 2, 2, True, "circular")
        return kind(4, 2, *walk, method=method), (4, *method.in_size)
    # Rows of norm one say nothing of an image that a kernel is wrapped around.
    mode = "zeros" if isinstance(method, lnn.UnitLines | lnn.UnitRows) else "circular"
    walk = (3, 2, 1, 1, 2, True, 1, mode)
    return lnn.ConvTranspose2d(4, 4, *walk, method=method), (4, 2, 2)


# One layer of each method for kernels, in a second geometry.
SECOND: dict[str, Callable[[], tuple[nn.Module, Shape]]] = {
    f"{first} in another geometry": lambda first=first: _in_another_geometry(first)
    for first, *_ in METHODS.values()
    if isinstance(first, FourierMethod) or covers(first, kernel=True)
}

IMAGE = (4, 6, 6)
_FAST = lnn.Frobenius()


def _bent(features: int) -> nn.Module:
    return nn.Sequential(lnn.Linear(features, features, method=_FAST), nn.Tanh())


# A small instance of every layer that is not a method, and the shape of one input.
PARTS: dict[str, Callable[[], tuple[nn.Module, Shape]]] = {
    "Linear": lambda: (lnn.Linear(5, 3), (5,)),
    "Conv1d": lambda: (lnn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), (2, 6)),
    "Conv2d": lambda: (lnn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 6, 6)),
    "Conv3d": lambda: (lnn.Conv3d(1, 2, 2, groups=1), (1, 3, 3, 3)),
    "ConvTranspose1d": lambda: (lnn.ConvTranspose1d(4, 2, 3, stride=2), (4, 3)),
    "ConvTranspose2d": lambda: (lnn.ConvTranspose2d(4, 2, 3, stride=2, padding=1), (4, 3, 3)),
    "ConvTranspose2d of circular borders": lambda: (
        lnn.ConvTranspose2d(4, 2, 3, 2, 1, 1, padding_mode="circular"),
        (4, 3, 3),
    ),
    "ConvTranspose3d": lambda: (lnn.ConvTranspose3d(2, 1, 2), (2, 2, 2, 2)),
    "CPL": lambda: (lnn.CPL(5, 7), (5,)),
    "CPLConv": lambda: (lnn.CPLConv(2, (3, 3), 3), (2, 4, 4)),
    "SLL": lambda: (lnn.SLL(5, 7), (5,)),
    "SLLConv": lambda: (lnn.SLLConv(2, (3, 3), 3), (2, 4, 4)),
    "SqrtRho": lambda: (lnn.SqrtRho(5, 0.5), (5,)),
    "SqrtRhoConv": lambda: (lnn.SqrtRhoConv(2, (3, 3), 2.0, 3), (2, 4, 4)),
    "Sandwich": lambda: (lnn.Sandwich(5, 3), (5,)),
    "Sandwich of other methods": lambda: (lnn.Sandwich(4, 6, 5, activation=nn.Tanh(), method=_FAST), (4,)),
    "SandwichConv": lambda: (lnn.SandwichConv(2, 3, (3, 3)), (2, 4, 4)),
    "ContractiveStep": lambda: (lnn.ContractiveStep(5, 7, 0.5), (5,)),
    "ContractiveStepConv": lambda: (lnn.ContractiveStepConv(2, (3, 3), 3), (2, 4, 4)),
    "InvertibleResidual": lambda: (lnn.InvertibleResidual(_bent(5)), (5,)),
    "InvertibleSequential": lambda: (
        lnn.InvertibleSequential(lnn.InvertibleResidual(_bent(4)), lnn.InvertibleResidual(nn.Tanh(), 0.5)),
        (4,),
    ),
    "ConvexGradient": lambda: (convex.ConvexGradient(5, 7), (5,)),
    "SymmetricCirculant": lambda: (convex.SymmetricCirculant(6), (6,)),
    "SymmetricCirculant of odd length": lambda: (convex.SymmetricCirculant(5, monotone=True), (5,)),
    "RigidWarp": lambda: (lnn.RigidWarp(0.4, (0.2, -0.1)), IMAGE),
    "ShiftBlock": lambda: (lnn.ShiftBlock(16), (16, 3, 3)),
    "Absolute": lambda: (lnn.Absolute(), IMAGE),
    "MaxMin": lambda: (lnn.MaxMin(), IMAGE),
    "MaxMin of halves": lambda: (lnn.MaxMin(lnn.ChannelPairing.HALVES), IMAGE),
    "OPLU": lambda: (lnn.OPLU(), IMAGE),
    "FullSort": lambda: (lnn.FullSort(), IMAGE),
    "GroupSort": lambda: (lnn.GroupSort(4), IMAGE),
    "HouseholderActivation": lambda: (lnn.HouseholderActivation(4), IMAGE),
    "HouseholderActivation of order 2": lambda: (lnn.HouseholderActivation(4, order=2), IMAGE),
    "ModReLU": lambda: (lnn.ModReLU(4), IMAGE),
    "PReLU": lambda: (lnn.PReLU(4), IMAGE),
    "Spline": lambda: (lnn.Spline(4), IMAGE),
    "LipSwish": lambda: (lnn.LipSwish(), IMAGE),
    "CLipSwish": lambda: (lnn.CLipSwish(), IMAGE),
    "GELU": lambda: (lnn.GELU(), IMAGE),
    "SiLU": lambda: (lnn.SiLU(), IMAGE),
    "Mish": lambda: (lnn.Mish(), IMAGE),
    "Softplus": lambda: (lnn.Softplus(), IMAGE),
    "TriangularStairs": lambda: (lnn.TriangularStairs(0.5), IMAGE),
    "Rescaled": lambda: (lnn.Rescaled(nn.GELU()), IMAGE),
    "ScaledAvgPool1d": lambda: (lnn.ScaledAvgPool1d(3, 2, 1), (2, 8)),
    "ScaledAvgPool3d": lambda: (lnn.ScaledAvgPool3d(2), (1, 4, 4, 4)),
    "L2NormPool1d": lambda: (lnn.L2NormPool1d(3, 1), (2, 8)),
    "L2NormPool3d": lambda: (lnn.L2NormPool3d(2), (1, 4, 4, 4)),
    "MaxPool1d": lambda: (lnn.MaxPool1d(3, 2), (2, 8)),
    "MaxPool3d": lambda: (lnn.MaxPool3d(2), (1, 4, 4, 4)),
    "ScaledAvgPool2d": lambda: (lnn.ScaledAvgPool2d(2), IMAGE),
    "L2NormPool2d": lambda: (lnn.L2NormPool2d(2), IMAGE),
    "MaxPool2d": lambda: (lnn.MaxPool2d(3, 2, 1), IMAGE),
    "GlobalAvgPool": lambda: (lnn.GlobalAvgPool(), IMAGE),
    "AdaptiveAvgPool": lambda: (lnn.AdaptiveAvgPool((4, 3)), (2, 7, 6)),
    "AdaptiveL2NormPool": lambda: (lnn.AdaptiveL2NormPool(4), (2, 7, 6)),
    "GlobalL2NormPool": lambda: (lnn.GlobalL2NormPool(), IMAGE),
    "Scattering2d": lambda: (lnn.Scattering2d((4, 8), 2, 3), (2, 4, 8)),
    "BorderPad": lambda: (lnn.BorderPad(2), IMAGE),
    "SpaceToDepth": lambda: (lnn.SpaceToDepth(2), IMAGE),
    "DepthToSpace": lambda: (lnn.DepthToSpace(2), IMAGE),
    "LayerCentering": lambda: (lnn.LayerCentering(), IMAGE),
    "CenterNorm": lambda: (lnn.CenterNorm(5), (5,)),
    "BatchCentering": lambda: (lnn.BatchCentering(4), IMAGE),
    "BatchNorm": lambda: (lnn.BatchNorm(4), IMAGE),
    # Its scale follows the batches before, so that a second call in training would differ by its momentum.
    "CommonBatchNorm": lambda: (lnn.CommonBatchNorm(4, momentum=1e-6), IMAGE),
    "Normalize": lambda: (lnn.Normalize([0.4, 0.5, 0.6, 0.5], [0.2, 0.3, 0.25, 0.3]), IMAGE),
    "Scale": lambda: (lnn.Scale(0.3), IMAGE),
    "L2Attention": lambda: (lnn.L2Attention(4, 2, method=_FAST), (3, 4)),
    "L2Attention of a stated length": lambda: (lnn.L2Attention(4, 1, tokens=6, is_causal=True), (5, 4)),
    "CosineAttention": lambda: (lnn.CosineAttention(4, 2), (3, 4)),
    "CosineAttention of a stated length": lambda: (
        lnn.CosineAttention(4, 2, tokens=4, is_causal=True, method=_FAST),
        (3, 4),
    ),
    "LipsFormerBlock": lambda: (lnn.LipsFormerBlock(4, 2, 6, tokens=3, method=_FAST), (3, 4)),
    "LayerNorm": lambda: (lnn.LayerNorm((3, 4)), (2, 3, 4)),
    "RMSNorm": lambda: (lnn.RMSNorm(5), (5,)),
    "GroupNorm": lambda: (lnn.GroupNorm(2, 4), IMAGE),
    "RNN": lambda: (lnn.RNN(3, 4, 2, activation=lnn.MaxMin()), (4, 3)),
    "GRU": lambda: (lnn.GRU(3, 4, method=_FAST), (4, 3)),
    "OrthogonalRNN": lambda: (lnn.OrthogonalRNN(3, 4), (4, 3)),
    "OrthogonalRNN of two layers": lambda: (lnn.OrthogonalRNN(3, 4, 2, method=_FAST), (4, 3)),
    # Layers of several methods; the second is one that compiles fast.
    "Branch": lambda: (lnn.Branch(lnn.Linear(5, 3), lnn.Linear(5, 2, method=_FAST)), (5,)),
    "Parallel": lambda: (lnn.Parallel(lnn.Linear(3, 3), lnn.Linear(2, 2, method=_FAST), sizes=(3, 2)), (5,)),
    "ConvexResidual": lambda: (lnn.ConvexResidual(lnn.Linear(5, 5, method=_FAST)), (5,)),
    "ScaledResidual": lambda: (lnn.ScaledResidual(lnn.Linear(5, 5)), (5,)),
    "WeightedResidual": lambda: (lnn.WeightedResidual(lnn.Linear(5, 5, method=_FAST), 5, most=0.5), (5,)),
    "L2NormResidual": lambda: (lnn.L2NormResidual(lnn.Linear(5, 5, method=_FAST), eps=1e-2), (5,)),
    "ConcatResidual": lambda: (lnn.ConcatResidual(lnn.Linear(3, 3, method=_FAST)), (6,)),
    "LearnedScale": lambda: (lnn.LearnedScale(0.7), IMAGE),
    "Sequential": lambda: (
        lnn.Sequential(lnn.Linear(5, 4), lnn.MaxMin(), lnn.LipSwish(), lnn.Linear(4, 3, method=_FAST), K=2.5),
        (5,),
    ),
}
# Modules of one input that have no constant for all their parameters: convex functions, and warps that enlarge.
WITHOUT_CONSTANT: dict[str, Callable[[], tuple[nn.Module, Shape]]] = {
    "ICNN": lambda: (convex.ICNN(4, (8, 8)), (4,)),
    "ICNN of softplus": lambda: (
        convex.ICNN(4, (6, 5), method=convex.Stochastic(), activation=nn.Softplus(), quadratic=False),
        (4,),
    ),
    "ConvexQuadratic": lambda: (convex.ConvexQuadratic(4), (4,)),
    "AffineWarp": lambda: (lnn.AffineWarp(), IMAGE),
    # Their steps declare the constant, in input and state side by side.
    "RNNCell": lambda: (lnn.RNNCell(5, 3, method=_FAST), (5,)),
    "GRUCell": lambda: (lnn.GRUCell(5, 3), (5,)),
    "OrthogonalRNNCell": lambda: (lnn.OrthogonalRNNCell(5, 3, method=_FAST), (5,)),
}
LAYERS: dict[str, Callable[[], tuple[nn.Module, Shape]]] = {
    **{repr(method): lambda method=method: _with(method) for method in EVERY},
    **PARTS,
    **WITHOUT_CONSTANT,
}
