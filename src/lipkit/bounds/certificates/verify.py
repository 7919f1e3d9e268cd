"""A certificate against a model: the same structure, the same weights, and the bound computed once more."""

import math

import torch

from lipkit.bound import Bound, Kind
from lipkit.bounds.certificates.certificate import Certificate, Software
from lipkit.bounds.certificates.issue import assumptions, randomised_parts
from lipkit.bounds.certificates.provenance import Inputs, ModelRecord, Subject
from lipkit.bounds.lipschitz import Example, Program, call_of
from lipkit.errors import CertificateError, LipkitError
from lipkit.regions import Region

# Another order of summation changes a float64 number by far less, an honest method by no more.
_SAME = 1e-9


def verify(
    certificate: Certificate,
    model: Program,
    example: Example = None,
    region: Region | None = None,
    rtol: float = 1e-2,
) -> Bound:
    """The bound computed anew, if the certificate holds for the model; a `CertificateError` with the reason otherwise.

    The model is captured again, from `example` or from the recorded shapes, and must have the recorded structure,
    shapes, weights and declared constants. The recorded method is then run again, and its result must not exceed the
    certified value: by more than 1e-9 relatively where it is deterministic; where it is randomised by more than
    rtol sqrt(R), because each of its R norms is drawn anew, stops as soon as it is accurate to 1e-2 by default, and
    independent deviations add up in squares. A lower bound, where known, must not exceed it at all.

    `region` is needed where the certificate keeps only a hash of it. The versions of software, the seconds and the
    table of layers are on record, and are not checked.
    Guarantee: the returned bound is a new one with its own kind and failure; it holds whatever the certificate says.
    Cost: that of `certificate`.
    """
    where = certificate.region.restore(region)
    subject = _captured(certificate, model, example)
    versions = certificate.software.against(Software.here())
    certificate.model.require(ModelRecord.of(subject), subject.network, versions)
    _require_assumptions(certificate, subject)
    try:
        with torch.no_grad():
            found = certificate.method(subject.network, where)
    except LipkitError as error:
        raise CertificateError(f"The recorded method gives no bound of this model on this region: {error}") from error
    _require_bound(certificate, found, rtol)
    return found


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
        a == b and math.isclose(x, y, rel_tol=_SAME, abs_tol=_SAME) for (a, x), (b, y) in zip(listed, made, strict=True)
    )
    if not same:
        raise CertificateError(
            f"The certificate assumes {len(listed)} declared constants, the model declares {len(made)}, "
            "or they differ in module or value."
        )


def _require_bound(certificate: Certificate, found: Bound, rtol: float) -> None:
    """Refuse a certificate that promises more than was found."""
    if found.metric != certificate.metric or (certificate.kind is Kind.EXACT and found.kind is not Kind.EXACT):
        raise CertificateError(
            f"The certificate says {certificate.kind.value} in {certificate.metric}, "
            f"computed anew it is {found.kind.value} in {found.metric}."
        )
    if found.failure > certificate.failure * (1 + _SAME):
        raise CertificateError(
            f"The certificate says it fails with probability {certificate.failure:g} at most, "
            f"computed anew that is {found.failure:g}."
        )
    draws = sum(1 for _ in randomised_parts(found))
    slack = rtol * math.sqrt(draws) if found.failure else _SAME
    log_found = float(found.log_value.detach())
    if log_found > certificate.log_value + slack:
        raise CertificateError(
            f"The certificate says {certificate.value:.10g}, computed anew the bound is {found.value.item():.10g}: "
            f"larger by more than {slack:.1g} relatively."
        )
    if found.lower is not None and float(found.lower.log_value.detach()) > certificate.log_value:
        least = found.lower.value.item()
        raise CertificateError(
            f"The certificate says {certificate.value:.10g}, but the constant is at least {least:.10g}."
        )
    if certificate.log_lower is not None and certificate.log_lower > log_found:
        raise CertificateError(
            f"The certificate says that the constant is at least exp({certificate.log_lower:.10g}), "
            f"but it is at most {found.value.item():.10g}."
        )
