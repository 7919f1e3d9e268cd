"""One small trained model with its evaluation and report, for all tests of pages. lipkit is imported inside: shape
checks are installed after this file is read."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest


class Run(NamedTuple):
    """What a training run leaves: all that a report is made from."""

    model: Any
    test: Any
    evaluation: Any
    bound: Any
    journal: list[dict[str, Any]]
    about: Any
    attack: Any


@pytest.fixture(scope="session")
def trained() -> Run:
    """A convolution and two dense layers, some seconds of training on half of the digits, 80 images evaluated."""
    import torch
    from torch import nn
    from torch.nn import functional

    from lipkit import certify
    from lipkit.bounds import DAG
    from lipkit.certify.attacks import PGD
    from lipkit.data import digits
    from lipkit.report.results.about import About

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        train, test = digits().split(80, 0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
            nn.Linear(32, 10),
        )  # fmt: skip
        step = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.3)
        journal: list[dict[str, Any]] = []
        loss = torch.zeros(())
        for epoch in range(6):
            for chosen in torch.randperm(len(train)).split(100):
                step.zero_grad()
                loss = functional.cross_entropy(model(train.inputs[chosen]), train.labels[chosen])
                loss.backward()
                step.step()
            journal.append(
                {"step": 17 * (epoch + 1), "loss": float(loss.detach()), "constant": 2.0 + epoch, "rate": 1.0}
            )
    model.eval()
    bound = certify.head_pairwise(model, test.inputs[:1], DAG())
    attack = PGD(1.0, low=0.0, high=1.0, steps=10)
    evaluation = certify.accuracy(model, [(test.inputs, test.labels)], bound, (0.05, 0.1, 0.2, 0.4), attack=attack)
    about = About.here(
        command="lipkit train recipes/digits.py --out <runs> && lipkit report", date="1 January 2026", seconds=12.5,
        seed=3, device="cpu", recipe="Digits<1>", fields={"epochs": "6", "rate": "0.005"},
    )  # fmt: skip
    return Run(model, replace(test, name="digits & co."), evaluation, bound, journal, about, attack)


@pytest.fixture(scope="session")
def contents(trained: Run) -> Any:
    """The contents of its report."""
    from lipkit.report import gather_contents

    return gather_contents(*trained)
