"""A certificate is what it was, holds for its model and for no other, and a changed one is found out."""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import Ball, Bound, Box, Kind, Metric
from lipkit.bounds import DAG, Best, LipLT, Product
from lipkit.bounds._base import Method
from lipkit.bounds.certificates.certificate import Certificate
from lipkit.bounds.certificates.issue import certificate, winner
from lipkit.bounds.certificates.json_codec import from_plain, known, to_plain
from lipkit.bounds.certificates.verify import verify
from lipkit.bounds.local.local import Local
from lipkit.bounds.local.ranges import Intervals
from lipkit.errors import ArgumentError, CertificateError, KindError
from lipkit.norms import SVD, Cholesky, Gram, Lanczos, Norm, SmallGrid
from lipkit.regions import Region
from lipkit.trace import Network
from lipkit.trace.capture import capture
from lipkit.trace.rewrites.fuse import EveryOp


class Small(nn.Module):
    """Two layers with a batch norm between them."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = nn.Linear(4, 7)
            self.norm = nn.BatchNorm1d(7)
            self.last = nn.Linear(7, 3)
        self.activation = activation or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.norm(self.first(x))))


@pytest.fixture(scope="module")
def model() -> Small:
    return Small()


@pytest.fixture(scope="module")
def paper(model: Small) -> Certificate:
    return certificate(model, torch.zeros(2, 4), Best((Product(), LipLT())))


class Orthogonal(nn.Module):
    """Declares what its operations do not show."""

    def __init__(self, constant: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.ones(5, 5) + torch.eye(5))[0])
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.T).abs()

    def declared_lipschitz(self, in_shape: tuple[int, ...]) -> Bound:
        return Bound.from_value(self.constant, Kind.UPPER, "rotation")


class Frank(Method):
    """Says of itself what its results are."""

    def _bound(self, network: Network, region: Region) -> Bound:
        return Bound.from_value(1.0, Kind.LOWER, self)


def forged(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The text with a change and a fresh digest, made as the format says: sha256 of the sorted compact JSON."""
    data = json.loads(text)
    del data["digest"]
    change(data)
    for name in ("value", "log_value", "log_lower"):
        data[f"{name}_hex"] = None if data[name] is None else float(data[name]).hex()
    compact = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return json.dumps({**data, "digest": hashlib.sha256(compact.encode()).hexdigest()})


def lowered(factor: float) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["value"] *= factor
        data["log_value"] = math.log(data["value"])

    return change


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every number, string and null."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))
    else:
        yield path


def mutated(text: str, path: tuple[Any, ...]) -> str:
    data = json.loads(text)
    place = data
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    match old:
        case bool():
            new: Any = not old
        case int():
            new = old + 1
        case float():
            # The next float: the smallest change there is.
            new = math.nextafter(old, math.inf)
        case str():
            new = f"{old}x"
        case _:
            new = 0
    place[path[-1]] = new
    return json.dumps(data)


def test_the_round_trip_is_exact(paper: Certificate):
    text = paper.to_json()
    again = Certificate.from_json(text)
    assert again == paper
    assert again.to_json() == text
    assert float.fromhex(json.loads(text)["value_hex"]) == paper.value


def test_it_says_what_the_method_found(model: Small, paper: Certificate):
    # Two matrices with a scaling between them: the product of three norms bounds the fused one.
    norm = model.norm
    assert norm.running_var is not None
    scale = (norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()).detach()
    fused = torch.linalg.matrix_norm(scale[:, None] * model.first.weight.detach().double(), 2)
    product = float(fused * torch.linalg.matrix_norm(model.last.weight.detach().double(), 2))
    dag = certificate(model, torch.zeros(1, 4), DAG())
    assert dag.value == pytest.approx(product, rel=1e-6)  # what `Auto` promises for small matrices
    assert paper.value <= dag.value * (1 + 1e-12)
    assert dag.model.state_hash == paper.model.state_hash
    assert dag.model.structure_hash == paper.model.structure_hash
    assert isinstance(paper.method, LipLT)
    assert isinstance(paper.asked, Best)
    assert paper.kind is Kind.UPPER
    assert paper.cut == "cut at junctions"
    assert [row.operator for row in dag.table] == ["Linear 4->7, BatchNorm 7", "Linear 7->3"]
    assert sum(row.share or 0 for row in dag.table) == pytest.approx(1)
    assert "evaluation mode" in paper.scope


