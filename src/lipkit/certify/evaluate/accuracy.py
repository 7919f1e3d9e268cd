"""A model on a data set: clean, certified and attacked accuracy, on one process or many, resumable."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from torch import Tensor, nn

from lipkit._runtime import evaluating
from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds.certificates.identity import contents, model_contents
from lipkit.certify.attacks import Attack
from lipkit.certify.evaluate.batch import Batch, Constant, Evaluated
from lipkit.certify.evaluate.disproof import refuse_disproved
from lipkit.certify.evaluate.evaluation import Evaluation
from lipkit.certify.evaluate.records import Records, SampleResult
from lipkit.certify.evaluate.shards import Data, Place, batches, check_repeatable, describe_data, digests, first_batch
from lipkit.certify.evaluate.stored_results import Stored
from lipkit.certify.radii.forward import Logits
from lipkit.certify.radii.local_radius import LocalRadii
from lipkit.certify.radii.radius import require_certifying
from lipkit.errors import ArgumentError, MetricError, RecordError
from lipkit.nn.core.freeze import frozen


def accuracy(
    model: nn.Module,
    data: Data,
    bound: Constant,
    eps: Sequence[float],
    *,
    p: float = 2.0,
    attack: Attack | None = None,
    local: LocalRadii | None = None,
    logits: Callable[[Tensor], Logits] | None = None,
    records: str | Path | None = None,
    level: float = 0.95,
    seed: int = 0,
    name: str = "",
    progress: Callable[[int, int | None], None] | None = None,
) -> Evaluation:
    """Clean, certified and attacked accuracy of a classifier at the radii `eps` in l_`p`.

    `data` is a DataLoader, a Dataset or any iterable of (inputs, labels) in a fixed order; inputs are those the model
    takes, so a normalisation belongs into the model, where the constant counts it. `bound` is a constant of the model
    (see `radius`), or a function that gives one around the inputs of a batch, such as
    `lambda x: bounds.Local(bounds.DAG())(network, Ball(x, 0.5))`; with `records` such a function needs a `name`, by
    which stored results know it again, beside its source. Logits are evaluated in float64 with their rounding error
    (`Forward`), unless `logits` gives them. A tie of the label with another class is no decision and counts as wrong. A
    model with a single score is given as `attacks.TwoClasses(model)`.

    With `local`, samples that `bound` does not certify are tried again by what the network does on the ball around each
    (`LocalRadii`); every result says by what it was proven (`SampleResult.proof`).

    A bound of another network, or of inputs of another shape, is refused; one that the first inputs disprove is too
    (`refuse_disproved`). A stated bound (`Bound.from_value`) is accepted, and the result says so (`Evaluation.stated`).
    Every batch also runs through the model itself, in its own precision and with the casts that are on (autocast,
    TF32). Answers that differ from the captured network by more than rounding are refused; `Evaluation.otherwise`
    counts the samples that this precision decides otherwise.
    With `attack`, samples that are classified correctly are attacked at every radius. An attack that provably changes
    the class inside a certified radius stops the evaluation with a `BrokenCertificateError`; the counter-example is
    saved in `records` or in the working directory.

    With `records`, results are appended to that folder as they come and an interrupted run continues where it was.
    Under torch.distributed every process takes its share of the samples, and all return the whole evaluation; `records`
    must then be a folder that all processes see. The table is the same for any number of processes and interruptions:
    the attack draws from `seed` and the place of a batch. What is stored is used again if it is of the same model (the
    captured network, its tensors and attributes; with given `logits` also its source), constant, attack and inputs,
    each by a hash; the first stored batch is evaluated again and must agree. `progress` is called with the samples done
    and their number in this process, with `local` after each sample.

    Guarantee: certified <= true robust accuracy <= attacked, on these samples, with the bound's failure probability;
    the second as far as attacks are proven to succeed (`Evaluation.unproven`).
    Cost: one evaluation of each sample in float64 and one by the model itself, and the attack; to continue, one pass
    over the stored part of the data.
    """
    eps = check_radii(eps)
    if not callable(bound):
        require_certifying(bound)
    if not p >= 1:
        raise MetricError(f"A norm has an exponent p in [1, inf], got p={p}.")
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"An evaluation needs a torch.nn.Module, got {type(model).__name__}; wrap a function in one, or a single "
            "score in attacks.TwoClasses."
        )
    if attack is not None and not isinstance(attack, Attack):
        raise ArgumentError(f"`attack` is one of lipkit.certify.attacks, such as PGD(eps=0.5), got {attack!r}.")
    if attack is not None and attack.p != p:
        raise MetricError(f"The radii are in l{p:g} and the attack in l{attack.p:g}; use one norm for both.")
    if local is not None and not isinstance(local, LocalRadii):
        raise ArgumentError(f"`local` is LocalRadii(seconds=10.0) or None, got {local!r}.")
    if local is not None and logits is not None:
        raise ArgumentError("Radii near each sample need the captured model; leave out `logits`, or `local`.")
    if records is not None and not isinstance(bound, Bound) and not name:
        raise ArgumentError("Results with a function for `bound` can only be resumed under a `name`; give one.")
    check_seed(seed)
    check_repeatable(data)
    place = Place.here()
    model_in = Evaluated(model, logits)
    settings: dict[str, object] = {}
    fresh: list[SampleResult] = []
    seen = 0
    # Held weights: an attack asks for them hundreds of times, and they do not change.
    with evaluating(model), frozen(model):
        if records is not None or place.size > 1:
            settings = {
                **describe_evaluation(model_in, data, bound, eps, p, attack, seed, local),
                "logits": "float64" if logits is None else contents(logits), "level": level, "name": name,
            }  # fmt: skip
        place.agree(settings)
        store, done = _opened(records, settings, place, 0 if attack is None else len(eps))
        done.check_data(data, place)
        for indices, inputs, labels, _ in itertools.islice(done.batches(data, place), 1):
            x, y = model_in.placed(inputs, labels)
            done.check_found(indices, x, y, model_in.logits(x), bound if isinstance(bound, Bound) else None, p)
        for indices, inputs, labels, total in batches(data, place, lambda places: not done.has_all(places)):
            x, y = model_in.placed(inputs, labels)
            if not fresh and isinstance(bound, Bound):
                model_in.require(bound, x)
                refuse_disproved(model, model_in.logits, x, bound)
            run = Batch(model_in, x, y, indices, p, seed, Path(records or "."))
            tell = None if progress is None or total is None else lambda n, s=seen, t=total: progress(s + n, t)
            marked = zip(run.samples(bound, eps, attack, local, tell), digests(inputs), strict=True)
            found = [replace(one, digest=mark) for one, mark in marked if one.index not in done.samples]
            fresh += found
            if store is not None:
                store.append(found)
            seen += len(found)
            if progress is not None:
                progress(seen, total)
    place.meet()
    samples = list(store.read().values()) if store is not None else place.gather(fresh)
    return Evaluation.of(samples, eps, p, level, bound.failure if isinstance(bound, Bound) else 0.0)


def describe_evaluation(
    model_in: Evaluated, data: Data, bound: Constant, eps: Sequence[float], p: float, attack: Attack | None, seed: int,
    local: LocalRadii | None = None,
) -> dict[str, object]:  # fmt: skip
    """Everything that stored results depend on, by numbers and hashes. Cost: one pass over the model and the data."""
    first = first_batch(data)
    network = model_in.network(*first) if len(first[0]) else ""
    # A captured network says what the model computes, so its code is left out.
    return {
        **model_contents(model_in.module, code=not network), "network": network, **_search_settings(eps, p, attack),
        "bound": _bound_settings(bound), "data": describe_data(data, first), "seed": seed,
        **({} if local is None else {"local": contents(local)}),
    }  # fmt: skip


def _bound_settings(bound: Constant) -> object:
    """A constant as it is found again: everything a radius depends on; of a function its source and what it holds."""
    if not isinstance(bound, Bound):
        return contents(bound)
    return {
        "log_value": [x.hex() for x in bound.log_value.detach().flatten().tolist()],
        "kind": bound.kind.value, "metric": str(bound.metric), "of": str(bound.of),
        "region": contents(bound.region), "failure": bound.failure,
        "network": "stated by the user" if bound.subject is None else bound.subject.network,
    }  # fmt: skip


def _search_settings(eps: Sequence[float], p: float, attack: Attack | None) -> dict[str, object]:
    """The radii and the attack with all its fields: a name tells neither its box nor the steps of its schedule."""
    own = {} if attack is None else {field.name: contents(getattr(attack, field.name)) for field in fields(attack)}
    return {
        "eps": list(eps),
        "norm": p if math.isfinite(p) else "inf",
        "attack": None if attack is None else {**own, "whole": contents(attack)},
    }


def _opened(
    records: str | Path | None, settings: Mapping[str, object], place: Place, attacked: int
) -> tuple[Records | None, Stored]:
    """The folder and what it holds, with attacks at so many radii."""
    if records is None:
        return None, Stored(Path(), {})
    store = None
    # The first writes the settings, the others find them.
    for turn in (True, False):
        if (place.rank == 0) is turn:
            store = Records(records, settings, place.rank)
        place.meet()
    assert store is not None
    done = store.read()
    if wrong := [sample.index for sample in done.values() if len(sample.broken) != attacked]:
        raise RecordError(f"{records} has attacks at other radii for sample {wrong[0]}; give another folder.")
    place.meet()
    return store, Stored(Path(records), done)


def check_radii(eps: Sequence[float]) -> tuple[float, ...]:
    """The radii, if there are some and they are finite, >= 0 and in increasing order."""
    if isinstance(eps, str) or not isinstance(eps, Iterable):
        raise ArgumentError(f"`eps` lists radii, such as [36 / 255], got {eps!r}.")
    found = tuple(float(e) for e in eps)
    if not found or not all(math.isfinite(e) and e >= 0 for e in found) or list(found) != sorted(set(found)):
        raise ArgumentError(f"`eps` lists radii >= 0 in increasing order, got {list(eps)}.")
    return found
