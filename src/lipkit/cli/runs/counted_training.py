"""The training of a detector with a bar: `fit` of scikit-learn tells nobody how far it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.console import bar

if TYPE_CHECKING:
    from lipkit.estimators import OneClassSDF


def train_detector(request: AnomalyRequest, rows: Float64[np.ndarray, "n d"], what: str) -> "OneClassSDF":
    """Train the detector of a request on rows, with a bar that says `what`."""
    detector = request.detector()
    held = int(request.calibration * len(rows))
    from lipkit.estimators.detector_training import steps_for

    with _counted_steps(what, steps_for(request.steps, len(rows) - held)):
        return detector.fit(rows)


@contextmanager
def _counted_steps(what: str, total: int) -> Iterator[None]:
    """A bar over the updates that are made in the block, which torch reports of every optimizer."""
    leader: Optimizer | None = None
    done = 0
    with bar(what) as show:

        def count(optimizer: Optimizer, *_: Any) -> None:
            nonlocal leader, done
            leader = leader or optimizer
            # Others of the same training make their steps along with it.
            if optimizer is leader:
                done += 1
                show(done, total, "")

        hook = register_optimizer_step_post_hook(count)
        try:
            yield
        finally:
            hook.remove()
