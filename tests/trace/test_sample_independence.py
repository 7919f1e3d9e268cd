"""Samples are shown to be independent, or it is said that they were not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit.bounds.certificates.issue import certificate
from lipkit.bounds.fold.dag import DAG
from lipkit.errors import CaptureError
from lipkit.trace.capture import capture


class Checked(nn.Module):
    """A linear layer behind a check of its input, which a traced model does not see; it may mix samples."""

    def __init__(self, mixing: bool, entries: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6).double()
        self.mixing, self.entries = mixing, entries

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            within = torch.isin(x, torch.tensor(self.entries, dtype=x.dtype)) if self.entries else (x >= 0) & (x <= 1)
            if not bool(within.all()):
                raise KeyError("an entry that I do not know")
        y = self.a(x)
        return y - y.mean(0) if self.mixing else y


class Alone(nn.Module):
    """A model that flattens its batch away."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.reshape(1, 6))


@pytest.mark.parametrize("example", [torch.rand(1, 6).double(), torch.zeros(1, 6).double()])
def test_a_model_that_checks_its_entries_is_tested_within_them(example: Tensor):
    with pytest.raises(CaptureError, match="another sample of the batch"):
        _ = capture(Checked(mixing=True), example)
    assert capture(Checked(mixing=False), example).target == (6,)


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(CaptureError, match=r"batch of 2 samples, but none with other entries .* give an example"):
        _ = capture(Checked(mixing=False, entries=(1.0,)), torch.ones(1, 6).double())


def test_groups_of_four_are_tried():
    class Groups(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                return x * 1
            return x - x.reshape(len(x) // 4, 4, 6).mean(1).repeat_interleave(4, 0)

    with pytest.raises(CaptureError, match="another sample of the batch"):
        _ = capture(Groups(), torch.rand(1, 6))


def test_an_argument_without_samples_is_left_alone():
    class Shifted(nn.Module):
        def forward(self, x: Tensor, order: Tensor) -> Tensor:
            assert order.shape == (1, 6)
            return (x - x.mean(0))[:, order[0]]

    with pytest.raises(CaptureError, match="another sample of the batch"):
        _ = capture(Shifted(), torch.rand(1, 6), torch.arange(6)[None], wrt="x")


def test_whole_numbers_have_other_samples_too():
    class Tokens(nn.Module):
        def __init__(self, mixing: bool) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.mixing = mixing

        def forward(self, ids: Tensor) -> Tensor:
            x = torch.tanh(self.embedding(ids))
            return x - x.mean(0) if self.mixing else x

    ids = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(CaptureError, match="another sample of the batch"):
        _ = capture(Tokens(mixing=True), ids, wrt="embedding")
    assert capture(Tokens(mixing=False), ids, wrt="embedding").target == (4, 3)


def test_a_certificate_notes_that_one_sample_is_all_a_model_takes():
    example = torch.rand(1, 6).double()
    assert "raises for batches of several" in certificate(Alone(), example, DAG()).scope
    assert "raises for batches" not in certificate(Checked(mixing=False), example, DAG()).scope


class Meeting(nn.Module):
    """A linear layer whose answers meet along the axis of samples, in the way asked for."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.how = nn.Linear(6, 3).double(), how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.a(x))


@pytest.mark.parametrize(
    "how",
    [
        lambda z: z * z.shape[0],
        lambda z: z.cumsum(0),
        lambda z: z.flip(0).cumsum(0).flip(0),
        lambda z: z.cummax(0).values,
        lambda z: z - 9 * z[:1],
        lambda z: z - 9 * z[-1:],
        lambda z: z if z.shape[0] == 1 else 100 * z,
    ],
    ids=["count", "sum of earlier", "sum of later", "largest", "first", "last", "batches are others"],
)
def test_answers_that_meet_are_refused_wherever_they_do(how: Callable[[Tensor], Tensor]):
    with pytest.raises(CaptureError, match="changes with another sample"):
        capture(Meeting(how), torch.randn(4, 6, dtype=torch.float64))
    capture(Meeting(torch.tanh), torch.randn(4, 6, dtype=torch.float64))
