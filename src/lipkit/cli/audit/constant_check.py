"""The constant of a run: reproduced from its recorded draws, and proven by fresh ones."""

import re
from dataclasses import replace

import torch
from torch import Tensor

from lipkit._runtime import recording, replaying
from lipkit.bound import Bound, Scope
from lipkit.bounds.certificates.identity import network_hash
from lipkit.bounds.certificates.verify import ROUNDING
from lipkit.bounds.lipschitz import network_of
from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings
from lipkit.cli.runs.stored_bound import StoredBound
from lipkit.errors import LipkitError

# What a method says of the time it was given, which may be what others left.
_TIME = re.compile(r"at most [0-9.e+-]+ m?s")
# Fresh draws of a randomised constant at most, of which the smallest counts: one alone is above an honest one in every
# other case. The failure probabilities add up.
_DRAWS = 4


def check_constant(run: AuditedRun, findings: Findings, same_machine: bool) -> tuple[Bound, Bound] | None:
    """The stored constant and the one that is proven now; None if either is missing. Cost: `find`, up to six times.

    The stored one must be of this network and code. Its recorded draws must give it again: bit for bit on the same
    machine, within 1e-9 elsewhere. A constant that draws is also found from fresh entropy, because a recorded seed can
    be searched for. It is found again until none of its values is above the stored one, four times at most; the
    smallest is what is proven.
    """
    file = run.folder / "bound.safetensors"
    stored = None
    with findings.reading(file):
        stored = StoredBound.read(file)
    network = None
    with findings.reading(run.weights), torch.no_grad():
        network = network_hash(network_of(run.model, run.example))
    if stored is None or network is None:
        return None
    if stored.source != run.prints.code:
        findings.differ(file, "the hash of the code", stored.source, run.prints.code, ANEW)
    # Weights that a device computes are rounded as it does.
    if stored.network != network and run.at_home:
        findings.differ(file, "the hash of the network", stored.network, network, ANEW)
    try:
        repeated, proven = _find(run, stored)
    except LipkitError as error:
        findings.refuse(file, f"{file}: the model has no such constant when it is computed again ({error}); {ANEW}.")
        return None
    known = stored.bound
    for what, says, found in (
        ("the kind", known.kind.value, repeated.kind.value), ("the norms", str(known.metric), str(repeated.metric)),
        ("what it is a constant of", str(known.of), str(repeated.of)),
        ("the probability of failure", known.failure, repeated.failure),
        ("the way it was found", *(_TIME.sub("", one.how) for one in (known, repeated))),
        ("its origin", *("a statement" if one.subject is None else "a computation" for one in (known, repeated))),
        ("the number of values", tuple(known.log_value.shape), tuple(repeated.log_value.shape)),
    ):  # fmt: skip
        if says != found:
            findings.differ(file, what, says, found, ANEW)
            if what == "the number of values":
                return None
    if known.subject is not None and repeated.subject is not None:
        if known.subject.source != repeated.subject.source:
            shapes = known.subject.source, repeated.subject.source
            findings.differ(file, "the shape of one input", *shapes, ANEW)
        if known.subject.network != repeated.subject.network and run.at_home:
            hashes = known.subject.network, repeated.subject.network
            findings.differ(file, "the fingerprint of what it bounds", *hashes, ANEW)
    _compare_values(file, known, repeated, findings, same_machine and run.device.type == "cpu")
    if repeated.subject is None:
        findings.unproven.append(
            f"{file}: the constant is stated by the recipe, not computed, so nothing proves the radii; give the recipe "
            "a bound that is computed from the model."
        )
    if proven.failure:
        more = (proven.log_value.cpu() - known.log_value).max().expm1().item()
        said = f"{more:.2g} more" if more > 0 else "no more"
        findings.confirm(
            f"constant: fresh draws prove {said} than the recorded one, with failure <= {proven.failure:.0e}"
        )
    return known, proven


def _find(run: AuditedRun, stored: StoredBound) -> tuple[Bound, Bound]:
    """The constant from the recorded draws, and the smallest of several from fresh ones if it draws at all."""
    with torch.no_grad():
        with replaying(stored.draws), recording() as drawn:
            repeated = run.find()
        if not drawn:
            return repeated, repeated
        fresh: list[Bound] = []
        least = torch.full_like(repeated.log_value, torch.inf)
        while len(fresh) < _DRAWS and bool((least > stored.bound.log_value.to(least)).any()):
            fresh.append(run.find())
            least = torch.minimum(least, fresh[-1].log_value)
    return repeated, replace(fresh[0], log_value=least, failure=min(0.999, sum(one.failure for one in fresh)), parts=())


def _compare_values(file: object, known: Bound, repeated: Bound, findings: Findings, same_machine: bool) -> None:
    says, found = _relevant(known), _relevant(repeated)
    # How much less the file says, of logarithms, so relatively; two infinities of one sign are the same.
    less = torch.where(says == found, 0.0, found - says)
    if bool((less > (0.0 if same_machine else ROUNDING)).any()):
        at = int(less.argmax())
        what = f"the constant (value {at + 1} of {less.numel()})"
        findings.differ(file, what, float(says[at].exp()), float(found[at].exp()), f"it is not proven: {ANEW}")
        return
    top = float(says.max().exp()) if less.numel() else 0.0
    how = "bit for bit" if same_machine else f"to {ROUNDING:g}, since the machine or its software is another"
    if bool((less < (0.0 if same_machine else -ROUNDING)).any()):
        # A method that stops by the clock may find less on a faster machine; a larger constant is proven with it.
        how = f"smaller, by up to {-float(less.min().expm1()):.2g}, so these hold"
    findings.confirm(f"constant: {less.numel()} values up to {top:.6g} came out again {how}")


def _relevant(bound: Bound) -> Tensor:
    """The logarithms that radii use: of pairs those of two different classes."""
    logs = bound.log_value.detach().cpu()
    if bound.of is Scope.PAIR and len(logs) > 1:
        return logs[~torch.eye(len(logs), dtype=torch.bool)]
    return logs.flatten()
