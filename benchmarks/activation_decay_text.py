"""Activation decay, dropout and SAM in fine-tuning a language model: Delattre 2025, tables 7.4 and 7.5, in small.

    python benchmarks/activation_decay_text.py [--text FOLDER] [--pretrain 25] [--seeds 3] [--seconds 240] [--out FILE]

No published weights and no published text: a transformer on bytes (10.8 million parameters) learns to continue text
for some seconds, once for each seed, with dropout 0.1 as BERT did. Text is the .txt files of a folder, or the library
of the interpreter, which differs between machines: the SHA-256 of what was read is printed. Then a pooled head (tanh,
as BERT has) is fine-tuned on 500 paragraphs to tell their document, by each method from the same weights for the same
steps. Its rate, and sigma or rho of the method, are those with the best accuracy on held-out paragraphs; reported is
the accuracy on other ones. No paragraph is in the text that the model learned from.

Claim to test: activation decay is above dropout 0.1 (published for BERT: in six of seven tasks, by 0.4 to 2.6 points).
A difference has the standard error of paired samples: the same test paragraphs, averaged over seeds.
"""

import argparse
import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from byte_model import ByteModel, Teller, set_dropout
from byte_text import Corpus, Paragraphs, read_corpus
from timing import machine
from torch import Tensor, nn
from torch.nn import functional

from lipkit.optim import SAM
from lipkit.regularizers import ActivationDecay

RATES = (1e-4, 3e-4)


@dataclass(frozen=True)
class Method:
    """One way to fine-tune; methods of one family compete on held-out paragraphs."""

    family: str
    dropout: float = 0.0
    sigma: float = 0.0
    rho: float = 0.0

    @property
    def name(self) -> str:
        """The family with its setting."""
        return f"{self.family} {max(self.dropout, self.sigma, self.rho):g}".removesuffix(" 0")


METHODS = (
    Method("plain"),
    Method("dropout", dropout=0.1),
    *(Method("decay", sigma=sigma) for sigma in (0.01, 0.05, 0.1)),
    *(Method("SAM", rho=rho) for rho in (0.01, 0.05, 0.1)),
)


def half(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def rate_at(share: float) -> float:
    """A short warm-up, then down in a straight line."""
    return min(share / 0.05, (1 - share) / 0.95)


def pretrain(model: ByteModel, text: Tensor, seconds: float, batch: int, length: int) -> tuple[int, float]:
    """Steps made in the time, and the mean loss of the last hundred in nats a byte."""
    set_dropout(model.train(), 0.1)
    fused = text.is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95), fused=fused)
    begin, steps, share = time.perf_counter(), 0, 0.0
    losses: list[Tensor] = []
    window = torch.arange(length + 1, device=text.device)
    while share < 1:
        optimizer.param_groups[0]["lr"] = 1e-3 * max(0.01, rate_at(share))
        starts = torch.randint(len(text) - length - 1, (batch, 1), device=text.device)
        with half(text.device):
            loss = model.next_byte_loss(text[starts + window].long())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        steps += 1
        if steps % 10 == 0 and text.is_cuda:
            # The queue of a GPU runs ahead of the clock.
            torch.cuda.synchronize()
        share = (time.perf_counter() - begin) / seconds
    return steps, float(torch.stack(losses[-100:]).mean())


