"""What a profiler does not follow is named: other layers' matrices, other optimizers, inputs that are no numbers."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.errors import ArgumentError

COUNT = 12
LABELS = torch.arange(COUNT) % 3


class Words(nn.Module):
    """Words, a residual layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale, self.places = nn.Parameter(torch.ones(1, 1, 4)), nn.Parameter(torch.zeros(1, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        e = self.words(x) * self.scale + self.places
        return self.head((e + self.inner(e)).mean(1))


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], x: Tensor, steps: int) -> None:
    for _ in range(steps):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), LABELS).backward()
        for optimizer in optimizers:
            optimizer.step()


def test_words_have_a_fold_from_their_embedding_on():
    torch.manual_seed(0)
    model, x = Words().double(), torch.randint(7, (COUNT, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with analysis.Profiler(model, optimizer, x[:1], every=2) as without:
        pass
    assert "wrt='words'" in without.history.refused["fold"]
    with analysis.Profiler(model, optimizer, x[:1], every=2, wrt="words") as profile:
        train(model, [optimizer], x, 4)
    history = profile.history
    assert "fold" not in history.refused
    # The mean of five positions has the norm 5^(-1/2), which counts as 1, as the scale does.
    inner, head = (float(torch.linalg.matrix_norm(one.weight.detach(), 2)) for one in (model.inner, model.head))
    assert float(history.log_constant[-1].exp()) == pytest.approx((1 + inner) * head, rel=1e-12)
    assert history.refused["layers"].startswith("Not followed, and counted as 1: places, words.weight.")


def test_recurrent_layers_are_named_and_tied_weights_are_not():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner, self.head = nn.Embedding(3, 4), nn.LSTM(4, 4, 2), nn.Linear(4, 3)
            self.head.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(self.words(x))[0][:, -1])

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with analysis.Profiler(model, optimizer, torch.zeros(1, 5, dtype=torch.int64)) as profile:
        pass
    names = "inner.weight_ih_l0, inner.weight_hh_l0, inner.weight_ih_l1, inner.weight_hh_l1"
    assert f"counted as 1: {names}." in profile.history.refused["layers"]
    deep = nn.Sequential(nn.LSTM(2, 2, 3), nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"A profiler follows the norms of linear layers.*LSTM has no linear"):
        analysis.Profiler(deep[0], torch.optim.SGD(deep.parameters(), 0.1), torch.zeros(1, 5, 2))


def test_many_names_are_counted():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.LSTM(2, 2, 3), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x)[0][:, -1])

    model = Deep()
    with analysis.Profiler(model, torch.optim.SGD(model.parameters(), 0.1), torch.zeros(1, 5, 2)) as profile:
        pass
    assert "inner.weight_hh_l1 and 2 more. Only" in profile.history.refused["layers"]


def two() -> tuple[nn.Sequential, list[torch.optim.Optimizer], Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 2)]
    return model, optimizers, torch.randn(COUNT, 6).double()


def test_layers_of_a_second_optimizer_are_named_with_what_to_do():
    model, optimizers, x = two()
    with analysis.Profiler(model, optimizers[0], x[:1], every=2) as profile:
        train(model, optimizers[:1], x, 2)
        assert profile.history.refused == {}
        assert profile.history.layers[1].kappa is not None
        train(model, optimizers, x, 2)
        state = profile.state_dict()
    history = profile.history
    assert "SGD does not hold the weights of '2', and something else moved them" in history.refused["optimizer"]
    assert "Give all weights to one optimizer" in history.refused["expected"]
    assert history.expected is None
    # Zero noise of a layer that moves would be false, and noise terms of a part of the record too.
    assert all(layer.kappa is None for layer in history.layers)
    assert history.layers[1].rest.tolist() == pytest.approx(
        [float(b.log() - a.log()) for a, b in pairwise(history.layers[1].norm)], abs=1e-15
    )
    again = analysis.Profiler(model, optimizers[0], x[:1], every=2)
    again.load_state_dict(state)
    with again:
        pass
    assert again.history.refused == history.refused


def test_one_optimizer_with_two_groups_is_followed():
    model, optimizers, x = two()
    optimizers[0].add_param_group({"params": list(model[2].parameters()), "lr": 0.2})
    with analysis.Profiler(model, optimizers[0], x[:1], every=2) as profile:
        train(model, optimizers[:1], x, 4)
    assert profile.history.refused == {}


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ((torch.zeros(1, 6), torch.zeros(1)), r"a tuple of a tensor of shape \(1, 6\), a tensor of shape \(1,\)"),
        (
            torch.utils.data.TensorDataset(torch.zeros(4, 6), torch.zeros(4))[0],
            r"tensor of shape \(6,\).*without labels",
        ),
        (torch.zeros(1, 5), r"a tensor of shape \(1, 5\) \(RuntimeError: mat1 and mat2"),
        ({"data": torch.zeros(1, 6)}, "a mapping of 'data' .*unexpected keyword argument 'data'"),
        ((3,), "a tuple of an object of type int"),
    ],
)
def test_an_example_that_the_model_does_not_take_is_refused_in_one_sentence(example: Any, said: str):
    model, optimizers, _ = two()
    with pytest.raises(ArgumentError, match=f"The model cannot be run on the example, .*{said}") as refused:
        analysis.Profiler(model.float(), optimizers[0], example)
    assert "\n" not in str(refused.value)
    analysis.Profiler(model, optimizers[0], (torch.zeros(1, 6),))
