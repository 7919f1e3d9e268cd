"""A certificate against a model: the recorded number is reproduced, and a bound is proven anew."""

import enum
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, final

import torch

from lipkit._runtime import replaying
from lipkit.bound import Bound, Kind
from lipkit.bounds._base import Method
from lipkit.bounds.certificates.certificate import Certificate, Software
from lipkit.bounds.certificates.issue import assumptions
from lipkit.bounds.certificates.provenance import Inputs, ModelRecord, Subject
from lipkit.bounds.lipschitz import Example, Program, call_of
from lipkit.errors import CertificateError, LipkitError
from lipkit.norms import Auto as AutoNorm
from lipkit.norms import Lanczos
from lipkit.regions import Region

# Another order of summation changes a float64 number by far less, an honest method by no more.
ROUNDING = 1e-9
# A fresh draw is asked for this part of the recorded tolerance: two draws of one tolerance differ by about as much as
# it is, so that every other honest value would not be proven by a draw like its own.
_SHARPER = 8.0
# Norms over grids refuse less than a tenth of this.
_SHARPEST = 1e-5
# How much longer a method may run that stops by the clock: the machine may be slower or busier than the first one.
_PATIENCE = 4.0


class Replay(enum.Enum):
    """Whether the recorded method, with the recorded draws, gives the recorded number."""

    EXACT = "bit for bit"
    ROUNDED = f"up to a rounding of {ROUNDING:g}, since the software, the processor or its threads differ"
    NONE = "not at all"


@final
@dataclass(frozen=True, eq=False)
class Verification:
    """The result of a check of a certificate.

    `replay` says whether the recorded draws give the recorded number. `proven` is a bound of the model that rests on
    draws made for this check alone, or on none: nobody could choose them, so it holds whatever the certificate says,
    with its own probability of failure. `holds` says that it proves the recorded value.

    A value that is reproduced and does not hold is no forgery by that: a fresh draw may come out larger than the
    recorded one. It is not proven either: the recorded draw may have been searched for.
    """

    certificate: Certificate
    replay: Replay
    proven: Bound

    @property
    def recorded(self) -> float:
        """The value on the certificate."""
        return self.certificate.value

    @property
    def reproduced(self) -> bool:
        """Whether the recorded method and draws give the recorded value."""
        return self.replay is not Replay.NONE

    @property
    def holds(self) -> bool:
        """Whether the recorded value is proven: it is not below what was proven now, not by a bit."""
        return _log(self.proven) <= self.certificate.log_value

    @property
    def value(self) -> float:
        """The number that is confirmed: the larger of the recorded and the proven one."""
        return self.recorded if self.holds else float(self.proven.value.detach())

    def __str__(self) -> str:
        drawn = "fresh draws prove" if self.proven.failure else "computed anew, the bound is"
        said = "it holds" if self.holds else "the recorded value is not proven; use the larger one"
        return (
            f"The recorded value {self.recorded:.10g} is reproduced {self.replay.value}; {drawn} "
            f"{self.proven.value.item():.10g}: {said}."
        )


def verify(
    certificate: Certificate, model: Program, example: Example = None, region: Region | None = None
) -> Verification:
    """Reproduce and prove a certificate for a model; a `CertificateError` with the reason if neither is possible.

    The model is captured again, from `example` or from the recorded shapes, and must have the recorded structure,
    shapes, weights and declared constants. Then:

    1. The recorded method runs with the recorded draws and must give the recorded value: bit for bit with the same
       software, processor and number of threads on a CPU, within 1e-9 relatively elsewhere. A method that draws
       nothing has proven its value by that.
    2. A method that draws runs once more with fresh entropy, an eighth of its tolerance, and never with a recorded
       seed, because a seed can be searched for. Only what this run bounds is proven.

    A value below what is proven is refused, unless it is reproduced: then `Verification.holds` is False. A value above
    it holds, reproduced or not.

    `region` is needed where the certificate keeps only a hash of it. Not proven again, but on record only: the versions
    of software, the seconds, the table of layers, what was asked and how it was found, and the lower bound, which must
    not exceed what is proven.
    Guarantee: `Verification.proven` is a new bound with its own kind and failure; a false value holds with at most its
    probability of failure. Cost: that of `certificate`; about three times as much where it drew. A method that stops by
    the clock gets four times the recorded time.
    """
    where = certificate.region.restore(region)
    subject = _captured(certificate, model, example)
    versions = certificate.software.against(Software.here())
    certificate.model.require(ModelRecord.of(subject), subject.network, versions)
    _require_assumptions(certificate, subject)
    patient = _adjusted(certificate.method, 1.0)
    try:
        with torch.no_grad():
            with replaying([int(one, 16) for one in certificate.draws]):
                repeated = patient(subject.network, where)
            fresh = _adjusted(certificate.method, _SHARPER)(subject.network, where) if repeated.draws else repeated
    except LipkitError as error:
        raise CertificateError(f"The recorded method gives no bound of this model on this region: {error}") from error
    _require_statement(certificate, repeated, fresh)
    found = Verification(certificate, _replay(certificate, repeated, subject), fresh)
    if not found.holds and not found.reproduced:
        raise CertificateError(
            f"The certificate says {certificate.value:.17g}, computed anew the bound is {fresh.value.item():.17g}, and "
            f"the recorded draws give {repeated.value.item():.17g}: the value is neither reproduced nor proven"
            f"{versions}."
        )
    return found


