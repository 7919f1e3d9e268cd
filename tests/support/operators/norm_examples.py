"""Example instances of every norm method, and hypothesis strategies for the operators each of them covers."""

import math

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from lipkit.linops import (
    Adjoint,
    AvgPool,
    BatchNorm,
    CircularConv,
    Compose,
    Conv,
    ConvTranspose,
    Dense,
    DenseStack,
    Diagonal,
    Index,
    LinearFunction,
    LinearOperator,
    Permute,
    Reshape,
    Scaled,
    one_entry_per_row,
)
from lipkit.norms import (
    SVD,
    AbsoluteSums,
    Auto,
    Cholesky,
    Circulant,
    FantasticFour,
    Frobenius,
    Gram,
    InTime,
    KernelIsometry,
    Lanczos,
    LipGrid,
    Mixed,
    Monomial,
    NearIsometry,
    Norm,
    Power,
    PublishedGrid,
    Readout,
    ReshapedKernel,
    SmallGrid,
    Toeplitz,
)
from support.operators.conv_geometries import built, conv_operators
from support.operators.geometries import KINDS, complex_operators, operators

EXAMPLES: dict[type[Norm], tuple[Norm, ...]] = {
    AbsoluteSums: (AbsoluteSums(),),
    Auto: (Auto(), Auto(failure=0)),
    Cholesky: (Cholesky(), Cholesky(rtol=1e-2, steps=3)),
    Circulant: (Circulant(), Circulant(Gram(5))),
    FantasticFour: (FantasticFour(), FantasticFour(Gram(4))),
    Frobenius: (Frobenius(),),
    Gram: (Gram(), Gram(0), Gram(3, Readout.ROW_SUM)),
    InTime: (InTime(), InTime(SVD())),
    KernelIsometry: (KernelIsometry(),),
    Lanczos: (Lanczos(), Lanczos(steps=2, failure=1e-6), Lanczos(steps=20, seed=3)),
    LipGrid: (LipGrid(), LipGrid(8)),
    Mixed: (*(Mixed(p, p) for p in (1, 2, 3, math.inf)), Mixed(1, 2), Mixed(1, math.inf), Mixed(1.5, math.inf)),
    Monomial: (Monomial(),),
    NearIsometry: (NearIsometry(),),
    Power: (Power(steps=20),),
    PublishedGrid: (PublishedGrid(points=20, steps=2),),
    ReshapedKernel: (ReshapedKernel(),),
    SmallGrid: (SmallGrid(), SmallGrid(rtol=0.3, inner=SVD())),
    SVD: (SVD(),),
    Toeplitz: (Toeplitz(), Toeplitz(steps=1)),
}
METHODS = [method for some in EXAMPLES.values() for method in some]
CONVOLUTIONAL = (
    Circulant,
    FantasticFour,
    KernelIsometry,
    LipGrid,
    PublishedGrid,
    ReshapedKernel,
    SmallGrid,
    Toeplitz,
)


def inexact(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def convolution(op: LinearOperator) -> LinearOperator | None:
    """The convolution or pool whose symbol is that of `op`, if there is one."""
    match op:
        case Conv() | ConvTranspose() | AvgPool() | CircularConv():
            return op
        case Adjoint(inner) | Scaled(_, inner) | Compose(Reshape() | Permute(), inner):
            return convolution(inner)
        case Compose(outer, Reshape() | Permute()):
            return convolution(outer)
        case _:
            return None


def applies(method: Norm, op: LinearOperator) -> bool:
    if isinstance(method, Monomial):
        return one_entry_per_row(op) or one_entry_per_row(op.T)
    if not isinstance(method, CONVOLUTIONAL):
        return True
    found = convolution(op)
    # The factor of LipGrid is proven for images of one and two axes only.
    return found is not None and not (isinstance(method, LipGrid) and len(found.in_shape) > 3)


def drawn_for(method: Norm) -> SearchStrategy[LinearOperator]:
    """Operators of every kind, real and complex; more of those that the method is for."""
    # A callable of real weights need not take the complex vectors that a complex multiple of it would give it.
    mixed = complex_operators().filter(lambda op: not (isinstance(op, Scaled) and isinstance(op.inner, LinearFunction)))
    every: list[SearchStrategy[LinearOperator]] = [operators(), mixed]
    if isinstance(method, CONVOLUTIONAL):
        images = st.one_of(*(KINDS[kind] for kind in (Conv, ConvTranspose, AvgPool)), conv_operators(torch.complex128))
        turned = images.map(lambda op: Permute(op.out_shape, tuple(reversed(range(len(op.out_shape))))) @ op)
        every += [images, images.map(Adjoint), turned, images]
    if isinstance(method, Monomial):
        every += 3 * [st.one_of(*(KINDS[kind] for kind in (BatchNorm, Diagonal, Index, Permute, Reshape)))]
    return built(st.sampled_from(every).flatmap(lambda strategy: strategy))


def covered_by(method: Norm) -> SearchStrategy[LinearOperator]:
    return built(drawn_for(method).filter(lambda op: applies(method, op)))


def example(kind: type[LinearOperator]) -> LinearOperator:
    matrix = torch.tensor([[0.5, -2.0]], dtype=torch.float64)
    image = matrix.reshape(1, 1, 2)
    return {
        Dense: Dense(matrix),
        DenseStack: DenseStack(image),
        Conv: Conv(image, (4,), (1,), ((1, 0),), (1,)),
        ConvTranspose: ConvTranspose(image, (4,), (1,), (0,), (0,), (1,)),
        Diagonal: Diagonal(matrix, (1, 2)),
    }[kind]
