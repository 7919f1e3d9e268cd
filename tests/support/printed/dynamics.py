"""The numbers in the errata on training dynamics."""

import math
from collections.abc import Callable

import numpy as np

RATE = 0.1
# The second derivative of sigma_1 at diag(2, 1): 2 / (4 - 1) for each of the two entries beside the diagonal.
BENT = 2 / 3


def logarithm() -> list[str]:
    return [f"{math.log(0.99) / 2:.5f}", f"{RATE * RATE / 2:.5f}"]


def kernel() -> list[str]:
    ones = np.ones((3, 3))
    largest = np.abs(np.fft.fft2(ones, s=(8, 8))).max()
    return [f"{np.linalg.norm(ones.reshape(1, 9), 2):.2f}", f"{largest:.2f}"]


def fisher() -> list[str]:
    return [f"{0.9 * 0.1:.4f}", f"{(0.9 * 0.1) ** 2:.4f}"]


def noise() -> list[str]:
    trace = 2 * BENT
    return ["4/3", f"{RATE * trace / (2 * 2):.4f}", f"{2 + RATE**2 * trace / 2:.4f}"]


def batches() -> list[str]:
    return [f"{RATE * BENT / (2 * 2) / size:.4f}" for size in (1, 2)]


def root() -> list[str]:
    printed = 2 * 4**-0.5 * 4**0.5 * 4**-0.5 * 2
    return [f"{math.sqrt(printed):.4f}", f"is {math.sqrt(2 * 4**-0.5 * 4 * 4**-0.5 * 2):g}"]


def restored() -> list[str]:
    return [f"{(1 - math.exp(-2 * t)) / (2 * t):.4f}" for t in (1, 2)]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The logarithm of the constant drifts down by noise": logarithm,
    "The matrix of a convolution": kernel,
    "The gradients in the Fisher matrix": fisher,
    "Growth without limit": lambda: [f"{math.e:.4f}"],
    "Noise that is not negligible": noise,
    "What the batch size changes": batches,
    "Powers in a square root": root,
    "The scatter of log K over trainings": restored,
}
