"""Fewer digits while an attack searches: for CUDA only, and put back whatever happens."""

import pytest
import torch

from lipkit.certify.attacks.coarse_products import coarse_products


def precisions() -> list[bool | str]:
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # pyright: ignore[reportAttributeAccessIssue]
    return [backend.fp32_precision for backend in backends]


def test_cuda_multiplies_with_fewer_digits_until_the_end() -> None:
    before = precisions()

    def interrupted() -> None:
        with coarse_products(torch.device("cuda")):
            assert precisions() == ["tf32", "tf32"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert precisions() == before
    assert before[0] != "tf32"


def test_other_devices_are_left_alone() -> None:
    before = precisions()
    with coarse_products(torch.device("cpu")):
        assert precisions() == before
