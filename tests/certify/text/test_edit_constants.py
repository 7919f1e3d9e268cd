"""Constants of single edits against every single edit of short texts, and against the published constant."""

import itertools
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from lipkit.certify.text import EditClassifier, Pool, edit_constants
from lipkit.errors import ArgumentError, NonFiniteError

LETTERS = 3
WORDS = [word for n in range(5) for word in itertools.product(range(1, LETTERS + 1), repeat=n)]


def batch(words: Iterable[tuple[int, ...]], length: int) -> Tensor:
    return torch.tensor([[*word, *[0] * (length - len(word))] for word in words])


def published(embedding: Tensor, kernels: list[Tensor], p: float) -> Tensor:
    """max(||e_i - e_j||, ||e_i||) prod_l sum_s ||K_s||, the constant that the published implementation divides by."""
    padded = torch.cat([torch.zeros_like(embedding[:1]), embedding])
    value = torch.cdist(padded, padded, p=p).max()
    for kernel in kernels:
        value = value * sum(torch.linalg.matrix_norm(tap, ord=p) for tap in kernel.unbind(2))
    return value


@pytest.mark.parametrize("p", [1.0, 2.0, torch.inf])
@pytest.mark.parametrize("channels", [(4,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("pool", list(Pool))
def test_no_single_edit_of_a_short_text_exceeds_the_constant(
    p: float, channels: tuple[int, ...], pool: Pool, single_edits: Callable
):
    torch.manual_seed(len(channels))
    model = EditClassifier(LETTERS + 1, 3, channels, kernel=3, classes=3, pool=pool).double()
    pairs = model.constants(p).pairs.detach()
    with torch.no_grad():
        logits = dict(zip(WORDS, model(batch(WORDS, 5)), strict=True))
        for word in WORDS[:60]:
            for edited, after in zip(edits := sorted(single_edits(word, LETTERS)), model(batch(edits, 5)), strict=True):
                change = logits[word] - after
                size = max(len(word), len(edited)) + model.overhang if pool is Pool.MEAN else 1
                assert bool(((change[:, None] - change[None]).abs() <= pairs / size + 1e-12).all())


def test_one_layer_attains_its_constants():
    # Taps (-1)^s on an alternating text of +-1: deleting one letter in the middle turns all windows across it around.
    for q in (2, 5, 10, 20):
        kernel = torch.tensor([[[(-1.0) ** s for s in range(q)]]], dtype=torch.float64)
        embedding = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        constants = edit_constants(embedding, [kernel], torch.tensor([[1.0], [0.0]], dtype=torch.float64))
        assert float(constants.indel) == pytest.approx(worst_deletion(q), rel=1e-9)


def test_a_substitution_attains_its_constant():
    # D (T + S)/2 = 2 (3 + 3)/2: among 1 1 x 1 1 all three windows that see x stay positive.
    kernel = torch.ones(1, 1, 3, dtype=torch.float64)
    embedding = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    constants = edit_constants(embedding, [kernel], torch.eye(2, 1, dtype=torch.float64))
    assert float(constants.substitution) == pytest.approx(6.0, rel=1e-9)
    texts = [torch.tensor(w, dtype=torch.float64) for w in itertools.product((1.0, -1.0), repeat=5)]
    assert max(abs(feature(t, kernel) - feature(t * flip, kernel)) for t in texts for flip in flips(5)) == 6.0


def flips(length: int) -> list[Tensor]:
    """Factors that turn one letter around."""
    return [1 - 2 * torch.eye(length, dtype=torch.float64)[i] for i in range(length)]


def worst_deletion(q: int) -> float:
    """The largest change of the pooled feature by one deletion in alternating texts of length 60."""
    kernel = torch.tensor([[[(-1.0) ** s for s in range(q)]]], dtype=torch.float64)
    text = torch.tensor([(-1.0) ** t for t in range(60)], dtype=torch.float64)
    return max(
        abs(feature(text, kernel) - feature(torch.cat([text[:i], text[i + 1 :]]), kernel)) for i in range(len(text))
    )


def feature(text: Tensor, kernel: Tensor) -> float:
    padded = torch.nn.functional.conv1d(text[None, None], kernel, padding=kernel.shape[2] - 1)
    return float(padded.relu().sum())


def test_the_published_constant_fails_for_deletions():
    embedding = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    for q, change, claimed in ((5, 9.0, 10.0), (10, 30.0, 20.0), (20, 110.0, 40.0)):
        kernel = torch.tensor([[[(-1.0) ** s for s in range(q)]]], dtype=torch.float64)
        assert worst_deletion(q) == change
        assert float(published(embedding, [kernel], 2.0)) == claimed
        ours = edit_constants(embedding, [kernel], torch.eye(2, 1, dtype=torch.float64))
        assert float(ours.pairs[0, 1]) >= change


def test_the_printed_margin_condition_asks_for_equal_logits():
    # |f_i(x) - f_j(y)| <= K d(x, y) with x = y says f_i = f_j; the margin f_i - f_j is what moves by K d at most.
    torch.manual_seed(0)
    model = EditClassifier(3, 2, (2,), kernel=2, classes=2).double()
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2]]))[0]
        assert float((logits[0] - logits[1]).abs()) > 0.1
        # And the constant need not be above 1: it scales with the head.
        model.head.weight.mul_(1e-3)
        assert 0.0 < float(model.constants().pairs[0, 1]) < 1.0


@pytest.mark.parametrize("p", [1.0, 2.0, torch.inf])
def test_depth_costs_at_most_the_receptive_field(p: float):
    torch.manual_seed(0)
    model = EditClassifier(6, 4, (5, 5, 5), kernel=4, classes=2).double()
    with torch.no_grad():
        constants = model.constants(p)
    # 1 + 3 (4 - 1) = 10 positions see one letter.
    assert float(constants.indel) <= 10 * float(constants.position) * (1 + 1e-9)


def test_two_edits_cost_at_most_twice(single_edits: Callable):
    torch.manual_seed(3)
    model = EditClassifier(3, 2, (3,), kernel=2, classes=2).double()
    pair = float(model.constants().pairs[0, 1].detach())
    with torch.no_grad():
        for word in [(), (1,), (1, 2), (2, 2, 1)]:
            twice = sorted({b for a in single_edits(word, 2) for b in single_edits(a, 2)})
            before, after = model(batch([word], 5)), model(batch(twice, 5))
            assert float((before - after).diff(dim=1).abs().max()) <= 2 * pair


def test_constants_are_differentiable_and_padding_is_neutral():
    torch.manual_seed(0)
    model = EditClassifier(4, 3, (2, 2), kernel=3, classes=3)
    model.constants().pairs.sum().backward()
    assert all(bool(torch.isfinite(w.grad).all()) for w in model.parameters() if w.grad is not None)
    assert model.convolutions[0].weight.grad is not None
    short, long = torch.tensor([[1, 2]]), torch.tensor([[1, 2, 0, 0, 0]])
    # The sum over more zeros may be associated otherwise: float32 rounding.
    assert torch.allclose(model(short), model(long), atol=1e-6)
    with pytest.raises(ArgumentError, match="inside a text"):
        model(torch.tensor([[1, 0, 2]]))


def test_weights_that_are_nan_are_refused():
    with pytest.raises(NonFiniteError, match="NaN"):
        edit_constants(torch.full((2, 1), torch.nan), [torch.ones(1, 1, 2)], torch.ones(2, 1))
    with pytest.raises(ArgumentError, match="l1, l2 and linf"):
        edit_constants(torch.ones(2, 1), [torch.ones(1, 1, 2)], torch.ones(2, 1), p=3.0)
