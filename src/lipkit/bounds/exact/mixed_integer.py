"""The local constant of small ReLU networks as mixed-integer programs."""

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.exact.mixed_integer_model import Model, Outcome, Terms
from lipkit.bounds.local.fast_lip import FastLip, largest_norm
from lipkit.bounds.local.jacobian_intervals import Slopes, Span, backward, slopes_of
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.local.measured_network import MeasuredNetwork, measure_network
from lipkit.bounds.local.ranges import Ranges, input_reach
from lipkit.bounds.local.relaxation import Relaxation
from lipkit.bounds.lower.difference_quotients import along, best_pair, lower_bound, prover
from lipkit.bounds.lower.sampling import scale_of, steepest
from lipkit.errors import ArgumentError, MetricError, RegionError, ShapeError, UnsupportedError
from lipkit.linops import materialize
from lipkit.regions import Ball, Region
from lipkit.trace import Network, Reach
from lipkit.trace.nodes import PiecewiseLinear, Pointwise

_AGREE = 1e-9


@final
@dataclass(frozen=True)
class LipMIP(RegionMethod):
    """The constant on a box of a network whose activations have one kink, from linf or l1, by branch and cut.

    Forward, y = f(z) with one binary a for each neuron that is on either side of its kink, and big-M rows from the
    ranges; backward, the gradient of one output through the products of the same binaries with interval bounds from
    `FastLip`; the objective is its l1 norm (inputs in linf) or its largest entry (inputs in l1), again by binaries.
    One program for each output, p_out = inf unless there is only one. HiGHS solves it, in `budget` seconds each.

    Guarantee: the value is the solver's dual bound plus tolerance * (sum of the ranges of all variables and rows), or
    the bound of `FastLip` if that is smaller: UPPER, provided that HiGHS is right within its own tolerance of 1e-7,
    which cannot be verified from outside; `LinearPieces` proves every step itself. `lower` is a proven difference
    quotient at the solver's point. EXACT if they agree to 1e-9.
    l2 has no linear form: use `LinearPieces`. Cost: exponential; tens of unstable neurons.
    Reference: Jordan and Dimakis 2020.
    """

    metric: Metric = Metric(math.inf, math.inf)  # noqa: RUF009
    slopes: Ranges = field(default_factory=Relaxation)
    budget: float = 60.0

    def __post_init__(self) -> None:
        if self.metric.p_in not in (1.0, math.inf):
            raise MetricError(f"LipMIP is linear for p_in = 1 or inf only, got {self.metric}; use LinearPieces.")
        if not self.budget > 0:
            raise ArgumentError(f"LipMIP needs a positive time limit, got {self.budget}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        if isinstance(region, Ball) and region.p not in (1.0, math.inf):
            raise RegionError(f"LipMIP needs a region with flat sides, got the {region}; use a Box, or LinearPieces.")
        if each_sample(region, network.source) is not None:
            raise ShapeError("LipMIP takes the region of one input at a time; call it for each sample.")
        outputs = math.prod(network.target)
        if outputs > 1 and self.metric.p_out != math.inf:
            raise MetricError(
                f"LipMIP bounds {outputs} outputs one by one, which needs p_out = inf, got {self.metric}."
            )
        with torch.no_grad():
            found = measure_network(network)
            zs = self.slopes(network, region)
            slopes = slopes_of(found, zs)
            cap = float(largest_norm(*FastLip(self.metric).intervals(found, slopes), self.metric).exp()) * (1 + 2e-15)
            outcomes = [self._output(found, slopes, zs, region, i) for i in range(outputs)]
        value = min(cap, max(outcome.upper for outcome in outcomes))
        upper = replace(Bound.from_value(max(value, 0.0), Kind.UPPER, self, self.metric), region=region)
        below = self._proven(network, region, outcomes)
        if below is None:
            return upper
        agree = float(upper.log_value) - float(below.log_value) <= _AGREE
        return replace(upper, kind=Kind.EXACT if agree else Kind.UPPER, lower=below, state=below.state)

    def _output(self, found: MeasuredNetwork, slopes: Slopes, zs: list[Reach], region: Region, i: int) -> Outcome:
        program = _Program(found, slopes, zs, region)
        start = torch.zeros(1, math.prod(found.network.target), dtype=torch.float64, device=found.device)
        start[0, i] = 1.0
        gradient = program.gradient(start.reshape(1, *found.network.target))
        model = program.model
        sizes = [program.size(entry) for entry in gradient]
        if self.metric.p_in == math.inf:
            return model.maximise([(size, 1.0) for size in sizes], self.budget)
        largest = model.variable(0.0, max(model.high[size] for size in sizes))
        chosen = [model.binary() for _ in sizes]
        model.between([(one, 1.0) for one in chosen], low=1.0, high=1.0)
        for size, one in zip(sizes, chosen, strict=True):
            top = model.high[largest]
            model.between([(largest, 1.0), (size, -1.0), (one, top)], high=top)
        return model.maximise([(largest, 1.0)], self.budget)

    def _proven(self, network: Network, region: Region, outcomes: list[Outcome]) -> Bound | None:
        points = [outcome.point[: math.prod(network.source)] for outcome in outcomes if outcome.point is not None]
        if not points:
            return None
        x = torch.stack([torch.from_numpy(point) for point in points]).reshape(-1, *network.source)
        # The solver's point may sit on a kink: look around it as well.
        scale = scale_of(region, x)
        generator = torch.Generator().manual_seed(0)
        around = [x + scale * 10.0**-i * torch.randn(x.shape, dtype=x.dtype, generator=generator) for i in range(1, 7)]
        x = torch.cat([x, *around]).to(next((t.device for t in network.tensors()), x.device))
        first, second = along(x, steepest(network, x, self.metric)[1], scale)
        pair = best_pair(network.detach(), region, first, second, prover(network, self.metric), self.metric)
        found = lower_bound([pair], region, self.metric, self, Scope.WHOLE)
        return found if found.kind is Kind.LOWER else None

    def __str__(self) -> str:
        return "mixed-integer program"


@final
class _Program:
    """The rows that tie a point, the signs of its neurons and one gradient together."""

    def __init__(self, found: MeasuredNetwork, slopes: Slopes, zs: list[Reach], region: Region) -> None:
        self.found = found
        self.slopes = slopes
        self.model = Model()
        self.values: dict[int, list[int]] = {0: self._input(region)}
        self.switches: dict[int, list[int | None]] = {}
        for k in slopes:
            self._forward(k, zs[k - 1])

    def _input(self, region: Region) -> list[int]:
        reach = input_reach(region, self.found.network.source, self.found.device)
        bounds = zip(reach.low.flatten().tolist(), reach.high.flatten().tolist(), strict=True)
        x = [self.model.variable(low, high) for low, high in bounds]
        if isinstance(region, Ball) and region.p == 1:
            center = reach.center.flatten().tolist()
            away = [self.model.variable(0.0, region.radius) for _ in x]
            for i, entry in enumerate(x):
                self.model.between([(entry, 1.0), (away[i], -1.0)], high=center[i])
                self.model.between([(entry, 1.0), (away[i], 1.0)], low=center[i])
            self.model.between([(size, 1.0) for size in away], high=region.radius)
        return x

    def _forward(self, k: int, z: Reach) -> None:
        """Rows for y_k, and a switch for each entry that may be on either side of the kink."""
        node = self.found.network.nodes[k - 1]
        assert isinstance(node, Pointwise)
        knot, value, before, after = _kink(node, str(self.found.network.origin(k)))
        low, high = z.low.flatten().tolist(), z.high.flatten().tolist()
        least, most = (end.flatten().tolist() for end in node.activation.values(z.low, z.high))
        alpha, beta = (end.flatten().tolist() for end in self.slopes[k])
        rows = self._rows(k)
        self.values[k], self.switches[k] = [], []
        for i, (terms, shift) in enumerate(rows):
            y = self.model.variable(least[i], most[i])
            self.values[k].append(y)
            if alpha[i] == beta[i]:
                self.switches[k].append(None)
                offset = value + alpha[i] * (shift - knot)
                self.model.between([(y, 1.0), *((j, -alpha[i] * c) for j, c in terms)], offset, offset)
                continue
            # y = value + before (z - knot) + (after - before) r,  r = max(z - knot, 0).
            switch = self.model.binary()
            self.switches[k].append(switch)
            left, right = low[i] - knot, high[i] - knot
            r = self.model.variable(0.0, max(right, 0.0))
            self.model.between([(r, 1.0), *((j, -c) for j, c in terms)], low=shift - knot)
            self.model.between([(r, 1.0), (switch, -left), *((j, -c) for j, c in terms)], high=shift - knot - left)
            self.model.between([(r, 1.0), (switch, -right)], high=0.0)
            self.model.between([(switch, -right), *terms], high=knot - shift)
            self.model.between([(switch, left), *terms], low=knot - shift + left)
            offset = value + before * (shift - knot)
            parts = [(y, 1.0), (r, before - after), *((j, -before * c) for j, c in terms)]
            self.model.between(parts, offset, offset)

    def _rows(self, k: int) -> list[tuple[Terms, float]]:
        row = self.found.fused[k]
        matrices = {j: materialize(block.op) for j, block in row.blocks.items()}
        found: list[tuple[Terms, float]] = []
        for i, shift in enumerate(row.shift.flatten().tolist()):
            terms = [(self.values[j][c], w) for j, m in matrices.items() for c, w in enumerate(m[i].tolist()) if w]
            found.append((terms, shift))
        return found

    def gradient(self, start: Tensor) -> list[int]:
        """Variables for the derivatives of <start, output> by the input, tied to the switches."""
        at_input, on_y = backward(self.found, self.slopes, self.found.network.sink, start)
        spans: dict[int, Span] = {0: at_input, **on_y}
        pulled: dict[int, list[Terms]] = {}
        shifts: dict[int, list[float]] = {}
        for j, block in self.found.fused[self.found.network.sink].blocks.items():
            shifts[j] = block.op.adjoint(start).flatten().tolist()
        for k in sorted(on_y, reverse=True):
            through = self._through(k, self._derivatives(spans[k], pulled.get(k), shifts.get(k)))
            for j, block in self.found.fused[k].blocks.items():
                matrix = materialize(block.op)
                terms = pulled.setdefault(j, [[] for _ in range(matrix.shape[1])])
                for c in range(matrix.shape[1]):
                    for i, w in enumerate(matrix[:, c].tolist()):
                        terms[c] += [(at, w * factor) for at, factor in through[i]] if w else []
        return self._derivatives(at_input, pulled.get(0), shifts.get(0))

    def _derivatives(self, span: Span, terms: list[Terms] | None, shifts: list[float] | None) -> list[int]:
        low, high = (end.flatten().tolist() for end in span.ends)
        found: list[int] = []
        for i in range(len(low)):
            entry = self.model.variable(low[i], high[i])
            shift = shifts[i] if shifts is not None else 0.0
            parts = terms[i] if terms is not None else []
            self.model.between([(entry, 1.0), *((at, -c) for at, c in parts)], shift, shift)
            found.append(entry)
        return found

    def _through(self, k: int, on_y: list[int]) -> list[Terms]:
        """d z = slope * d y, with the slope decided by the switch."""
        node = self.found.network.nodes[k - 1]
        assert isinstance(node, Pointwise)
        _, _, before, after = _kink(node, str(self.found.network.origin(k)))
        alpha = self.slopes[k][0].flatten().tolist()
        found: list[Terms] = []
        for i, entry in enumerate(on_y):
            switch = self.switches[k][i]
            if switch is None:
                found.append([(entry, alpha[i])])
            else:
                found.append([(entry, before), (self.model.product(switch, entry), after - before)])
        return found

    def size(self, entry: int) -> int:
        """A variable that is at most |entry|."""
        low, high = self.model.low[entry], self.model.high[entry]
        most = max(abs(low), abs(high))
        found = self.model.variable(0.0, most)
        sign = self.model.binary()
        self.model.between([(found, 1.0), (entry, -1.0), (sign, 2 * most)], high=2 * most)
        self.model.between([(found, 1.0), (entry, 1.0), (sign, -2 * most)], high=0.0)
        return found


def _kink(node: Pointwise, name: str) -> tuple[float, float, float, float]:
    """(knot, value there, slope before, slope after) of an activation with one kink, or of the identity."""
    f = node.activation
    if node.is_identity:
        return 0.0, 0.0, 1.0, 1.0
    if not isinstance(f, PiecewiseLinear) or len(f.knots) != 1 or any(isinstance(g, Tensor) for g in f.gradients):
        raise UnsupportedError(f"LipMIP takes activations with one kink such as ReLU, got {f} at {name}.")
    value = float(f(torch.tensor(f.knots[0], dtype=torch.float64)))
    before, after = (float(g) for g in f.gradients)
    return f.knots[0], value, before, after