def test_it_holds_for_its_model(model: Small, paper: Certificate):
    for found in (verify(paper, model), verify(paper, model, torch.ones(3, 4))):
        assert found.holds
        assert found.proven.kind is Kind.UPPER
        assert found.proven.value.item() == pytest.approx(paper.value, rel=1e-12)


def test_the_mode_of_the_model_does_not_matter(paper: Certificate):
    training = Small().train()
    verify(paper, training)
    assert training.norm.training


def test_other_weights_are_named(model: Small, paper: Certificate):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.last.weight[0, 0] *= 1 + 1e-6
    with pytest.raises(CertificateError, match=r"differs.*last\.weight"):
        verify(paper, other)


def test_other_statistics_of_a_batch_norm_are_named(model: Small, paper: Certificate):
    other = copy.deepcopy(model).train()
    other(torch.randn(8, 4))
    with pytest.raises(CertificateError, match=r"differs.*norm\.running_mean"):
        verify(paper, other)


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.5), nn.Identity()], ids=str)
def test_another_architecture_with_the_same_weights_is_refused(paper: Certificate, activation: nn.Module):
    with pytest.raises(CertificateError, match="another structure"):
        verify(paper, Small(activation))


def test_another_epsilon_is_another_structure(paper: Certificate):
    other = Small()
    other.norm.eps = 1e-3
    with pytest.raises(CertificateError, match=r"another structure.* at norm"):
        verify(paper, other)


def test_other_shapes_are_refused():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU())
    paper = certificate(conv, torch.zeros(1, 1, 5, 5), DAG())
    with pytest.raises(CertificateError, match=r"shape \(1, 1, 5, 5\).*got \(1, 1, 6, 6\)"):
        verify(paper, conv, torch.zeros(1, 1, 6, 6))
    with pytest.raises(CertificateError, match=r"float32.*float64"):
        verify(paper, conv, torch.zeros(1, 1, 5, 5, dtype=torch.float64))
    with pytest.raises(CertificateError, match="cannot be captured"):
        verify(paper, nn.Linear(9, 2))


def test_any_change_of_the_file_is_refused(paper: Certificate):
    text = paper.to_json()
    paths = list(leaves(json.loads(text)))
    assert len(paths) > 100
    for path in paths:
        with pytest.raises(CertificateError):
            Certificate.from_json(mutated(text, path))


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_file_that_is_cut_off_is_refused(paper: Certificate, length: int):
    with pytest.raises(CertificateError, match="cut off"):
        Certificate.from_json(paper.to_json()[:length])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "holds a list"),
        ('{"schema": "lipkit certificate 1"}', "reads 'lipkit certificate 2'"),
        ('{"schema": "lipkit certificate 2"}', "digest"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_certificate_is_refused(text: str, words: str):
    with pytest.raises(CertificateError, match=words):
        Certificate.from_json(text)


def test_a_forged_value_is_found_out(model: Small, paper: Certificate):
    false = Certificate.from_json(forged(paper.to_json(), lowered(1 - 1e-7)))
    with pytest.raises(CertificateError, match="computed anew the bound is"):
        verify(false, model)


def test_a_larger_value_still_holds(model: Small, paper: Certificate):
    found = verify(Certificate.from_json(forged(paper.to_json(), lowered(1.5))), model)
    assert found.holds
    assert not found.reproduced


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__setitem__(key, value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kind", "EXACT", "computed anew it is upper bound"),
        ("metric", ["2", "2"], "where float"),
        ("metric", ["inf", "inf"], "in linf->linf"),
        ("log_lower", 0.9, "above the bound|it is at most"),
        ("value", 0.1, "do not agree"),
        ("failure", 2.0, "failure probability"),
        ("failure", "0", "where float is expected"),
        ("kind", "LOWER", "Only exact and upper bounds"),
        ("region", {"is": "bounds.Nowhere"}, "no RegionRecord known here"),
        ("method", {"is": "os.system"}, r"no Method known here; known are .*bounds\.Best"),
        ("method", {"is": "bounds.LipLT"}, "other fields of bounds.LipLT"),
        ("method", None, "where Method is expected"),
        ("more", 1, "other fields"),
    ],
)
def test_other_forgeries_are_found_out(model: Small, paper: Certificate, key: str, value: object, words: str):
    text = forged(paper.to_json(), change(key, value))
    with pytest.raises((CertificateError, KindError), match=words):
        verify(Certificate.from_json(text), model)


