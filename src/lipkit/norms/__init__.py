"""Norms of linear operators: frozen dataclasses that turn an operator into a bound with its kind."""

from lipkit.norms._base import BlockNorm as BlockNorm
from lipkit.norms._base import Enclosure as Enclosure
from lipkit.norms._base import Norm as Norm
from lipkit.norms._base import dual_exponent as dual_exponent
from lipkit.norms.auto import Auto as Auto
from lipkit.norms.auto import Selection as Selection
from lipkit.norms.auto import spectral_norm as spectral_norm
from lipkit.norms.cholesky import Cholesky as Cholesky
from lipkit.norms.convolutions.baselines import FantasticFour as FantasticFour
from lipkit.norms.convolutions.baselines import LipGrid as LipGrid
from lipkit.norms.convolutions.baselines import PublishedGrid as PublishedGrid
from lipkit.norms.convolutions.baselines import ReshapedKernel as ReshapedKernel
from lipkit.norms.convolutions.kernel_isometry import KernelIsometry as KernelIsometry
from lipkit.norms.convolutions.symbol_grid import Circulant as Circulant
from lipkit.norms.convolutions.symbol_grid import SmallGrid as SmallGrid
from lipkit.norms.convolutions.toeplitz import Toeplitz as Toeplitz
from lipkit.norms.frobenius import Frobenius as Frobenius
from lipkit.norms.gram import Gram as Gram
from lipkit.norms.gram import Readout as Readout
from lipkit.norms.matrix_free.lanczos import Lanczos as Lanczos
from lipkit.norms.matrix_free.power import Power as Power
from lipkit.norms.mixed import Mixed as Mixed
from lipkit.norms.monomial import Monomial as Monomial
from lipkit.norms.near_isometry import NearIsometry as NearIsometry
from lipkit.norms.spectral_radius import SpectralRadius as SpectralRadius
from lipkit.norms.svd import SVD as SVD
