"""The sentences that say why the noise of a gradient is not known."""

from collections.abc import Sequence

from lipkit.analysis.dynamics.noise.process_sums import Processes

WRONG_ROWS = (
    "has a first axis that is not that of the samples, or samples mix between it and the output, or several outputs "
    "are in the loss; put samples first"
)
ONE_SAMPLE = "had a batch of one sample, which has no variance"


def passes_before(count: int, step: int) -> str:
    """Of a layer whose gradient is no single backward pass's."""
    return f"went through {count} backward passes before step {step + 1}, not one"


def gradient_changed(processes: Processes) -> str:
    """Of a layer whose gradient is another one than was heard."""
    reason = "had its gradient changed between the backward pass and the step (clipped, scaled or summed)"
    if processes.count > 1:
        return f"{reason}, or it is not the mean over the {processes.count} processes"
    count = Processes.joined().count
    if count > 1:
        reason += f"; there are {count} processes, and without synchronise=True each hears its own samples only"
    return reason


def heard_differently(names: Sequence[str], stories: Sequence[Sequence[str | None]]) -> str | None:
    """None, or which layer was heard in another way by another process: such parts do not add up.

    Args:
        names: Those of the layers.
        stories: What each process heard of each layer.
    """
    for rank, others in enumerate(stories):
        for name, first, second in zip(names, stories[0], others, strict=True):
            if first != second:
                return (
                    f"Layer {name!r}: process 0 heard {first or 'nothing'}, process {rank} {second or 'nothing'}; give "
                    "each process a batch of the same size at every step."
                )
    return None
