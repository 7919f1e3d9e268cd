"""Data sets: readers that check what they read, and small ones that are always there."""

from lipkit.data.augmentation import cropped as cropped
from lipkit.data.augmentation import cut_and_mixed as cut_and_mixed
from lipkit.data.augmentation import flipped as flipped
from lipkit.data.augmentation import turned_and_scaled as turned_and_scaled
from lipkit.data.cifar import cifar10 as cifar10
from lipkit.data.cifar import cifar100 as cifar100
from lipkit.data.csv_table import csv_table as csv_table
from lipkit.data.digits import digits as digits
from lipkit.data.download import Remote as Remote
from lipkit.data.download import fetch as fetch
from lipkit.data.examples import Examples as Examples
from lipkit.data.idx import fashion_mnist as fashion_mnist
from lipkit.data.idx import mnist as mnist
from lipkit.data.label_noise import with_uniform_noise as with_uniform_noise
from lipkit.data.mixtures import GaussianMixture as GaussianMixture
from lipkit.data.mixtures import from_mixtures as from_mixtures
from lipkit.data.mixtures import two_modes as two_modes
from lipkit.data.outlines import Outline as Outline
from lipkit.data.outlines import snowflake as snowflake
from lipkit.data.outlines import snowflake_ring as snowflake_ring
from lipkit.data.tabular import adbench as adbench
from lipkit.data.toys import circles as circles
from lipkit.data.toys import moons as moons