def _adjusted(method: Method, sharper: float) -> Method:
    """The method with more time, and randomised norms with a smaller tolerance."""

    def adjust(value: Any) -> Any:
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(adjust, value))
        if not is_dataclass(value) or isinstance(value, type):
            return value
        changed = {f.name: adjust(getattr(value, f.name)) for f in fields(value) if f.init}
        if isinstance(value, Lanczos | AutoNorm):
            changed["rtol"] = max(value.rtol / sharper, min(value.rtol, _SHARPEST))
        if isinstance(changed.get("budget"), int | float):
            changed["budget"] *= _PATIENCE
        return replace(value, **changed)

    return adjust(method)


def _replay(certificate: Certificate, repeated: Bound, subject: Subject) -> Replay:
    apart = abs(_log(repeated) - certificate.log_value)
    if _log(repeated) == certificate.log_value:
        return Replay.EXACT
    # Kernels of a GPU add in an order that changes from run to run.
    elsewhere = certificate.software != Software.here() or subject.network.device.type != "cpu"
    return Replay.ROUNDED if elsewhere and apart <= ROUNDING else Replay.NONE


def _log(bound: Bound) -> float:
    return float(bound.log_value.detach())


def _captured(certificate: Certificate, model: Program, example: Example) -> Subject:
    inputs = certificate.inputs
    call = inputs.call() if example is None else call_of(model, example)
    inputs.require(Inputs.of(call, inputs.wrt, inputs.output))
    try:
        return Subject.of(model, call, inputs.wrt, inputs.output)
    except LipkitError as error:
        raise CertificateError(f"The model cannot be captured as the certified one was: {error}") from error


def _require_assumptions(certificate: Certificate, subject: Subject) -> None:
    listed, made = (
        [(one.module, one.log_value) for one in found]
        for found in (certificate.assumptions, assumptions(subject.network))
    )
    same = len(listed) == len(made) and all(
        a == b and math.isclose(x, y, rel_tol=ROUNDING, abs_tol=ROUNDING)
        for (a, x), (b, y) in zip(listed, made, strict=True)
    )
    if not same:
        raise CertificateError(
            f"The certificate assumes {len(listed)} declared constants, the model declares {len(made)}, "
            "or they differ in module or value."
        )


def _require_statement(certificate: Certificate, repeated: Bound, fresh: Bound) -> None:
    """Refuse a certificate that promises another norm, kind or probability, or a lower bound that cannot be."""
    exact = certificate.kind is Kind.EXACT and fresh.kind is not Kind.EXACT
    if fresh.metric != certificate.metric or not fresh.kind.certifies or exact:
        raise CertificateError(
            f"The certificate says {certificate.kind.value} in {certificate.metric}, "
            f"computed anew it is {fresh.kind.value} in {fresh.metric}."
        )
    # How many norms are drawn may depend on the draws, so either run may show that the probability is right.
    failure = min(repeated.failure, fresh.failure)
    if failure > certificate.failure * (1 + ROUNDING):
        raise CertificateError(
            f"The certificate says it fails with probability {certificate.failure:g} at most, "
            f"computed anew that is {failure:g}."
        )
    if fresh.lower is not None and _log(fresh.lower) > certificate.log_value:
        least = fresh.lower.value.item()
        raise CertificateError(
            f"The certificate says {certificate.value:.10g}, but the constant is at least {least:.10g}."
        )
    if certificate.log_lower is not None and certificate.log_lower > _log(fresh):
        raise CertificateError(
            f"The certificate says that the constant is at least exp({certificate.log_lower:.10g}), "
            f"but it is at most {fresh.value.item():.10g}."
        )
