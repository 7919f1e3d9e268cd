"""Norms."""
from lipkit.norms.svd import SVD as SVD
from lipkit.norms.gram import Gram as Gram
from lipkit.norms.gram import Readout as Readout
from lipkit.norms.lanczos import Lanczos as Lanczos
from lipkit.norms.power import Power as Power
from lipkit.norms.cholesky import Cholesky as Cholesky
from lipkit.norms.near_isometry import NearIsometry as NearIsometry
from lipkit.norms.frobenius import Frobenius as Frobenius
from lipkit.norms.circulant import Circulant as Circulant
from lipkit.norms.small_grid import SmallGrid as SmallGrid
from lipkit.norms.toeplitz import Toeplitz as Toeplitz
