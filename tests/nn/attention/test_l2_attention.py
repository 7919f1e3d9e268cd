"""L2 attention: its constant against Jacobians that gradient ascent finds, and sequences of every kind."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError
from lipkit.nn.attention.l2_attention import distance_attention
from lipkit.nn.attention.l2_constants import distance_attention_constant, inverse_phi, l2_attention_constant
from support.jacobians import climbed, norm_at
from support.proven import proven

# Dense decompositions in float64 are off by some units of 2^-53.
ROUNDING = 1 + 1e-12


class Core(nn.Module):
    """Z -> P Z of one head, undivided."""

    def __init__(self, is_causal: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.scale = torch.tensor([scale], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return distance_attention(x[:, None], self.scale, self.is_causal)[:, 0]


def spelled_out(z: Tensor, scale: float, is_causal: bool) -> Tensor:
    """One sequence, token by token, from the definition."""
    rows = []
    for i, token in enumerate(z):
        seen = z[: i + 1] if is_causal else z
        weights = (-scale * (seen - token).square().sum(1)).softmax(0)
        rows.append(weights @ seen)
    return torch.stack(rows)


def starts(tokens: int, width: int) -> list[Tensor]:
    """Random tokens, and stars: all others at one distance from the first."""
    drawn = [size * torch.randn(1, tokens, width, dtype=torch.float64) for size in (0.5, 1.0, 2.0)]
    star = torch.randn(1, tokens, width, dtype=torch.float64)
    star = star / star.norm(dim=-1, keepdim=True) * (1.1 + 0.4 * math.log(tokens))
    return [*drawn, torch.cat([torch.zeros_like(star[:, :1]), star[:, 1:]], 1)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_the_mixture_is_the_one_of_the_definition(tokens: int, is_causal: bool):
    torch.manual_seed(tokens)
    z = torch.randn(tokens, 3, dtype=torch.float64) + 5
    found = Core(is_causal, 0.7)(z[None])[0]
    assert torch.allclose(found, spelled_out(z, 0.7, is_causal), rtol=0, atol=1e-12)


def test_tokens_far_from_their_mean_keep_their_digits():
    """Two clusters: within each the distances are of size one, while the mean of all is far away."""
    torch.manual_seed(0)
    z = torch.randn(6, 4)
    z[:3] += 2000
    found = distance_attention(z[None, None], torch.tensor([0.5]))[0, 0]
    # The numbers of the first cluster themselves have the unit 1.2e-4 in float32; products of float32 were off by 0.03.
    assert torch.allclose(found.double(), spelled_out(z.double(), 0.5, False), rtol=0, atol=2.5e-4)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(2, 1), (3, 2), (8, 3)])
def test_no_jacobian_that_ascent_finds_exceeds_the_constant(tokens: int, width: int, is_causal: bool):
    torch.manual_seed(0)
    constant = distance_attention_constant(tokens, is_causal)
    found = climbed(Core(is_causal), starts(tokens, width))
    assert found <= constant * ROUNDING
    # The constant is not idle: a quarter of it is attained, and attention expands.
    assert found > max(1.2, constant / 4)


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1e6])
def test_the_constant_does_not_depend_on_the_scale(scale: float):
    torch.manual_seed(0)
    x = 1.2 * torch.randn(1, 6, 2, dtype=torch.float64)
    # P Z at scale s is that of sqrt(s) Z over sqrt(s): slopes are the same at other points.
    found = norm_at(Core(False, scale), x / math.sqrt(scale))
    assert found == pytest.approx(norm_at(Core(False), x), rel=1e-9)


def test_the_constant_grows_with_the_length_and_stays_below_the_published_one():
    lengths = [1, 2, 3, 4, 8, 16, 64, 197, 1024]
    for is_causal in (False, True):
        found = [distance_attention_constant(n, is_causal) for n in lengths]
        assert found == sorted(found)
        assert found[0] == 1
        published = [l2_attention_constant(n, 1, [1.0], [1.0], 1.0) for n in lengths]
        assert all(ours <= theirs * ROUNDING for ours, theirs in zip(found, published, strict=True))
    # The digits of the docstring.
    assert [f"{distance_attention_constant(n):.1f}" for n in (2, 8, 16, 64)] == ["2.3", "6.5", "9.7", "19.3"]


@pytest.mark.parametrize("is_causal", [False, True])
def test_columns_of_probabilities_are_as_short_as_the_proof_says(is_causal: bool):
    """Stars and random tokens, with as many dimensions as tokens: sums of columns reach for the square root of n."""
    torch.manual_seed(0)
    for tokens in (2, 5, 30):
        others = tokens - 1
        root = math.sqrt(2 * others + 1) - 1 if is_causal else (math.sqrt(4 * others + 1) - 1) / 2
        most, best = 1 + min(others / 2, root), 0.0
        for distance in torch.linspace(0.1, 3, 30).tolist():
            z = distance * torch.cat([torch.zeros(1, others), torch.eye(others)]).double()
            hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) & is_causal
            p = (-torch.cdist(z, z).square()).masked_fill(hidden, -math.inf).softmax(1)
            best = max(best, p.sum(0).max().item())
            assert p.sum(0).max() <= most * ROUNDING
        assert best > 0.4 * most


def layer(tokens: int | None = None, is_causal: bool = False) -> lnn.L2Attention:
    torch.manual_seed(0)
    return lnn.L2Attention(6, 2, tokens=tokens, scale=1.5, is_causal=is_causal).double().eval()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 6])
def test_the_layer_has_constant_one_at_every_length(tokens: int, is_causal: bool):
    module = layer(is_causal=is_causal)
    found = climbed(module, starts(tokens, 6), steps=10)
    assert found <= ROUNDING
    declared = module.declared_lipschitz((tokens, 6))
    assert found <= float(declared.value.detach())
    assert proven(module, torch.zeros(1, tokens, 6).double()) <= ROUNDING


def test_a_long_sequence():
    torch.manual_seed(0)
    module, x = layer(tokens=300), torch.randn(1, 300, 6, dtype=torch.float64)
    y = x + 1e-3 * torch.randn_like(x)
    assert (module(x) - module(y)).norm() <= (x - y).norm()


def test_with_a_stated_length_shorter_ones_are_divided_by_the_same_number():
    torch.manual_seed(0)
    whole, free = layer(tokens=8), layer()
    whole.load_state_dict(free.state_dict())
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    ratio = distance_attention_constant(3) / distance_attention_constant(8)
    bias = free.out_proj.bias
    assert torch.allclose(whole(x) - bias, (free(x) - bias) * ratio, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_huge_tiny_and_equal_tokens(dtype: torch.dtype, is_causal: bool):
    module = layer(is_causal=is_causal).to(dtype)
    huge = torch.finfo(dtype).max / 1e4
    equal = torch.randn(1, 1, 6, dtype=dtype).expand(2, 4, 6).contiguous()
    cases = [size * torch.randn(2, 4, 6, dtype=dtype) for size in (huge, 1e18, 1e-42, 0.0)] + [equal, huge * equal]
    for x in cases:
        x = x.clamp(-huge, huge).requires_grad_()
        y = module(x)
        gradients = torch.autograd.grad(
            y.square().sum() / y.detach().abs().max().clamp(min=1) ** 2, [x, *module.parameters()]
        )
        assert bool(torch.isfinite(y).all())
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
    # Far tokens see themselves alone, equal ones their common value: both times every token stays.
    factor = 1 / distance_attention_constant(4, is_causal)
    far = 1e12 * torch.randn(1, 4, 6, dtype=dtype)
    for x in (far, equal[:1]):
        expected = module.out_proj(module.in_proj(x) * factor)
        # Some ten roundings, and the factor that is made smaller by 2^-22.
        assert torch.allclose(module(x), expected, rtol=1e-4, atol=1e-4 * float(x.abs().max()))


def test_autocast_computes_distances_with_all_digits():
    module, x = layer().float(), torch.randn(2, 5, 6) + 100
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)
    # Weights and tokens have 8 digits; scores in bfloat16 would be off by half of 100^2 / 256.
    assert torch.allclose(found.float(), module(x), rtol=0.05, atol=0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"embed_dim": 6, "num_heads": 4}, "embed_dim=6 and num_heads=4"),
        ({"embed_dim": 6, "num_heads": 0}, "num_heads=0"),
        ({"embed_dim": 6, "num_heads": 2, "tokens": 0}, "at least 1, got 0"),
        ({"embed_dim": 6, "num_heads": 2, "scale": -1.0}, "positive number, got -1.0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, float], said: str):
    with pytest.raises(ArgumentError, match=said):
        lnn.L2Attention(**arguments)  # pyright: ignore[reportArgumentType] - what is refused


@pytest.mark.parametrize("shape", [(2, 9, 6), (2, 3, 5), (2, 0, 6), (6,)])
def test_wrong_inputs(shape: tuple[int, ...]):
    module = layer(tokens=8)
    with pytest.raises(ShapeError, match=str(shape[-1])):
        module(torch.zeros(shape).double())
    with pytest.raises(ShapeError):
        module.declared_lipschitz(shape)


def test_no_constant_for_no_tokens():
    with pytest.raises(ArgumentError, match="at least one token"):
        distance_attention_constant(0)


@pytest.mark.parametrize("tokens", [2, 4, 9, 20])
def test_every_part_of_the_proof(tokens: int):
    """The three parts of the derivative, each against its own bound; the second one is attained."""
    torch.manual_seed(0)
    others = tokens - 1
    column = min(others / 2, (math.sqrt(4 * others + 1) - 1) / 2)
    share = min(column / others, 0.2178117)
    spread, third, reached = inverse_phi(others), others * share * math.log((1 - share) / share), 0.0
    # The distance of a star at which rows are spread most is sqrt(1 + spread).
    on_a_line = torch.zeros(tokens, 1, dtype=torch.float64)
    on_a_line[1:] = math.sqrt(1 + spread)
    star = torch.cat([torch.zeros(1, others), torch.eye(others)]).double()
    drawn = [size * torch.randn(tokens, width).double() for size in (0.3, 1.0, 2.0) for width in (1, 3, tokens)]
    stars = [size * star for size in torch.linspace(0.2, 3, 15).tolist()]
    for z in (on_a_line, *drawn, *stars):
        p = (-torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square()).softmax(1)
        gaps = z[None] - z[:, None]
        rest = z[None] - (p @ z)[:, None]
        covariances = torch.einsum("ij,ijc,ijd->icd", p, rest, rest)
        whole = torch.einsum("ij,ijc,ijd->icjd", p, rest, gaps).reshape(z.numel(), z.numel())
        reached = max(reached, float((p * gaps.square().sum(-1)).sum(1).max()))
        assert float(torch.linalg.matrix_norm(p, 2)) <= math.sqrt(1 + column) * ROUNDING
        assert float(torch.linalg.matrix_norm(covariances, 2).max()) <= spread * ROUNDING
        assert float(torch.linalg.matrix_norm(whole, 2)) <= math.sqrt(spread * third) * ROUNDING
    assert reached == pytest.approx(spread, rel=1e-9)
    assert distance_attention_constant(tokens) == pytest.approx(
        math.sqrt(1 + column) + 2 * spread + 2 * math.sqrt(spread * third), rel=1e-6
    )
