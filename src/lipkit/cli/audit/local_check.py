"""Radii that are proven near a sample: the same proof on the same ball, done again."""

import torch
from torch import Tensor

from lipkit.certify import LocalProof, SampleResult
from lipkit.certify.evaluate.batch import Evaluated
from lipkit.certify.radii.forward import Logits
from lipkit.cli.audit.audited_run import AuditedRun
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

# More than the roundings of a division; the ball itself is on record.
_SLACK = MILLIONS_OF_ROUNDINGS


def repeat_local(
    run: AuditedRun, model_in: Evaluated, sample: SampleResult, x: Tensor, label: int, logits: Logits, exact: bool
) -> tuple[float, float]:
    """The smallest and the largest radius that the recorded proof gives on the recorded ball; 0 if it proves nothing.

    Nothing is drawn, and the clock has no part in a single proof, so on the same machine the radius is the same to the
    bit; elsewhere it may differ by roundings. Cost: one proof.

    Args:
        run: The run.
        model_in: The model, which keeps what is prepared for all samples.
        sample: The stored result.
        x: The input without batch axis.
        label: Its label.
        logits: Its logits, one row.
        exact: Whether the radius must be the same to the bit.
    """
    known = {proof.value: proof for proof in LocalProof}
    if run.goal.local is None or sample.proof not in known:
        return 0.0, 0.0
    with torch.no_grad():
        search = model_in.search(run.goal.local, run.goal.p, x[None])
        found = search.repeat(x, label, logits, sample.ball, known[sample.proof]).value
    return (found, found) if exact else (found * (1 - _SLACK), found * (1 + _SLACK))
