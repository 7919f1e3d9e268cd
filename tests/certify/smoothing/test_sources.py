"""Random numbers of blocks: the same for one key, unrelated for two, and of the law they claim."""

import itertools

import pytest
import scipy
import torch

from lipkit.certify.smoothing.sources import Stream, open_source

LIKE = [torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float64)]


def test_one_key_gives_the_same_numbers_and_two_keys_others() -> None:
    like = LIKE[0]
    # Sums and products of these keys meet, so that seeds made of them would.
    keys = itertools.product([0, 1, 2**31, 2**32, 2**62], [0, 1, 2], Stream, [0, 1, 2])
    starts = {}
    for seed, image, stream, block in keys:
        first = tuple(open_source(seed, image, stream, block, like).normal((4,)).tolist())
        assert first == tuple(open_source(seed, image, stream, block, like).normal((4,)).tolist())
        assert starts.setdefault(first, (seed, image, stream, block)) == (seed, image, stream, block)
    assert len(starts) == 5 * 3 * 3 * 3


@pytest.mark.parametrize("like", LIKE)
def test_numbers_follow_their_laws(like: torch.Tensor) -> None:
    size = 200_000
    normal = open_source(0, 0, Stream.PROOF, 0, like).normal((size,))
    uniform = open_source(0, 0, Stream.PROOF, 1, like).uniform((size,))
    assert normal.dtype == uniform.dtype == like.dtype
    assert bool((uniform > 0).all() & (uniform < 1).all())
    # The seeds are fixed: a p-value below a millionth would be a defect, not bad luck.
    assert scipy.stats.kstest(normal.double().numpy(), "norm").pvalue > 1e-6
    assert scipy.stats.kstest(uniform.double().numpy(), "uniform").pvalue > 1e-6
    again = open_source(0, 0, Stream.SELECTION, 0, like).normal((size,))
    # Independent: a correlation has the standard deviation 1/sqrt(size).
    assert abs(float((normal.double() * again.double()).mean())) < 6 / size**0.5


def test_a_uniform_number_never_reaches_the_ends() -> None:
    # The largest and the smallest that there are.
    from lipkit.certify.smoothing.sources import _BITS, _inside

    for dtype, bits in _BITS.items():
        ends = _inside(torch.tensor([0, 2**bits - 1], dtype=torch.int64).to(dtype), bits)
        assert float(ends[0]) > 0
        assert float(ends[1]) < 1
