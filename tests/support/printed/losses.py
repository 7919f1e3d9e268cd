"""What formulas about losses, penalties and radii give as printed, and what is true: numbers of docs/errata.md."""

import math
from collections.abc import Callable

import numpy as np
import scipy.optimize
import torch
from torch import nn
from torch.nn import functional


def softplus(t: float) -> float:
    return float(np.logaddexp(0.0, t))


def loss_gap() -> list[str]:
    """Noise on the weights of a head against the decay of its inputs; the draws are those of the test."""
    torch.manual_seed(0)
    head = nn.Linear(16, 10).double()
    hidden, target = torch.randn(32, 16, dtype=torch.float64), torch.randint(10, (32,))
    generator, weight = torch.Generator().manual_seed(0), head.weight.detach().requires_grad_()
    plain = functional.cross_entropy(hidden @ weight.mT + head.bias.detach(), target)
    (straight,) = torch.autograd.grad(plain, weight)
    losses, total = [], torch.zeros_like(weight)
    for _ in range(1000):
        noise = torch.randn(10, 16, dtype=torch.float64, generator=generator)
        loss = functional.cross_entropy(hidden @ (weight + 0.05 * noise).mT + head.bias.detach(), target)
        total = total + torch.autograd.grad(loss, weight)[0]
        losses.append(loss.detach())
    values = torch.stack(losses)
    gap = values.mean() - plain.detach() - 0.05**2 / 2 * hidden.square().sum(1).mean()
    assert float((total * straight).sum() / (total.norm() * straight.norm())) > 0.999
    return [f"{float(gap):.4f} with a standard error", f"{float(values.std()) / math.sqrt(1000):.4f}", "above 0.999"]


def soft_penalty() -> list[str]:
    w = 1.1
    assert math.isclose(w**2, 1 + abs(w * w - 1))
    return [f"‖WᵀW - I‖_F = {abs(w * w - 1):.2f}", f"‖W‖₂ = {w}"]


def penalised_where() -> list[str]:
    def slope(x: float) -> float:
        return 1.0 + 4.0 * (abs(x) < 1)

    printed = np.mean([(slope(x) - 1) ** 2 for x in (2.0, -2.0)])
    shares = (np.arange(1000) + 0.5) / 1000
    right = np.mean([(slope(2 * e - 2 * (1 - e)) - 1) ** 2 for e in shares])
    return [f"printed penalty is {printed:.0f}", f"slope {slope(0.0):.0f}", f"is {right:.0f} on average"]


def raised_logit() -> list[str]:
    constant, margin = math.sqrt(2), 2.0
    assert math.isclose(margin, math.sqrt(2) * constant)
    step = math.sqrt(2) * constant
    printed = [softplus(-margin - c * step) for c in (0, 1, 1.5)]
    right = [softplus(-margin + c * step) for c in (0, 1, 1.5)]
    return [", ".join(f"{loss:.4f}" for loss in printed), f"{right[0]:.4f}, {right[1]:.4f} and {right[2]:.4f}"]


def chain_end() -> list[str]:
    x = np.array([0.5, 0.5])
    sigma = np.linalg.svd(np.diag(x) - np.outer(x, x), compute_uv=False)
    return [f"σ₂ = {abs(sigma[1]):.0f} is below x₍ₙ₎ = {x[-1]}"]


def output_factors() -> list[str]:
    # f(t) = (t, -t) moves both outputs by |t|: constant 1 into linf, and the sign of t is the class.
    margin, constant, distance = 2.0, 1.0, 1.0
    assert margin / (2 * constant) == distance
    return [f"margin is {margin:.0f}", f"distance {distance:.0f}", f"printed radius is {margin / constant:.0f}"]


def text_margin() -> list[str]:
    rows, features = np.array([[4.0, 0.0], [1.0, 4.0]]), np.array([0.5, 0.0])
    logits = rows @ features
    constants = [float(np.linalg.norm(scale * (rows[0] - rows[1]))) for scale in (1.0, 1e-3)]
    return [f"({logits[0]:g}, {logits[1]:g})", f"from {constants[0]:g} to {constants[1]:g}"]


def deletions() -> list[str]:
    def feature(text: np.ndarray, taps: int) -> float:
        return float(np.maximum(np.convolve(text, (-1.0) ** np.arange(taps)), 0).sum())

    said = []
    text = (-1.0) ** np.arange(60)
    for taps in (10, 20, 5):
        change = max(abs(feature(text, taps) - feature(np.delete(text, i), taps)) for i in range(60))
        total = abs(sum((-1.0) ** s for s in range(taps)))
        turn = min(sum(abs(j - m) for j in range(taps)) for m in range(taps))
        assert change == (total + taps + 2 * turn) / 2
        said.append((change, 2 * taps))
    (a, claimed), (b, wider), (c, narrow) = said
    return [f"2 · 10 = {claimed}", f"by {a:.0f}", f"{b:.0f} against {wider}", f"{c:.0f} against {narrow}"]


def penalty_slip() -> list[str]:
    return [f"printed penalty is {(1 - 1 - 2) ** 2}"]


def tightness() -> list[str]:
    w, h = 2.0, 1e-6
    slope = ((1 - (w + h) ** 2) ** 2 - (1 - (w - h) ** 2) ** 2) / 2 / (2 * h)
    return [f"Φ = {(1 - w * w) ** 2 / 2}", f"Φ'(2) = {slope:.0f}", f"where {-w + w**3:.0f} is printed"]


