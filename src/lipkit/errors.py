"""Every error lipkit raises on purpose: one sentence with the value it had, what was expected, and what to do."""


class LipkitError(Exception):
    """Root of all errors raised on purpose; catch it to catch them all."""


class ShapeError(LipkitError, ValueError):
    """A tensor or a shape does not fit the operator it is given to."""


class ArgumentError(LipkitError, ValueError):
    """A parameter of a method, an operator or a region lies outside its domain."""


class NonFiniteError(LipkitError, ValueError):
    """A weight or a result is NaN or infinite, so no statement about it would be true."""


class UnsupportedError(LipkitError, TypeError):
    """The method or the operator does not cover this case; the message names one that does."""


class TooLargeError(LipkitError, MemoryError):
    """A dense representation would exceed the stated limit; the message names a matrix-free way."""


class KindError(LipkitError, ValueError):
    """A number is asked to prove what its kind cannot prove."""


class MetricError(LipkitError, ValueError):
    """Two bounds speak of different norms, or a rule is false for the norms at hand."""


class RegionError(LipkitError, ValueError):
    """Two bounds hold on regions that cannot be reconciled."""


class NotProvenError(LipkitError, ArithmeticError):
    """A numerical proof did not go through; the message says how to give it a better chance."""


class OutOfTimeError(NotProvenError):
    """A method did not come to its end in the time that it was given; the message says how late it is."""


class CaptureError(LipkitError, TypeError):
    """A model cannot be turned into a network; the message lists every obstacle with its place and its remedy."""


class NeedsRegion(RegionError):
    """A node has no finite constant where it is asked for one; the message names all of them, and what helps.

    Args:
        problem: a sentence that says what has no constant, and where.
        remedy: a sentence that says what to do about it.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem

    def __str__(self) -> str:
        return " ".join(map(str, filter(None, self.args)))


class CertificateError(LipkitError, ValueError):
    """A certificate does not hold for what it is checked against, or its file is not intact."""


class FrozenError(LipkitError, RuntimeError):
    """Parameters were changed while the weights computed from them were held."""


class RecordError(LipkitError, ValueError):
    """Stored data or results do not fit what is asked for, or their file is not intact."""


class AuditError(LipkitError, ValueError):
    """A run differs from what was recomputed; the message names every mismatch."""


class PartialAudit(LipkitError, RuntimeError):
    """No mismatch was found, and not everything was looked at; the message says what was not."""


class BrokenCertificateError(LipkitError, AssertionError):
    """An attack changed a class inside a certified radius, or a lower bound is above an upper one.

    A defect of lipkit, or of a constant that a module declares.
    """


class InterruptedRun(LipkitError, RuntimeError):
    """A run was told to stop, and saved what it had; the same command continues it."""
