"""The cost of few digits in a chain: much if every rounding counts at worst, little if rounded weights are proven."""

import torch

from lipkit import nn as lnn


def test_a_cast_chain_is_made_smaller_and_a_condensed_one_is_not() -> None:
    torch.manual_seed(0)
    chain = lnn.Sequential(*(lnn.Linear(256, 256, bias=False) for _ in range(10)))
    x = torch.randn(8, 256)
    with torch.no_grad():
        size = torch.linalg.matrix_norm(chain(x))

        def kept(model: torch.nn.Module, given: torch.Tensor) -> float:
            return float(torch.linalg.matrix_norm(model(given).float()) / size)

        with torch.autocast("cpu", torch.bfloat16):
            cast = kept(chain, x)
        plain = lnn.condense(chain, torch.bfloat16)
        assert type(list(plain.children())[-1]) is torch.nn.Linear
        # Isometries lose 2^-8 each, and rounding moves the result by some of its units.
        assert abs(cast - (1 - 2.0**-8) ** 10) < 0.01
        assert abs(kept(plain, x.bfloat16()) - (1 - 2.0**-8) ** 10) < 0.01
        # The number in the documentation.
        assert 0.53 < kept(chain.bfloat16(), x.bfloat16()) < 0.555
