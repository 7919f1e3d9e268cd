"""The results in sentences that need no previous knowledge."""

from dataclasses import dataclass
from typing import final

from lipkit.bound import Scope
from lipkit.certify import Proportion
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.kind import Kind
from lipkit.report.html.numbers import between, constant, digits, norm_in_words, percent
from lipkit.report.results.contents import Contents


@final
@dataclass(frozen=True)
class Headline:
    """The radius that a page speaks of first, and what holds there."""

    eps: float
    certified: Proportion
    attacked: Proportion | None

    @classmethod
    def of(cls, contents: Contents) -> "Headline":
        """The largest radius at which half of the samples are certified; without one, the smallest one."""
        places = range(len(contents.eps))
        half = [i for i in places if 2 * contents.overall.certified[i].count >= contents.overall.certified[i].total]
        at = max(half, key=contents.eps.__getitem__) if half else min(places, key=contents.eps.__getitem__)
        attacked = contents.overall.attacked
        return cls(contents.eps[at], contents.overall.certified[at], None if attacked is None else attacked[at])


def noun(contents: Contents) -> str:
    """The word for one sample: image, or sample."""
    return "sample" if contents.no_gallery else "image"


def sentences(contents: Contents) -> list[str]:
    """The result, one statement each: what is correct, what is proven, what an attack left, what is uncertain."""
    clean, kind = contents.overall.clean, noun(contents)
    found = [f"{percent(clean)} of the {clean.total} test {kind}s are classified correctly."]
    if not contents.eps:
        return found
    top = Headline.of(contents)
    sure = percent(top.certified, Kind.LOWER)
    found.append(
        f"For {sure} no change of length up to {said_radius(top.eps)} can alter that: this is proven, not only tested."
    )
    if top.attacked is None:
        found.append("No attack was run, so it is not known how many more would stand.")
    else:
        left = percent(top.attacked, Kind.UPPER)
        broken = clean.count - top.attacked.count
        found.append(
            f"The strongest attack we ran broke {broken} of the {clean.count} correct ones with changes of that "
            f"length, which leaves {left}; the true share lies between {sure} and {left}."
        )
    return found


def caveats(contents: Contents) -> list[str]:
    """Sentences on what the headline means: kinds, length, the constant, probability of failure, confidence."""
    one = contents.constant
    entry = "entry" if contents.no_gallery else "pixel"
    found = [
        "Certified accuracy is a proven lower bound of the accuracy under the worst possible change; accuracy under "
        "attack is an upper bound of it, because a stronger attack may exist.",
        f"The length of a change is {norm_in_words(contents.p, entry)} (l{contents.p:g}).",
        f"All radii rest on one fact: {_grows(one.of)} at most {constant(one.log_value, one.kind)} times as much as "
        f"the input ({one.kind.value}, {one.metric}, valid {_where(one.region)}, found by: {one.method}).",
    ]
    if contents.failure > 0:
        found.append(
            "The constant was found by a randomised method: with probability at most "
            f"{digits(contents.failure, Kind.UPPER, 2)} it is wrong, and then nothing here is proven."
        )
    if contents.eps:
        top = Headline.of(contents)
        found.append(
            f"For new {noun(contents)}s from the same source the shares differ; with {100 * contents.level:g} % "
            f"confidence, each by itself, {between(contents.overall.clean)} are classified correctly and "
            f"{between(top.certified)} certified at {said_radius(top.eps)}."
        )
    return found


def _grows(of: str) -> str:
    return "the difference of two logits changes" if of == str(Scope.PAIR) else "the logits change"


def _where(region: str) -> str:
    return "for all inputs" if region == "everywhere" else f"on the {region}"
