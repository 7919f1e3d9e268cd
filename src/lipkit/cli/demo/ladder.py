"""Many methods on one network, each with its bound and its time."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from lipkit.bound import Bound, Kind
from lipkit.bounds import DAG, Condensed, FastLip, GradientAscent, LipLT, LipSDP, Local, Method, Product, Sampling
from lipkit.bounds.sdp.eclipse import ECLipsE
from lipkit.bounds.sdp.seqlip import SeqLip
from lipkit.cli.console import escape_markup, table
from lipkit.errors import LipkitError
from lipkit.regions import Region
from lipkit.report.html.numbers import constant
from lipkit.report.method_figures import Panel, Point
from lipkit.trace import Network

if TYPE_CHECKING:
    from lipkit.cli.console import Table

COLOURS = {Kind.EXACT: "green", Kind.UPPER: "cyan", Kind.LOWER: "yellow", Kind.ESTIMATE: "red"}
# Runs that are repeated, and up to how many seconds a run is short enough for that.
_RUNS, _SHORT = 3, 0.5

EVERYWHERE: dict[str, Method] = {
    "Product": Product(),
    "DAG": DAG(),
    "SeqLip": SeqLip(),
    "LipLT": LipLT(),
    "LipLT, refined": LipLT(refine=True),
    "ECLipsE": ECLipsE(),
    "LipSDP": LipSDP(),
    "GradientAscent": GradientAscent(),
    "Sampling": Sampling(),
}
ON_A_REGION: dict[str, Method] = {
    "Local(DAG)": Local(DAG()),
    "Local(LipLT)": Local(LipLT()),
    "FastLip": FastLip(),
    "Local(LipSDP)": Local(LipSDP()),
    "Condensed": Condensed(),
    "GradientAscent": GradientAscent(),
    "Sampling": Sampling(),
}


@final
@dataclass(frozen=True, eq=False)
class Rung:
    """The result of one method: a bound, or the reason for none, and the seconds of processor time it took."""

    label: str
    seconds: float
    result: Bound | LipkitError

    @property
    def bound(self) -> Bound:
        """The bound; raises the reason where there is none."""
        if not isinstance(self.result, Bound):
            raise self.result
        return self.result

    def plain(self) -> dict[str, object]:
        """As JSON: a value with its kind, or the reason for none."""
        found: dict[str, object] = {"method": self.label, "seconds": self.seconds}
        if not isinstance(self.result, Bound):
            return {**found, "refused": str(self.result)}
        return {**found, "value": _value(self), "kind": self.bound.kind.value, "failure": self.bound.failure}


def colour_kind(bound: Bound) -> str:
    """The kind of a bound in its colour, and how likely it is to fail."""
    return f"[{COLOURS[bound.kind]}]{bound.kind.value}[/]" + (
        f", fails <= {bound.failure:.0e}" if bound.failure else ""
    )


def climb(network: Network, region: Region, methods: Mapping[str, Method]) -> list[Rung]:
    """Every method on the network, in the given order; a method that refuses leaves its reason."""
    return [measure(label, lambda method=method: method(network, region)) for label, method in methods.items()]


def ladder_table(title: str, rungs: Sequence[Rung]) -> "Table":
    """The rungs with value, kind and seconds, largest first, refusals at the end.

    The column beside the kind compares with the best lower bound: the true constant is at most so much below.
    """
    made = table(title, "method", ">value", "kind", ">above the lower", ">seconds", "+how")
    some = [rung for rung in rungs if isinstance(rung.result, Bound)]
    below = max((_value(rung) for rung in some if rung.bound.kind is Kind.LOWER), default=math.nan)
    for rung in sorted(some, key=lambda one: -one.bound.log_value.item()):
        bound, away = rung.bound, f"{_value(rung) / below - 1:.2%}" if rung.bound.kind.certifies else ""
        number = constant(float(bound.log_value.detach()), bound.kind, 5)
        made.add_row(rung.label, number, colour_kind(bound), away, f"{rung.seconds:.3f}", escape_markup(bound.how))
    for rung in rungs:
        if not isinstance(rung.result, Bound):
            made.add_row(rung.label, "", "refused", "", f"{rung.seconds:.3f}", escape_markup(str(rung.result)))
    return made


def panel(heading: str, rungs: Sequence[Rung]) -> Panel:
    """The rungs as a panel of a figure, without the refusals."""
    some = [rung for rung in rungs if isinstance(rung.result, Bound)]
    points = (Point(rung.label, max(rung.seconds, 1e-4), _value(rung), rung.bound.kind) for rung in some)
    return Panel(heading, tuple(points))


def measure(label: str, act: Callable[[], Bound]) -> Rung:
    """The result of `act` and its seconds: the fastest of three runs where they are short; the first one warms up."""
    times: list[float] = []
    result: Bound | LipkitError
    while True:
        begin = time.process_time()
        try:
            result = act()
        except LipkitError as error:
            result = error
        times.append(time.process_time() - begin)
        if len(times) == _RUNS or times[-1] > _SHORT:
            return Rung(label, min(times), result)


def _value(rung: Rung) -> float:
    return rung.bound.value.item()
