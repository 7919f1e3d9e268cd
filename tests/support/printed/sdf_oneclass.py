"""What published statistics of detectors give as printed, and what is true: numbers of docs/errata.md."""

from collections.abc import Callable

from scipy.integrate import quad
from scipy.stats import norm


def shifted(shift: float) -> str:
    """The integral of F_-1(t) p_1(t + shift) for N(1, 1) against N(-1/2, 1)."""
    area, error = quad(lambda t: norm.cdf(t, -0.5) * norm.pdf(t + shift, 1.0), -12, 12)
    assert error < 1e-6
    return f"{area:.4f}"


def auroc() -> list[str]:
    return [shifted(0.0), shifted(-0.4), shifted(0.4)]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The AUROC that survives an attack": auroc,
}
