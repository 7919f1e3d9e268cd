"""How exact derivatives of singular values are: the published trials, and two orders more.

    python benchmarks/analysis_trials.py [--trials 500] [--digits 100]

Matrices of 6 x 10, entries N(0, 1) and U[0, 1] by turns, seed 1 (Luo 2025, section 3.7), and every singular value.
Orders one and two are whole tensors and are compared with autograd through `svdvals` in float64, in the spectral norm,
as published. Orders three and four are along one random direction of length 1, and are compared with autograd, and
on the first `digits` matrices with the perturbation series of the eigenvalues of [0 A; A' 0] in 40 digits. There,
errors are also divided by n! / gap^(n-1), the size that a derivative of order n may have.
"""

import argparse
import math
from collections import defaultdict

import mpmath
import torch
from torch import Tensor

from lipkit import analysis
from lipkit.linops import materialize

# Published: no error of the Jacobian, and below this for the Hessian.
PUBLISHED = 6e-14


def by_autograd(matrix: Tensor, change: Tensor, k: int) -> list[float]:
    """The first four derivatives along a direction."""
    x = torch.zeros((), dtype=matrix.dtype, requires_grad=True)
    current, found = torch.linalg.svdvals(matrix + x * change)[k], list[float]()
    for _ in range(4):
        (current,) = torch.autograd.grad(current, x, create_graph=True)
        found.append(float(current.detach()))
    return found


def in_many_digits(matrix: Tensor, change: Tensor) -> list[list[mpmath.mpf]]:
    """The first four derivatives of all singular values, by the series of the eigenvalues of the dilation."""
    rows, columns = matrix.shape
    start, moved = (mpmath.matrix(torch.cat([torch.cat([torch.zeros(rows, rows), x], 1),
                                             torch.cat([x.mT, torch.zeros(columns, columns)], 1)]).tolist())
                    for x in (matrix, change))  # fmt: skip
    values, basis = mpmath.eigsy(start)
    moved = basis.T * moved * basis
    size = rows + columns
    found: list[list[mpmath.mpf]] = []
    for k in sorted(range(size), key=lambda i: -values[i])[: min(rows, columns)]:
        vectors = [mpmath.matrix([mpmath.mpf(i == k) for i in range(size)])]
        terms: list[mpmath.mpf] = [values[k]]
        for order in range(1, 5):
            rest = moved * vectors[-1]
            terms.append(rest[k])
            for j in range(1, order):
                rest -= terms[j] * vectors[order - j]
            vectors.append(
                mpmath.matrix([mpmath.mpf(0) if i == k else rest[i] / (values[k] - values[i]) for i in range(size)])
            )
        found.append([math.factorial(n) * terms[n] for n in range(1, 5)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--digits", type=int, default=100)
    arguments = parser.parse_args()
    source = torch.Generator().manual_seed(1)
    errors: defaultdict[str, list[float]] = defaultdict(list)
    mpmath.mp.dps = 40
    for trial in range(arguments.trials):
        matrix = (torch.rand if trial % 2 else torch.randn)(6, 10, dtype=torch.float64, generator=source)
        change = torch.randn(6, 10, dtype=torch.float64, generator=source)
        change /= torch.linalg.matrix_norm(change)
        slopes = torch.func.jacrev(torch.linalg.svdvals)(matrix)
        curvatures = torch.func.hessian(torch.linalg.svdvals)(matrix).reshape(6, 60, 60)
        exact = in_many_digits(matrix, change) if trial < arguments.digits else None
        for k in range(6):
            hessian = analysis.singular_value_hessian(matrix, k)
            _, u, v = hessian.triplet()
            errors["1, tensor, autograd"].append(float(torch.linalg.matrix_norm(torch.outer(u, v) - slopes[k], 2)))
            apart = materialize(hessian) - curvatures[k]
            errors["2, tensor, autograd"].append(float(torch.linalg.matrix_norm(apart, 2)))
            gap = analysis.taylor(matrix, [change], k, order=0).start.gap
            theirs = by_autograd(matrix, change, k)
            for n in range(1, 5):
                ours = analysis.derivative(matrix, [change] * n, k)
                errors[f"{n}, direction, autograd"].append(abs(ours - theirs[n - 1]))
                if exact is not None:
                    miss = float(abs(ours - exact[k][n - 1]))
                    scale = math.factorial(n) / gap ** (n - 1)
                    errors[f"{n}, direction, 40 digits"].append(miss)
                    errors[f"{n}, direction, 40 digits, scaled"].append(miss / scale)
                    off = float(abs(theirs[n - 1] - exact[k][n - 1]))
                    errors[f"{n}, autograd itself, 40 digits, scaled"].append(off / scale)
        if trial % 50 == 49:
            print(f"{trial + 1} matrices", flush=True)
    print(f"{'order':46s}    pairs    median   largest   below {PUBLISHED:g}")
    for name, found in sorted(errors.items()):
        row = torch.tensor(found, dtype=torch.float64)
        share = float((row < PUBLISHED).double().mean())
        print(f"{name:46s} {len(row):8d} {float(row.median()):9.1e} {float(row.max()):9.1e} {share:9.1%}")


if __name__ == "__main__":
    main()