def fine_tune(
    trunk: ByteModel, method: Method, rate: float, given: Paragraphs, documents: int, steps: int, batch: int, seed: int
) -> Teller:
    """A copy of the trunk with a new head, after `steps` steps of AdamW."""
    device = given.bytes.device
    torch.manual_seed(seed)
    model = Teller(copy.deepcopy(trunk), trunk.norm.normalized_shape[0], documents).to(device).train()
    set_dropout(model, method.dropout)
    decay = ActivationDecay(method.sigma)
    base = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=device.type == "cuda")
    optimizer = SAM(base, rho=method.rho) if method.rho else base
    order = torch.Generator(device=device).manual_seed(seed)
    places = torch.empty(0, dtype=torch.long, device=device)
    for step in range(steps):
        if len(places) < batch:
            places = torch.randperm(len(given.bytes), device=device, generator=order)
        chosen, places = places[:batch], places[batch:]
        x, y = given.bytes[chosen].long(), given.documents[chosen]
        base.param_groups[0]["lr"] = rate * max(0.01, rate_at(step / steps))

        def evaluate(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            with half(device):
                hidden, logits = model(x)
            loss = functional.cross_entropy(logits, y) + decay(hidden)
            loss.backward()
            return loss

        optimizer.step(evaluate)
    return model.eval()


@torch.no_grad()
def answers(model: Teller, given: Paragraphs) -> tuple[Tensor, float, float]:
    """For each paragraph whether its document was told, the mean loss, and the mean squared length of the features."""
    pairs = [model(x.long()) for x in given.bytes.split(500)]
    hidden, logits = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    right = logits.argmax(1) == given.documents
    return right.cpu(), float(functional.cross_entropy(logits, given.documents)), float(hidden.square().sum(1).mean())


def try_method(
    trunk: ByteModel, method: Method, rate: float, corpus: Corpus, given: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """One fine-tuning, judged on both sets."""
    begin = time.perf_counter()
    model = fine_tune(trunk, method, rate, corpus.train, len(corpus.documents), given.steps, given.tune_batch, seed)
    trained = time.perf_counter() - begin
    chosen, chosen_loss, _ = answers(model, corpus.chosen_on)
    right, loss, length = answers(model, corpus.reported_on)
    return {
        "family": method.family,
        "name": method.name,
        "rate": rate,
        "seed": seed,
        "seconds": trained,
        "held_out": 100 * float(chosen.double().mean()),
        "held_out_loss": chosen_loss,
        "accuracy": 100 * float(right.double().mean()),
        "loss": loss,
        "feature_length": length,
        "right": right.tolist(),
    }


def select(runs: list[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> dict[str, list[dict[str, Any]]]:
    """For each group by `key` the runs of the setting that is best on held-out paragraphs, averaged over seeds."""
    seeds = {run["seed"] for run in runs}
    groups: dict[str, dict[tuple[str, float], list[dict[str, Any]]]] = {}
    for run in runs:
        groups.setdefault(key(run), {}).setdefault((run["name"], run["rate"]), []).append(run)
    best: dict[str, list[dict[str, Any]]] = {}
    for group, settings in groups.items():
        # A setting that lacks a seed (no time was left) does not compete.
        whole = [of for of in settings.values() if {run["seed"] for run in of} == seeds]
        if whole:
            best[group] = max(whole, key=lambda of: sum(run["held_out"] - 1e-3 * run["held_out_loss"] for run in of))
    return best


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[float, float]:
    """Difference of accuracies in points, and its standard error over paragraphs, each averaged over seeds."""
    a, b = (torch.tensor([run["right"] for run in runs], dtype=torch.float64).mean(0) for runs in (ours, theirs))
    difference = 100 * (a - b)
    return float(difference.mean()), float(difference.std()) / math.sqrt(len(difference))


def show(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Print one row for each method, then the choices within families; returns the same."""
    found: dict[str, Any] = {}
    for title, key in (("method", "name"), ("family", "family")):
        best = select(runs, lambda run, key=key: run[key])
        reference = best.get("dropout 0.1") or best.get("dropout")
        print(f"\n| {title} | chosen | seeds | held out | accuracy | loss | length^2 | against dropout | s |")
        print("|---|---|---:|---:|---:|---:|---:|---|---:|")
        for group, of in best.items():
            mean = {
                name: sum(run[name] for run in of) / len(of)
                for name in ("held_out", "accuracy", "loss", "feature_length", "seconds")
            }
            each = [round(run["accuracy"], 2) for run in of]
            gain = compare(of, reference) if reference else (math.nan, math.nan)
            found[f"{title}: {group}"] = {"chosen": of[0]["name"], "rate": of[0]["rate"], "each": each, **mean}
            found[f"{title}: {group}"]["against_dropout"] = gain
            print(
                f"| {group} | {of[0]['name']}, rate {of[0]['rate']:g} | {len(of)} | {mean['held_out']:.2f} | "
                f"{mean['accuracy']:.2f} {each} | {mean['loss']:.3f} | {mean['feature_length']:.1f} | "
                f"{gain[0]:+.2f} +- {gain[1]:.2f} | {mean['seconds']:.1f} |"
            )
    return found


def main() -> None:
    """Pretrain for each seed, fine-tune by each method, and print; the file is written after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="folder of .txt files; the interpreter's library if not given")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pretrain", type=float, default=25.0, help="seconds of pretraining for each seed")
    parser.add_argument("--seconds", type=float, default=240.0, help="nothing begins after so many seconds")
    for name, default in (("seeds", 3), ("width", 384), ("depth", 6), ("length", 256), ("batch", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("steps", 200), ("tune-batch", 32), ("documents", 20), ("labelled", 500), ("held", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--most", type=int, default=40_000_000, help="bytes of text at most")
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begin = time.perf_counter()
    corpus = read_corpus(given.text, given.documents, given.labelled, given.held, given.length, given.most)
    sets = [
        Paragraphs(*(t.to(given.device) for t in of)) for of in (corpus.train, corpus.chosen_on, corpus.reported_on)
    ]
    corpus = corpus._replace(text=corpus.text.to(given.device), train=sets[0], chosen_on=sets[1], reported_on=sets[2])
    counts = [len(of.bytes) for of in sets]
    found: dict[str, Any] = {
        "machine": machine(),
        "files": corpus.files,
        "sha256": corpus.sha256,
        "bytes": len(corpus.text),
        "documents": corpus.documents,
        "paragraphs": counts,
        "steps": given.steps,
        "batch": given.tune_batch,
        "pretrained": [],
        "runs": [],
        "failed": [],
    }

    def write() -> None:
        if given.out:
            given.out.write_text(json.dumps(found) + "\n", encoding="utf-8")

    print(f"{machine()}; {corpus.files} files, sha256 {corpus.sha256}, {len(corpus.text)} bytes to learn from")
    print(f"{len(corpus.documents)} documents; paragraphs to train, choose and report on: {counts}", flush=True)
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        trunk = ByteModel(given.width, given.depth, given.length).to(given.device)
        # Every seed gets its share of what is left.
        spent = time.perf_counter() - begin
        until = spent + (given.seconds - spent) / (given.seeds - seed)
        try:
            steps, loss = pretrain(trunk, corpus.text, given.pretrain, given.batch, given.length)
        except Exception as error:  # noqa: BLE001 - one seed that fails must not cost the others
            found["failed"].append(f"pretraining, seed {seed}: {type(error).__name__}: {error}")
            print(found["failed"][-1], flush=True)
            continue
        size = sum(p.numel() for p in trunk.parameters())
        found["pretrained"].append({"seed": seed, "steps": steps, "nats": loss, "parameters": size})
        print(f"seed {seed}: {size / 1e6:.1f} M parameters, {steps} steps, {loss:.3f} nats a byte", flush=True)
        for rate in RATES:
            for method in METHODS:
                if time.perf_counter() - begin > until:
                    found["failed"].append(f"{method.name}, rate {rate:g}, seed {seed}: no time was left")
                    continue
                try:
                    run = try_method(trunk, method, rate, corpus, given, seed)
                except Exception as error:  # noqa: BLE001 - one method that fails must not cost the others
                    found["failed"].append(f"{method.name}, seed {seed}: {type(error).__name__}: {error}")
                    print(found["failed"][-1], flush=True)
                    continue
                found["runs"].append(run)
                print(
                    f"  {method.name}, rate {rate:g}: held out {run['held_out']:.1f} %, {run['seconds']:.1f} s",
                    flush=True,
                )
            write()
    found["table"] = show(found["runs"])
    write()
    for reason in found["failed"]:
        print(f"left out: {reason}")
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
