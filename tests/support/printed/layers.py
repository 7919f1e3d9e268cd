"""What formulas about layers give as printed, and what is true: numbers of docs/errata.md, without lipkit."""

from collections.abc import Callable

import numpy as np


def norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


def rescaled_channel() -> list[str]:
    w = np.diag([2.0, 0.1])
    r = np.abs(w.T @ w).sum(1)
    assert np.isclose(norm(w * r**-0.5), 1)
    return [f"norm {norm(w * r):.0f}"]


def rescaling_rate() -> list[str]:
    w = np.array([[2.0, 1.0], [0.0, 1.0]])
    missing, power = [], w.T @ w
    for t in range(1, 9):
        missing.append(1 - norm(w * np.abs(power).sum(1) ** -(2.0**-t)))
        power = power.T @ power
    return [*(f"{value:.4f}" for value in missing[3:8]), f"{missing[7] / missing[6]:.3f}"]


def rescaling_start() -> list[str]:
    w = np.array([[1.0, 0.0], [1.0, 0.0]])
    at_zero = w / np.abs(w).sum(1)
    slope = 1 - 2 * 1.0 * -1.0
    return [f"{norm(at_zero):.4f}", f"slope is {slope:.0f}"]


def center_norm() -> list[str]:
    gamma = np.diag([3.0, 1.0])
    centring = 2 * (np.eye(2) - np.full((2, 2), 0.5))
    return [f"{norm(gamma @ centring):.4f}"]


def stairs() -> list[str]:
    s = 0.5
    a = (1 + s) / 2
    return [f"from {a:g} to {a - a:g}"]


def reflector() -> list[str]:
    v, x = np.array([1.0, 0.0]), np.ones(2)
    printed = x - v * (v @ x) / (v @ v)
    reflected = x - 2 * v * (v @ x) / (v @ v)
    return [f"{np.linalg.norm(printed):.0f} instead of {np.linalg.norm(reflected):.4f}"]


def squared_norm() -> list[str]:
    return [f"‖M‖₂² = {norm(2 * np.eye(2)) ** 2:.0f}"]


def any_activation() -> list[str]:
    return [f"slope is {1 - 2 * -1:.0f}"]


def newton() -> list[str]:
    w = np.random.default_rng(0).standard_normal((8, 8))
    v = w / np.linalg.norm(w)
    a, x = v @ v.T, np.eye(8)
    errors: list[float] = []
    while not errors or (errors[-1] < 1e3 and len(errors) < 100):
        x = (3 * x - x @ x @ x @ a) / 2
        errors.append(float(np.abs(x @ a @ x.T - np.eye(8)).max()))
    y, z = a, np.eye(8)
    for _ in range(100):
        t = (3 * np.eye(8) - z @ y) / 2
        y, z = y @ t, t @ z
    # The digits of what rounding makes of it depend on the machine; that it converges and is lost again does not.
    assert min(errors) < 1e-3
    assert errors[-1] >= 1e3
    assert np.abs(z @ a @ z.T - np.eye(8)).max() < 1e-8
    return ["below 10⁻³", "above 10³", "below 10⁻⁸ after a hundred"]


def negative_slopes() -> list[str]:
    a, b, w = -0.5, 1.0, 1.0
    t = 2 / (a + b) ** 2 / w**2
    return [f"T = {t:.0f}", f"slope is {1 - (a + b) * w * t * b * w:.0f}"]


def turn(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def reflection() -> list[str]:
    distances = {f"{np.linalg.norm(turn(angle) - np.diag([1.0, -1.0])):.3f}" for angle in np.linspace(0, 6.3, 50)}
    (distance,) = distances
    return [f"‖_F = {distance} for every angle", f"determinant {np.linalg.det(np.diag([1.0, -1.0])):.0f}"]


def unit_circle() -> list[str]:
    return [f"exp(0) = {np.exp(0):.0f}", f"distance of {abs(np.exp(1j * np.pi) - 1):.0f}"]


def cayley_map() -> list[str]:
    skew = np.array([[0.0, -1000.0], [1000.0, 0.0]])
    found = (np.eye(2) + skew / 2) @ np.linalg.inv(np.eye(2) - skew / 2)
    angle = float(np.arctan2(found[1, 0], found[0, 0]))
    assert np.isclose(angle, 2 * np.arctan(500))
    # The map agrees with the exponential to second order: the rest shrinks with the cube.
    small = [abs(2 * np.arctan(b / 2) - b) for b in (1e-2, 1e-3)]
    assert 900 < small[0] / small[1] < 1100
    return [f"by {angle:.4f} for b = 1000"]


def weighted_shortcut() -> list[str]:
    # Slopes of x + a g(x) with g(x) = b x, and 1 + max(a).
    pairs = [(-0.5, -1.0), (0.2, 5.0)]
    return [f"the slope is {1 + a * b:.1f}, and 1 + max(α) = {1 + a:.1f}" for a, b in pairs]


def contractive_system() -> list[str]:
    # Euler's method for x' = -x, in steps small enough for four digits.
    apart = 1.0
    for _ in range(10**6):
        apart -= 1e-6 * apart
    return [f"{apart:.4f} apart"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "Rotations without their determinant": reflection,
    "The Lie algebra of the unitary group": unit_circle,
    "The Cayley map is not onto": cayley_map,
    "The channel that is rescaled": rescaled_channel,
    "How fast rescaling nears one": rescaling_rate,
    "Where rescaling starts, and which activations it allows": rescaling_start,
    "The scale in CenterNorm": center_norm,
    "A jump in the triangular stairs": stairs,
    "A reflection by half": reflector,
    "A square in the definition of the spectral norm": squared_norm,
    "Which activations a convex potential allows": any_activation,
    "Newton's iteration past convergence": newton,
    "Negative slopes in the residual layer": negative_slopes,
    "A sign and a constant lost from the weighted shortcut": weighted_shortcut,
    "Which way a contractive system goes": contractive_system,
}

if __name__ == "__main__":
    for title, numbers in NUMBERS.items():
        print(title, numbers())
