"""Results that are proven and still mean nothing: one answer for everything, and numbers of an absurd size."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.bound import Bound
from lipkit.certify.evaluate.evaluation import STATED, Evaluation, said_otherwise, said_radius

# A radius below this part of the range of the inputs is not a change that anybody would notice.
_TINY = 1e-3
# Constants beyond these prove nothing that one could use, and come from a wrong scale more often than from a network.
_HUGE, _VANISHING = 1e9, 1e-9
# How much wider than [0, 1] inputs may be and still count as pixels of that range.
_ROOM = 1.05


def find_warnings(
    evaluation: Evaluation, inputs: Float[Tensor, "count ..."], bound: Bound, classes: Sequence[str] = ()
) -> tuple[str, ...]:
    """One sentence for each thing that makes a result implausible; empty for ordinary results.

    Warned of are: a classifier that gave one answer to all inputs; inputs that are all the same; radii in 255ths where
    the inputs are no pixels in [0, 1]; radii that are all below a thousandth of the range of the inputs, or above the
    largest distance that two inputs can have; constants above 1e9 or below 1e-9; constants that were stated instead of
    computed; samples that the model as it runs decides otherwise than in exact arithmetic. Radii and certificates stay
    what they are: they are proven, as far as the constant is.
    `inputs` are those that were evaluated, `bound` the constant that was used, and `classes` names for what is not
    called by its number.
    Cost: one pass over the inputs.
    """
    return (*_answers(evaluation, classes), *_scales(evaluation, inputs), *_constants(bound), *_claims(evaluation))


def _answers(evaluation: Evaluation, classes: Sequence[str]) -> Iterator[str]:
    samples = evaluation.samples
    answers, labels = {s.predicted for s in samples}, {s.label for s in samples}
    if len(samples) < 2 or len(answers) > 1:
        return
    answer = answers.pop()
    name = f" ({classes[answer]})" if answer < len(classes) and classes[answer] != str(answer) else ""
    given = f"The model gave the same answer, class {answer}{name}, to all {len(samples)} samples"
    if len(labels) > 1:
        yield f"{given}: a classifier with one answer is robust and useless, so its radii say nothing about quality."
    else:
        yield f"{given}, and all of them have one label: evaluate samples of several classes to learn something."


def _claims(evaluation: Evaluation) -> Iterator[str]:
    if evaluation.otherwise:
        yield said_otherwise(evaluation.otherwise, len(evaluation.samples))
    if evaluation.stated:
        yield STATED


def _scales(evaluation: Evaluation, inputs: Float[Tensor, "count ..."]) -> Iterator[str]:
    low, high, top = float(inputs.min()), float(inputs.max()), max(evaluation.eps)
    width = high - low
    if width == 0:
        if inputs.numel() > 1:
            yield f"All entries of all inputs are {low:g}: there is nothing to classify; check how the data are read."
        return
    ends = f"the inputs range from {low:.4g} to {high:.4g}"
    steps = [said_radius(eps) for eps in evaluation.eps if said_radius(eps).endswith("/255")]
    if steps and width > _ROOM:
        yield (
            f"A radius such as {steps[-1]} is meant for pixels scaled to [0, 1], but {ends}: scale the data, and put a "
            "normalisation into the model."
        )
    elif top < _TINY * width:
        yield (
            f"The largest radius, {said_radius(top)}, is less than a thousandth of the range of an entry ({ends}): "
            "check that radii and data have the same units."
        )
    # Two inputs differ in each entry by its range at most.
    ranges = (inputs.amax(0) - inputs.amin(0)).double().flatten()
    diameter = float(torch.linalg.vector_norm(ranges, evaluation.p))
    if len(inputs) > 1 and top > diameter:
        yield (
            f"The radius {said_radius(top)} is larger than the distance between any two of the inputs, which is at "
            f"most {diameter:.4g} in l{evaluation.p:g}: no useful classifier can be certified there."
        )


def _constants(bound: Bound) -> Iterator[str]:
    largest = float(bound.log_value.detach().max())
    said = "0" if largest == -math.inf else f"about 10^{largest / math.log(10):.0f}"
    if largest > math.log(_HUGE):
        yield (
            f"The constant is {said}, so the certified radii are next to nothing: choose a tighter method, or "
            "constrain the layers."
        )
    elif largest < math.log(_VANISHING):
        yield f"The constant is {said}, so the scores hardly depend on the input: check the scale of the weights."