def large_minimiser() -> list[str]:
    # f = start + sums of steps: the Lipschitz condition is a box for the steps.
    signs, reach = np.array([1.0] * 9 + [-1.0] * 2), 0.001 / 10
    found = scipy.optimize.minimize(
        lambda v: np.logaddexp(0, -signs * np.cumsum(v)).mean(),
        np.zeros(11),
        jac=lambda v: np.cumsum((-signs / (1 + np.exp(signs * np.cumsum(v))) / 11)[::-1])[::-1],
        bounds=[(None, None)] + [(-reach, reach)] * 10,
        method="L-BFGS-B",
    )
    assert np.cumsum(found.x).min() > 1.49
    return ["above 1.49", f"2L diam X = {2 * 0.001}"]


def smallest_gradient() -> list[str]:
    tau = 0.2
    slope = tau / (1 + math.exp(0.0))
    assert math.isclose(slope / (1 / (1 + math.exp(0.0))), 1 / 5)
    return [f"{slope:.1f} for τ = {tau}", f"bound {1 / (1 + math.exp(0.0))}"]


def wasserstein_sign() -> list[str]:
    # Minimise -f(0) + f(3) with |f(3) - f(0)| <= 3: a linear program in the difference.
    found = scipy.optimize.linprog([1.0], bounds=[(-3, 3)])
    return [f"distance 3 it is {found.fun:.0f}", "W₁ = 3"]


def critics() -> list[str]:
    n = 20
    ups, downs = -2.0 * np.arange(n), -2.0 * np.arange(n) - 3
    values = np.stack([ups, downs], 1).ravel()
    places = np.stack([4.0 * np.arange(n), 4.0 * np.arange(n) + 3], 1).ravel()
    assert (np.abs(np.diff(values)) <= np.diff(places)).all()
    assert (ups - downs).sum() == 3 * n  # the transport cost, each atom to its right neighbour
    right = int((ups > -2.5).sum() + (downs < -2.5).sum())
    assert right == n + 2
    # One that falls all the way, by 3 and by 1; thresholds between all neighbours.
    ups, downs = -4.0 * np.arange(n), -4.0 * np.arange(n) - 3
    best = max(int((ups > t).sum() + (downs < t).sum()) for t in np.append(ups, downs) - 0.5)
    return [f"{100 * right / (2 * n):.0f} % for n = 20", f"printed {100 * best / (2 * n):.1f} %"]


def missing_tau() -> list[str]:
    tau = 0.01
    loss, printed, right = softplus(-tau), math.log(2) - 1 / 2, math.log(2) - tau / 2
    return [f"loss is {loss:.5f}", f"printed expansion {printed:.5f}", f"here {right:.5f}"]


def simplex() -> list[str]:
    # The largest sum of numbers <= 0.
    assert scipy.optimize.linprog([-1.0, -1.0, -1.0], bounds=[(None, 0)] * 3).fun == 0
    return ["at most 0"]


def temperature_ends() -> list[str]:
    def loss(scores: tuple[float, float], beta: float) -> float:
        return beta * softplus((scores[1] - scores[0]) / beta)

    small = [loss((0.0, gap), 1e-3) for gap in (0.7, 1.4)]
    h = 1e-3
    own = (loss((h, 0.7), 1e6) - loss((-h, 0.7), 1e6)) / (2 * h)
    other = (loss((0, 0.7 + h), 1e6) - loss((0, 0.7 - h), 1e6)) / (2 * h)
    return [f"tends to {small[0]:.1f}", f"to {small[1]:.1f}", f"({own:.1f}, {other:.1f})"]


def lost_input() -> list[str]:
    theta = np.diag([2.0, 1.0])
    u, s, vh = np.linalg.svd(theta)
    assert np.allclose(sum(s[i] * np.outer(u[:, i], vh[i]) for i in range(2)), theta)
    moved = np.stack([s[i] * u[:, i] * (vh[i] @ np.ones(2)) for i in range(2)]).sum(0)
    return [f"it is ({moved[0]:.0f}, {moved[1]:.0f})"]


def dual_factor() -> list[str]:
    # The supremum over K-Lipschitz functions of f(1) - f(0) is K, because 1 and 0 are one apart.
    bound = 2.0
    supremum = bound * abs(1.0 - 0.0)
    weight, change = np.diag([2.0, 1.0]), np.diag([0.1, 0.0])
    u, sigma, vh = np.linalg.svd(weight)
    moved = float((np.outer(u[:, 0], vh[0]) * change).sum())
    return [
        f"the supremum is {supremum:.0f}",
        f"right side is {bound * supremum:.0f}",
        f"σ₁ is {sigma[0]:.0f}",
        f"is {moved:.1f}",
    ]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The factor of the dual, and a norm that is its own change": dual_factor,
    "A gap that cannot be positive": loss_gap,
    "A penalty that does not ensure": soft_penalty,
    "Where the gradient is penalised": penalised_where,
    "Whose logit is raised, and by how much": raised_logit,
    "The end of the chain": chain_end,
    "Factors of the output norms": output_factors,
    "The margin condition for text classifiers": text_margin,
    "The constant of a convolution for insertions and deletions": deletions,
    "The gradient penalty": penalty_slip,
    "The gradient of Parseval tightness": tightness,
    "How large a minimiser can be": large_minimiser,
    "The smallest gradient at temperature τ": smallest_gradient,
    "The sign of the best Wasserstein loss": wasserstein_sign,
    "How well a critic can classify": critics,
    "A missing temperature": missing_tau,
    "The simplex": simplex,
    "The two ends of the temperature": temperature_ends,
    "An input lost from an expansion": lost_input,
}

if __name__ == "__main__":
    for title, numbers in NUMBERS.items():
        print(title, numbers())
