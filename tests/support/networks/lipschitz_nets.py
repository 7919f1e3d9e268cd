"""Small trained networks whose constants have been published: two of them here, the others in a folder one may have."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lipkit.linops import Dense
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU

HERE = Path(__file__).parents[2] / "data" / "lipschitz-nets"
ELSEWHERE = Path(os.environ.get("LIPKIT_DATA", Path(__file__).parents[4] / "shared" / "data")) / "lipschitz-nets"


def _folder(name: str) -> Path:
    for folder in (HERE, ELSEWHERE):
        if (folder / f"{name}.npz").exists():
            return folder
    pytest.skip(f"{name}.npz is not in {ELSEWHERE}; set LIPKIT_DATA to the folder that has lipschitz-nets/")


def published(name: str) -> dict[str, float]:
    """The constants of logit 7 that others computed: MP (product), LT, LipSDP, GLipSDP, LiPopt, lb (from below)."""
    return json.loads((_folder(name) / "published.json").read_text())[name]


def arrays(name: str) -> dict[str, np.ndarray]:
    """The stored arrays of a network."""
    with np.load(_folder(name) / f"{name}.npz") as stored:
        return {key: stored[key] for key in stored}


def trained(name: str, logit: int | None = None) -> Network:
    """The network, or one of its logits, in the precision it is stored in."""
    with np.load(_folder(name) / f"{name}.npz") as stored:
        weights = [torch.from_numpy(stored[key]) for key in sorted(stored) if key.endswith("weight") or key[0] == "w"]
    if logit is not None:
        weights[-1] = weights[-1][logit : logit + 1]
    return chain([Dense(weight) for weight in weights], RELU)
