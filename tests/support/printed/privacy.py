"""Numbers of the errata about sensitivities and bounds of gradients, without lipkit."""

import math
from collections.abc import Callable

import torch
from torch.nn import functional


def activations() -> list[str]:
    slope, weight, x = 0.5, 2.0, 1.0
    z = weight * x
    return [f"‖z_1‖ = {z:.0f} and ‖h_1‖ = {slope * z:.0f}", f"{x:.0f} and {slope * x}"]


def gradients() -> list[str]:
    slope, weight, bias, x, depth = 2.0, 0.5, 0.3, 2.0, 4
    square, h = 0.0, x
    for t in range(1, depth + 2):
        square += (slope * weight) ** (2 * (depth + 1 - t)) * (1 + h * h)
        h = slope * (weight * h + bias)
    n = depth + 1
    printed = n * (1 + x * x) + x * bias * depth * n + bias**2 * depth * n * (2 * depth + 1) / 6
    return [f"{math.sqrt(square):.4f}", f"{math.sqrt(printed):.4f}"]


def bias() -> list[str]:
    """The gradient of a bias at 64 places, whose cotangent is 1/8 at each."""
    return [f"is {(torch.full((8, 8), 1 / 8).sum()):.0f}."]


def reflect() -> list[str]:
    """sup <g, K * x> over unit vectors, by alternating power steps."""

    def form(kernel: torch.Tensor, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode="reflect"), kernel) * g).sum()

    parts = [torch.ones(1, 1, n, n, dtype=torch.float64) / n for n in (3, 8, 8)]
    found = 0.0
    for step in range(300):
        at = step % 3
        free = [part.clone().requires_grad_(k == at) for k, part in enumerate(parts)]
        (gradient,) = torch.autograd.grad(form(*free), free[at])
        found = float(gradient.norm())
        parts[at] = gradient / found
    return [f"{found:.3f}", "above √9 = 3"]


def kantorovich() -> list[str]:
    """The gradient of the loss of one record, at any logits."""
    share = torch.full((10,), 0.1, dtype=torch.float64)
    gradient = 1 / (1 - share) / 10
    gradient[3] = -1 / share[3] / 10
    return [f"{gradient.norm():.5f}"]


def infimum() -> list[str]:
    """Of (f(0) - f(1)) / 2 over f with |f(0) - f(1)| <= 1."""
    return [f"{min((a - b) / 2 for a in (0.0, 1.0) for b in (0.0, 1.0))}", "the distance is 1."]


def concentration() -> list[str]:
    b, u = 10_000, 0.1
    gap = (u - 2 / math.sqrt(b)) ** 2
    return [f"{math.exp(-math.sqrt(b) / 8 * gap):.3f}", f"{math.exp(-b / 8 * gap):.6f}"]


def middle_term() -> list[str]:
    depth, x, bias = 100, 1.0, 0.01
    return [f"{math.sqrt(x * bias * depth * (depth + 1)):.2f}", f"√(BXT) is {math.sqrt(bias * x * depth):.0f}."]


def _above(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def shuffled() -> list[str]:
    """Of T results the record is in one: at 2 with it and at 1 without, where those of all others are at 0."""
    sigma, batches, delta = 0.7, 1_000, 1e-5

    def largest(at: float, end: float) -> float:
        ours, theirs = _above((end - at) / sigma), _above(end / sigma)
        return -math.expm1(math.log1p(-ours) + (batches - 1) * math.log1p(-theirs))

    ends = [3 + 0.001 * k for k in range(4_000)]
    least = max(math.log((largest(2, e) - delta) / largest(1, e)) for e in ends if largest(2, e) > delta)
    orders: list[float] = []
    for a in range(2, 60):
        terms = [
            math.lgamma(a + 1) - math.lgamma(k + 1) - math.lgamma(a - k + 1) + (a - k) * math.log1p(-1 / batches)
            - k * math.log(batches) + (k * k - k) / (2 * sigma**2)
            for k in range(a + 1)
        ]  # fmt: skip
        top = max(terms)
        divergence = batches * (top + math.log(math.fsum(math.exp(t - top) for t in terms))) / (a - 1)
        orders.append(divergence + math.log(1 - 1 / a) - (math.log(delta) + math.log(a)) / (a - 1))
    low, high = 0.0, 20.0
    for _ in range(60):
        e = (low + high) / 2
        lost = _above(e * sigma - 0.5 / sigma) - math.exp(e) * _above(e * sigma + 0.5 / sigma)
        low, high = (e, high) if lost > delta else (low, e)
    return [f"{min(orders):.2f}", f"{least:.2f}", f"{high:.2f}"]


def centering() -> list[str]:
    def beside(*records: float) -> float:
        return 3 - math.fsum((3, *records)) / (1 + len(records))

    return [
        f"becomes {beside(1.0):.0f} beside a record 1, and {beside(5.0):.0f} beside a record 5",
        f"is {beside():.0f}.",
    ]


def clip() -> list[str]:
    loss, batch, limit = math.sqrt(2), 1_000, 0.1
    wrong, right = min(loss / batch, limit), min(loss, limit) / batch
    return [f"{wrong:.6f}", f"{right}", f"{wrong / right:.2f}"]


def delta() -> list[str]:
    records = 1_000
    return [f"{10.0 ** -math.ceil(math.log10(records))}", f"{10.0 ** -len(str(records)):.4f}"]


def signs() -> list[str]:
    """By hand: gradients of max(0, m/2 - z_k y_k) and of z_k - y_k for a one-hot y, and the cosine of (3, 4)."""
    logits, label, half = (2.0, 5.0), (1.0, 0.0), 1.0
    hinge = [max(0.0, half - z * y) for z, y in zip(logits, label, strict=True)]
    slopes = [-y if half - z * y > 0 else 0.0 for z, y in zip(logits, label, strict=True)]
    values, gradients = (f"{one[0]:.0f} and {one[1]:.0f}" for one in (hinge, [abs(slope) for slope in slopes]))
    return [f"the values {values} with the gradients {gradients}", f"{3 / math.hypot(3, 4)}"]


def microbatches() -> list[str]:
    batch, sigma, limit = 4_096, 1.1, 1.0
    each, once = sigma * limit / math.sqrt(batch), sigma * limit / batch
    return [f"{each:.6f}", f"{once:.8f}", f"{each / once:.0f} times less"]


def standardised() -> list[str]:
    def found(more: list[float]) -> tuple[float, float]:
        x, y = [1.0] * 500 + [-1.0] * 500 + more, [1] * 500 + [-1] * 500 + [1] * len(more)
        mean = math.fsum(x) / len(x)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x))
        z = [(v - mean) / deviation for v in x]
        return math.fsum(a * b for a, b in zip(y, z, strict=True)), max(map(abs, z))

    (without, _), (beside, largest) = found([]), found([1000.0])
    return [f"numbers is {without:.0f}.", f"{beside:.2f}", f"{largest:.2f}", f"{without - beside:.2f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "Activations for a slope other than one": activations,
    "The global bound for a slope other than one": gradients,
    "A bias that is added at many places": bias,
    "Kernels under reflect padding": reflect,
    "The constant of KR with many classes": kantorovich,
    "The infimum of the binary KR loss": infimum,
    "Concentration of the mean gradient": concentration,
    "A root in the bound for networks with biases": middle_term,
    "Shuffled batches billed as Poisson batches": shuffled,
    "Centering over the batch": centering,
    "A clip that lowers no noise": clip,
    "The default δ at powers of ten": delta,
    "Signs of hinge, KR and cosine": signs,
    "One noise for each gradient": microbatches,
    "Standardising by the private table": standardised,
}