def test_bad_settings_of_a_method_are_refused(paper: Certificate):
    def widen(data: dict[str, Any]) -> None:
        data["method"]["window"] = 0

    with pytest.raises(CertificateError, match=r"bounds\.LipLT refuses"):
        Certificate.from_json(forged(paper.to_json(), widen))


METHODS = [
    Product(norm=SVD()),
    DAG(norm=Gram(steps=9), cut=EveryOp(), metric=Metric(1.0, math.inf)),
    DAG(norm=Lanczos(rtol=0.5)),
    LipLT(norm=SmallGrid(inner=Cholesky(rtol=1e-3)), window=2),
    Best((DAG(), Local(LipLT(), Intervals(balls=False)))),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_settings_of_methods_survive(method: Method):
    data = json.loads(json.dumps(to_plain(method, Method)))
    assert from_plain(data, Method) == method


def test_every_method_and_norm_with_defaults_can_be_recorded():
    made: list[str] = []
    for base in (Method, Norm):
        for name, cls in known(base).items():
            needed = [f for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
            if cls.__module__.startswith("lipkit.") and not needed:
                made.append(name)
                data = json.loads(json.dumps(to_plain(cls(), base)))
                assert to_plain(from_plain(data, base), base) == data
    assert {"bounds.DAG", "bounds.LipLT", "norms.Auto", "norms.Gram"} <= set(made)


@dataclass(frozen=True)
class Odd(Method):
    """A setting that is no plain value."""

    weights: object

    def _bound(self, network: Network, region: Region) -> Bound:
        return DAG()(network, region)


def test_settings_that_are_not_plain_are_refused():
    with pytest.raises(CertificateError, match="cannot record"):
        to_plain(Odd([1]), Method)
    with pytest.raises(CertificateError, match="cannot record nan as float"):
        to_plain(math.nan, float)


def test_only_upper_bounds_are_certified(model: Small):
    with pytest.raises(KindError, match="Only exact and upper bounds"):
        certificate(model, torch.zeros(1, 4), Frank())


def test_the_winner_of_several_is_recorded(model: Small):
    network = capture(model, torch.zeros(1, 4))
    both = Product()(network).best(LipLT()(network))
    assert winner(both, DAG()) == (LipLT(), ())


def test_a_ball_is_kept_or_must_be_given(model: Small):
    here = Ball(torch.tensor([0.1, -2.0, 3.0, 1e-3]), 0.5, math.inf)
    paper = Certificate.from_json(certificate(model, torch.zeros(1, 4), Local(DAG()), here).to_json())
    assert verify(paper, model).proven.region == here
    verify(paper, model, region=here)
    wider = Certificate.from_json(forged(paper.to_json(), change("region", {"is": "bounds.EverywhereRecord"})))
    with pytest.raises(CertificateError, match="gives no bound of this model on this region"):
        verify(wider, model)
    for other in (Ball(here.center, 0.6, math.inf), Ball(here.center, 0.5), Box(here.center, here.center)):
        with pytest.raises(CertificateError, match="another region"):
            verify(paper, model, region=other)
    with pytest.raises(CertificateError, match="other entries"):
        verify(paper, model, region=Ball(here.center + 1, 0.5, math.inf))


def test_a_large_ball_is_kept_as_a_hash():
    wide = nn.Sequential(nn.Flatten(), nn.Linear(4100, 2), nn.ReLU())
    here = Ball(torch.zeros(4100), 0.5)
    paper = certificate(wide, torch.zeros(1, 4100), Local(DAG()), here)
    assert len(paper.to_json()) < 20_000
    with pytest.raises(CertificateError, match="only the hash of the center"):
        verify(paper, wide)
    verify(paper, wide, region=here)


def test_a_box_is_kept(model: Small):
    here = Box(torch.zeros(4), torch.ones(4))
    paper = Certificate.from_json(certificate(model, torch.zeros(1, 4), Local(LipLT()), here).to_json())
    assert verify(paper, model).proven.region == here
    with pytest.raises(CertificateError, match="another region"):
        verify(paper, model, region=Ball(torch.zeros(4), 1.0))


def test_declared_constants_are_listed_as_assumptions():
    def made(constant: float) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(5, 5), Orthogonal(constant), nn.Linear(5, 2))

    paper = Certificate.from_json(certificate(made(1.0), torch.zeros(1, 5), DAG()).to_json())
    assert [(one.module, one.log_value) for one in paper.assumptions] == [("1", 0.0)]
    assert "rotation" in paper.assumptions[0].statement
    verify(paper, made(1.0))
    with pytest.raises(CertificateError, match="declared constants"):
        verify(paper, made(0.5))
    silent = Certificate.from_json(forged(paper.to_json(), change("assumptions", [])))
    with pytest.raises(CertificateError, match="assumes 0 declared constants, the model declares 1"):
        verify(silent, made(1.0))


class Masked(nn.Module):
    """Of two arguments one is whole numbers, and is no variable."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor, scale: float = 2.0) -> Tensor:
        return self.linear(x) * mask * scale


def test_whole_numbers_among_the_inputs_are_kept():
    model = Masked()
    mask = torch.tensor([[1, 0, 1, 3]])
    paper = Certificate.from_json(certificate(model, (torch.zeros(1, 4), mask), DAG()).to_json())
    assert verify(paper, model).proven.value.item() == pytest.approx(paper.value)
    with pytest.raises(CertificateError, match="differs"):
        verify(paper, model, (torch.zeros(1, 4), mask + 1))
    with pytest.raises(CertificateError, match="positional"):
        verify(paper, model, {"x": torch.zeros(1, 4), "mask": mask})
    named = certificate(model, {"x": torch.zeros(1, 4), "mask": mask, "scale": 3.0}, DAG())
    assert named.value == pytest.approx(1.5 * paper.value)
    verify(Certificate.from_json(named.to_json()), model)


def test_a_weight_that_is_computed_is_compared_up_to_rounding():
    model = nn.utils.parametrizations.orthogonal(nn.Linear(6, 6))
    paper = certificate(model, torch.zeros(1, 6), DAG())
    computed = [one for one in paper.model.tensors if not one.stored]
    assert computed
    verify(paper, model)
    one = computed[0]
    # What the last bits of another machine do: another hash, nearly the same sketch.
    nearly = replace(one, sha256="0", sketch=(one.sketch[0] * (1 + 1e-6), one.sketch[1]))
    assert one.fits(nearly)
    assert not one.fits(replace(nearly, sketch=(one.sketch[0] * 1.01, one.sketch[1])))
    assert not replace(one, stored=True).fits(replace(nearly, stored=True))


def test_single_precision_is_certified_in_double(model: Small, paper: Certificate):
    wide = copy.deepcopy(model).double()
    same = certificate(wide, torch.zeros(1, 4, dtype=torch.float64), Best((Product(), LipLT())))
    # The weights are the same numbers, so is the bound; but they are other bytes.
    assert same.value == pytest.approx(paper.value, rel=1e-12)
    with pytest.raises(CertificateError, match=r"cannot be captured|structure|differs"):
        verify(paper, wide)


def test_an_exported_program_stands_for_the_model(model: Small):
    program = torch.export.export(Small().eval(), (torch.zeros(1, 4),))
    paper = Certificate.from_json(certificate(program, method=DAG()).to_json())
    assert paper.value == pytest.approx(certificate(model, torch.zeros(1, 4), DAG()).value, rel=1e-12)
    verify(paper, program)


def test_saving_is_all_or_nothing(tmp_path: Path, paper: Certificate, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "paper.json"
    file.write_text("before")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(ArgumentError, match="No space left"):
            paper.save(file)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
    paper.save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["paper.json"]
    assert Certificate.load(file) == paper
    with pytest.raises(ArgumentError, match="cannot be read"):
        Certificate.load(tmp_path / "absent.json")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CertificateError, match="no text"):
        Certificate.load(file)


def test_a_constant_model_has_the_constant_zero():
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0

    paper = certificate(Constant(), torch.zeros(1, 3), DAG())
    assert paper.value == 0
    verify(Certificate.from_json(paper.to_json()), Constant())
