"""The results of single samples: decisions, radii and attacks, evaluated again."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Bound
from lipkit.certify import Evaluation, SampleResult
from lipkit.certify.evaluate.accuracy import describe_evaluation
from lipkit.certify.evaluate.batch import Evaluated
from lipkit.certify.evaluate.counterexample import provably_changed
from lipkit.certify.evaluate.records import read_samples
from lipkit.certify.evaluate.result_folder import read_settings
from lipkit.certify.evaluate.shards import Place, batches, digests
from lipkit.certify.radii.forward import Logits
from lipkit.certify.radii.radius import radius
from lipkit.cli.audit.audited_run import ANEW, AuditedRun
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.cli.audit.local_check import repeat_local
from lipkit.cli.console import bar
from lipkit.cli.runs.assessment import evaluate_goal, in_batches
from lipkit.nn.core.freeze import frozen
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

# Of the samples that were attacked on another machine so many in a hundred may end otherwise: a search in float32 goes
# another way after a rounding.
_OTHERWISE = 0.01
# More than the roundings of a division and of a change of norms.
_SLACK = MILLIONS_OF_ROUNDINGS
# The confidence of intervals, which no command changes.
_LEVEL = 0.95


def check_samples(
    run: AuditedRun, bounds: tuple[Bound, Bound], findings: Findings, same_machine: bool, only: int | None,
    out: Path | None,
) -> Evaluation | None:  # fmt: skip
    """The evaluation of the stored samples, each of which is computed again; None if there are none to be counted.

    The samples must be those of the data set, each once, with its label and the hash of its input. Decisions may differ
    where two classes tie within the rounding error of the logits. A stored radius r must fit

        (g - 6 e) / K <= r <= (g + 2 e) / K,   g the gap of the logits computed now, e the error that `Forward` proves

    because an honest r lies between the true gap less 4 e and the true gap, and g is within 2 e of the true gap; the
    whole is widened by 2^-30 for the roundings of the formula. On the same machine it must be the same to the bit.
    Attacks are done again and must end the same; on another machine one sample in a hundred may end otherwise.

    Args:
        run: The run.
        bounds: The stored constant and the one that is proven now.
        findings: Where mismatches are noted.
        same_machine: Whether the run was made on this machine with this software.
        only: A number of samples to look at, chosen at random, and without the attack; None for all.
        out: A folder for the repeated attacks, so that an interrupted audit continues; None for none.
    """
    folder = run.folder / "evaluation"
    samples: dict[int, SampleResult] = {}
    with findings.reading(folder):
        samples = read_samples(folder)
    with findings.reading(folder / "settings.json"):
        _check_settings(run, bounds[0], findings)
    if not samples or not check_indices(folder, samples, len(run.test), findings):
        return None
    chosen = None if only is None or only >= len(samples) else choose_places(len(samples), only)
    before = len(findings.mismatches)
    # Kernels of a GPU add in an order that changes from run to run.
    exact = same_machine and run.device.type == "cpu"
    with findings.reading(folder):
        _check_radii(run, bounds, samples, findings, chosen, exact)
    found = Evaluation.of(list(samples.values()), run.goal.eps, run.goal.p, _LEVEL, bounds[0].failure)
    if chosen is None and len(findings.mismatches) == before:
        findings.confirm(f"samples: decisions and radii of all {len(samples)} came out again")
    if run.goal.attack is None:
        return found
    if chosen is not None:
        findings.skipped.append("The attack was not repeated.")
    elif len(findings.mismatches) == before:
        # A constant that does not hold would stop the attack; what it breaks does not depend on the constant.
        usable = bounds[0] if run.at_home and not findings.mismatches else bounds[1]
        with findings.reading(folder):
            _check_attack(run, usable, samples, findings, exact, out)
    return found


def _check_settings(run: AuditedRun, bound: Bound, findings: Findings) -> None:
    path = run.folder / "evaluation" / "settings.json"
    stored = read_settings(path.parent)
    goal, model_in = run.goal, Evaluated(run.model, None)
    with frozen(run.model):
        found = describe_evaluation(model_in, run.test, bound, goal.eps, goal.p, goal.attack, run.seed, goal.local)
    found |= {"logits": "float64", "level": _LEVEL, "name": ""}
    if not run.at_home:
        # Weights that a device computes are rounded as it does.
        found["network"] = stored.get("network")
    # Through JSON, as the file went.
    for place, says, here in find_differences(stored, as_json(found)):
        findings.differ(path, place, says, here, ANEW)
        return


def as_json(value: object) -> object:
    """Settings as a file gives them back."""
    match value:
        case Mapping():
            return {str(key): as_json(one) for key, one in value.items()}
        case list() | tuple():
            return [as_json(one) for one in value]
        case _:
            return value


def check_indices(folder: Path, samples: Mapping[int, object], total: int, findings: Findings) -> bool:
    """Whether a folder has a line for each sample of the data; one that is there twice is noted too."""
    lines = sum(path.read_bytes().count(b"\n") for path in folder.glob("samples-*.jsonl"))
    missing, strange = set(range(total)) - samples.keys(), samples.keys() - set(range(total))
    if missing or strange:
        what = f"lacks sample {min(missing)}" if missing else f"has a sample {min(strange)}, which the data do not have"
        findings.refuse(folder, f"{folder} {what}: it holds {len(samples)} samples and the data {total}; {ANEW}.")
    elif lines != len(samples):
        findings.refuse(
            folder, f"{folder} has {lines} lines for {len(samples)} samples, so some are there twice; {ANEW}."
        )
    return not missing and not strange


def choose_places(total: int, count: int) -> set[int]:
    """Places that nobody could know before."""
    order = list(range(total))
    return {order.pop(secrets.randbelow(len(order))) for _ in range(count)}


def _check_radii(
    run: AuditedRun, bounds: tuple[Bound, Bound], samples: Mapping[int, SampleResult], findings: Findings,
    chosen: set[int] | None, exact: bool,
) -> None:  # fmt: skip
    model_in = Evaluated(run.model, None)
    lost: Counter[float] = Counter()
    otherwise: list[int] = []

    def wanted(places: Sequence[int]) -> bool:
        return chosen is None or any(i in chosen for i in places)

    done = 0
    with frozen(run.model), bar("evaluating again") as show:
        for indices, inputs, labels, total in batches(in_batches(run.test, run.goal), Place(), wanted):
            x, y = model_in.placed(inputs, labels)
            found = model_in.logits(x)
            marks = digests(inputs)
            differs = model_in.decides_otherwise(x, found, indices).tolist()
            honest = torch.stack(_radius_range(found, x, y, bounds[0], run.goal.p, exact), 1)
            proven = _radii(found, x, y, bounds[1], run.goal.p)
            decided = torch.tensor([samples[i].predicted for i in indices], device=x.device)
            last = found.value.shape[1] - 1
            impossible = provably_changed(found, decided.clamp(0, last)) | (decided > last)
            classes = torch.where(impossible, found.value.argmax(1), decided)
            columns = (y.tolist(), marks, classes.tolist(), honest.tolist(), proven.tolist(), differs)
            for i, label, mark, decision, limits, sure, other in zip(indices, *columns, strict=True):
                if chosen is None or i in chosen:
                    if samples[i].proof:
                        at = indices.index(i)
                        one = Logits(found.value[at : at + 1], found.error[at : at + 1], found.subject)
                        limits = repeat_local(run, model_in, samples[i], x[at], label, one, exact)
                        sure = limits[0]
                    _check_one(run, samples[i], label, mark, decision, limits, findings)
                    _check_marks(run, samples[i], bounds[0], findings)
                    otherwise += [i] if samples[i].otherwise != other else []
                    lost.update(eps for eps in run.goal.eps if samples[i].radius > eps >= sure)
            done += len(indices)
            show(done, total, "")
    _check_otherwise(run, samples, otherwise, findings, exact)
    # Where nothing is drawn, the stored constant itself is proven or named.
    for eps, count in sorted(lost.items()) if bounds[1].failure else ():
        findings.unproven.append(
            f"{run.folder / 'evaluation'}: of the samples that are certified up to {eps:g}, {count} are not with the "
            "constants that fresh draws prove; count these as not certified."
        )


def _radius_range(
    found: Logits, x: Tensor, labels: Tensor, bound: Bound, p: float, exact: bool
) -> tuple[Float64[Tensor, " batch"], Float64[Tensor, " batch"]]:
    """The smallest and the largest radius that an honest evaluation gives: here, or on whatever machine."""
    if exact:
        same = _radii(found, x, labels, bound, p)
        return same, same
    shift = 4 * found.error[:, None] * torch.nn.functional.one_hot(labels.long(), found.value.shape[1])
    least, most = (_radii(Logits(found.value + sign * shift, found.error), x, labels, bound, p) for sign in (-1, 1))
    return least * (1 - _SLACK), most * (1 + _SLACK)


def _radii(found: Logits, x: Tensor, labels: Tensor, bound: Bound, p: float) -> Float64[Tensor, " batch"]:
    return radius(found.value, labels, bound, error=found.error, at=x).in_norm(p, x[0].numel()).value


def _check_one(
    run: AuditedRun, sample: SampleResult, label: int, mark: str, decision: int, limits: Sequence[float],
    findings: Findings,
) -> None:  # fmt: skip
    file, name = run.folder / "evaluation", f"of sample {sample.index}"
    if sample.label != label:
        findings.differ(file, f"the label {name}", sample.label, label, ANEW)
    if sample.digest != mark:
        findings.differ(
            file, f"the hash of the input {name}", sample.digest, mark, f"the data or the line was changed: {ANEW}"
        )
    if sample.predicted != decision:
        findings.differ(file, f"the class {name}", sample.predicted, decision, ANEW)
    low, high = limits
    if not low <= sample.radius <= high:
        findings.differ(file, f"the radius {name}", sample.radius, low if low == high else f"{low!r} to {high!r}", ANEW)
    elif sample.radius > 0 and sample.predicted != sample.label:
        findings.refuse(file, f"{file}: sample {sample.index} has a radius and the wrong class; {ANEW}.")


def _check_marks(run: AuditedRun, sample: SampleResult, bound: Bound, findings: Findings) -> None:
    """Compare what a line says beside decision and radius, and that no attack is told of where none was made."""
    file, name = run.folder / "evaluation", f"of sample {sample.index}"
    attacked = len(run.goal.eps) if run.goal.attack is not None else 0
    unproven = sample.unproven and not attacked
    for what, says, found in (
        ("the origin of the constant", *("a statement" if one else "a computation" for one in (
            sample.stated, bound.subject is None and not sample.proof,
        ))),
        ("the probability of failure", sample.failure, 0.0),
        ("the number of attacks", len(sample.broken), attacked),
        ("the mark for an attack without a proof", unproven, False),
    ):  # fmt: skip
        if says != found:
            findings.differ(file, f"{what} {name}", says, found, ANEW)


def _check_otherwise(
    run: AuditedRun, samples: Mapping[int, SampleResult], apart: Sequence[int], findings: Findings, exact: bool
) -> None:
    """Compare which samples the model as it runs decides otherwise; its last bits are others on another machine."""
    if len(apart) > (0 if exact else max(1.0, _OTHERWISE * len(samples))):
        words = ("decided as in exact arithmetic", "decided otherwise")
        said = samples[apart[0]].otherwise
        findings.differ(
            run.folder / "evaluation", f"sample {apart[0]}, by the model as it runs,", words[said], words[not said],
            f"{len(apart)} of {len(samples)} samples differ: {ANEW}",
        )  # fmt: skip


def _check_attack(
    run: AuditedRun, bound: Bound, samples: Mapping[int, SampleResult], findings: Findings, exact: bool,
    out: Path | None,
) -> None:  # fmt: skip
    records = None if out is None else out / "evaluation"
    # What holds near the samples was proven again before, and no attack depends on it.
    again = evaluate_goal("attacking again", run.model, run.test, bound, run.goal, run.seed, records, near=False)
    file = run.folder / "evaluation"
    # What the radii say was compared before, with room for rounding.
    apart = [
        (samples[new.index], new)
        for new in again.samples
        if replace(new, **_compared_before(samples[new.index])) != samples[new.index]
    ]
    if len(apart) > (0 if exact else _OTHERWISE * len(samples)):
        old, new = apart[0]
        findings.differ(
            file, f"the outcome of attacks on sample {old.index}", _outcome(old), _outcome(new),
            f"{len(apart)} of {len(samples)} samples differ: {ANEW}",
        )  # fmt: skip
        return
    how = "all with the same outcome" if not apart else f"{len(apart)} with another outcome, as rounding may explain"
    findings.confirm(f"attack: {len(samples)} samples attacked again, {how}")


def _compared_before(sample: SampleResult) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in ("radius", "predicted", "ball", "proof", "stated")}


def _outcome(sample: SampleResult) -> str:
    words = ", ".join("broken" if one else "not broken" for one in sample.broken)
    return f"{words}{', not proven' if sample.unproven else ''}"
