"""Errors: one root to catch them all, and the built-in family a Python programmer expects."""

import inspect

import pytest

from lipkit import errors
from lipkit.errors import LipkitError

FAMILIES = {
    errors.ShapeError: ValueError,
    errors.ArgumentError: ValueError,
    errors.NonFiniteError: ValueError,
    errors.UnsupportedError: TypeError,
    errors.TooLargeError: MemoryError,
    errors.KindError: ValueError,
    errors.MetricError: ValueError,
    errors.RegionError: ValueError,
    errors.NotProvenError: ArithmeticError,
    errors.OutOfTimeError: errors.NotProvenError,
    errors.CaptureError: TypeError,
    errors.NeedsRegion: errors.RegionError,
    errors.CertificateError: ValueError,
    errors.FrozenError: RuntimeError,
    errors.RecordError: ValueError,
    errors.AuditError: ValueError,
    errors.PartialAudit: RuntimeError,
    errors.BrokenCertificateError: AssertionError,
    errors.InterruptedRun: RuntimeError,
}


def test_the_table_names_every_error():
    defined = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__}
    assert defined == {*FAMILIES, LipkitError}


@pytest.mark.parametrize(("error", "family"), FAMILIES.items())
def test_every_error_is_caught_by_the_root_and_by_its_family(error: type[LipkitError], family: type[Exception]):
    for caught in (LipkitError, family):
        with pytest.raises(caught, match="what to do"):
            raise error("what to do")


def test_the_root_is_no_error_of_python():
    assert LipkitError.__bases__ == (Exception,)
