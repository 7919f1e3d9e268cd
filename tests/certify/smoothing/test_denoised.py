"""Denoisers in front of classifiers: the diffusion step that fits a noise level, and exact restoration by an oracle."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit.certify.smoothing import Denoised, OneShotDiffusion
from lipkit.errors import ArgumentError, ShapeError
from support.unchecked import unchecked

# The linear schedule of Ho et al.: 1,000 steps.
ALPHAS = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)


def clean() -> Tensor:
    return torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_any_callables_compose_and_parameters_are_found():
    head = nn.Linear(6, 2)
    model = Denoised(lambda x: x.clamp(0, 1), head)
    x = 3 * torch.randn(5, 6)
    assert torch.equal(model(x), head(x.clamp(0, 1)))
    assert len(list(model.parameters())) == 2


@unchecked()
def test_a_denoiser_that_changes_the_shape_is_refused():
    with pytest.raises(ShapeError, match=r"keeps the shape of its input, got \(5, 3\) from \(5, 6\)"):
        Denoised(lambda x: x[:, :3], nn.Identity())(torch.zeros(5, 6))


@pytest.mark.parametrize("step", [3, 57, 400])
@pytest.mark.parametrize("channels", [3, 6])
def test_a_network_that_knows_the_noise_restores_the_image(step: int, channels: int):
    # At a sigma that a step has exactly, the noise of x_t is the standard normal one itself.
    sigma = math.sqrt((1 - float(ALPHAS[step])) / float(ALPHAS[step])) / 2
    x, noise = clean(), torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen: list[tuple[Tensor, Tensor]] = []

    def network(x_t: Tensor, t: Tensor) -> Tensor:
        seen.append((x_t, t))
        # Twice as many channels: the variance follows, and is not used.
        return torch.cat([noise, 77 * noise], 1)[:, :channels]

    found = OneShotDiffusion(network, ALPHAS, sigma)(x + sigma * noise)
    torch.testing.assert_close(found, x, rtol=0, atol=1e-12)
    x_t, t = seen[0]
    assert t.tolist() == [step] * 4
    # The forward process of the diffusion itself.
    expected = math.sqrt(float(ALPHAS[step])) * (2 * x - 1) + math.sqrt(1 - float(ALPHAS[step])) * noise
    torch.testing.assert_close(x_t, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
def test_the_nearest_step_is_taken(sigma: float):
    found = OneShotDiffusion(lambda x, _: x, ALPHAS, sigma)
    off = [abs(math.sqrt((1 - a) / a) - 2 * sigma) for a in ALPHAS.tolist()]
    assert found.step == off.index(min(off))
    assert f"step={found.step}" in repr(found)


def test_restored_images_are_cut_off_at_the_ends_of_the_range():
    found = OneShotDiffusion(lambda x, _: 0 * x, ALPHAS, 0.25)(torch.tensor([-3.0, 0.25, 4.0]).view(1, 1, 1, 3))
    torch.testing.assert_close(found.flatten(), torch.tensor([0.0, 0.25, 1.0]))


@unchecked()
def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match=r"steps for sigma in \[0\.005\d*, 78\.\d+\].*got 100"):
        OneShotDiffusion(lambda x, _: x, ALPHAS, 100.0)
    for sigma in (0.0, -1.0, math.nan):
        with pytest.raises(ArgumentError, match="steps for sigma in"):
            OneShotDiffusion(lambda x, _: x, ALPHAS, sigma)
    for wrong in (ALPHAS.flip(0), 1 - ALPHAS, 2 * ALPHAS, ALPHAS * math.nan):
        with pytest.raises(ArgumentError, match="cumulative products"):
            OneShotDiffusion(lambda x, _: x, wrong, 0.25)
    with pytest.raises(ShapeError, match="one number for each step"):
        OneShotDiffusion(lambda x, _: x, ALPHAS[None], 0.25)
    with pytest.raises(ShapeError, match="says noise of shape"):
        OneShotDiffusion(lambda x, _: x[:, :1], ALPHAS, 0.25)(clean())
