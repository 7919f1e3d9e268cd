"""A general convex solver for the semidefinite programs of networks; needs the package cvxpy."""

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.interior_point import Solver
from lipkit.bounds.sdp.program import Program
from lipkit.errors import NotProvenError, UnsupportedError


@final
@dataclass(frozen=True)
class Cvxpy(Solver):
    """The program handed to cvxpy and its solver Clarabel: slower than `InteriorPoint`, and written by others.

    What it returns is verified like everything else. Cost: grows with the sixth power of the width, about 10 s for a
    hundred neurons.
    """

    def __str__(self) -> str:
        return "cvxpy with Clarabel"

    def solve(self, program: Program, start: Float64[Tensor, " groups"]) -> Float64[Tensor, " groups"]:
        try:
            import cvxpy  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedError(
                "The solver Cvxpy needs the packages cvxpy and clarabel, which are not installed; "
                "run `pip install lipkit[sdp]`, or use InteriorPoint()."
            ) from error
        # In units of the start all multipliers are of the order of 1.
        share = cvxpy.Variable(program.groups + 1, nonneg=True)
        columns = scipy.sparse.csr_array((program.columns() * start).numpy())
        constant = program.matrix(torch.zeros_like(start)).numpy()
        flat = columns @ share + constant.reshape(-1)
        form = cvxpy.reshape(flat, (program.size, program.size), order="C")
        problem = cvxpy.Problem(cvxpy.Minimize(share[0]), [(form + form.T) / 2 >> 0])
        problem.solve(solver=cvxpy.CLARABEL)
        if share.value is None:
            raise NotProvenError(f"cvxpy ended with status {problem.status}; use InteriorPoint().")
        return start * torch.as_tensor(np.asarray(share.value), dtype=torch.float64)
