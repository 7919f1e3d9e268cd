"""The section of a page that says what a private training cost, and what that rests on."""

from lipkit.bound import Kind
from lipkit.report.html.claims import about_number, about_text
from lipkit.report.html.markup import Cell, join, paragraph, table
from lipkit.report.html.numbers import digits
from lipkit.report.results.contents import Contents
from lipkit.report.results.privacy_claim import PrivacyClaim


def privacy_section(contents: Contents) -> str:
    """Epsilon and delta, in a sentence and in a table with everything that they depend on."""
    found = contents.privacy
    assert found is not None
    epsilon = _epsilon("epsilon", found.epsilon)
    lead = join(
        "Whatever anybody does with these weights, one record changes the odds of any conclusion by a factor of "
        "e^epsilon at most, epsilon = ", epsilon, ", except with probability ",
        about_number("delta", found.delta, f"{found.delta:g}"), ".",
    )  # fmt: skip
    return (
        paragraph(lead)
        + table("What the guarantee rests on", ("what", "value"), _rows(found))
        + paragraph("The plan in one sentence, for a paper:")
        + paragraph(about_text("plan", found.statement), "note")
        + paragraph(
            "The guarantee is read off privacy.ledger, which counts every step before it is made. It is about real "
            "numbers; floating-point noise is drawn in float64, and limits are enlarged for the rounding of sums. "
            + _verdict(found),
            "note",
        )
    )


def _verdict(found: PrivacyClaim) -> str:
    """What an attack on the training says of the claim."""
    if found.canaries is None:
        return (
            "No attack on the training was part of this run; lipkit.privacy.audit gives a lower bound of epsilon from "
            "planted records, which must stay below the number above."
        )
    if found.canaries.least > found.epsilon:
        return (
            "Its canaries refute the claim: they prove an epsilon above the number above, so noise, batches or limits "
            "were not what the plan says. Do not rely on it."
        )
    return "The canaries of this run do not contradict it; an attack can refute a claim, and never prove one."


def _rows(found: PrivacyClaim) -> list[list[Cell]]:
    steps = about_number("private steps", found.steps, f"{found.steps} of {found.planned} planned")
    others = "; ".join(found.others) or "none"
    rows: list[list[Cell]] = [
        ["steps that count as released", steps],
        ["epsilon of these steps", _epsilon("epsilon of the steps made", found.epsilon)],
        ["epsilon of all planned steps", _epsilon("epsilon of the plan", found.planned_epsilon)],
        ["relation", about_text("relation", found.relation)],
        ["batches", about_text("sampling", found.sampling)],
        ["records, planned batch", f"{found.records}, {found.batch}; both are public constants"],
        ["noise multiplier", about_number("noise multiplier", found.sigma, digits(found.sigma, Kind.LOWER, 6))],
        ["accountant", about_text("accountant", found.accountant)],
        ["other releases of the same records", about_text("other releases", others)],
        ["choice of the settings", about_text("tuning", found.tuning)],
    ]
    if found.tuned is not None:
        mean = about_number("runs tried", found.tuned.mean, f"{found.tuned.mean:g}")
        shape = about_number("shape of the law of runs", found.tuned.shape, f"{found.tuned.shape:g}")
        paid = _epsilon("epsilon with the choice paid for", found.tuned.epsilon)
        what = join(
            "epsilon of all steps of the best of ", mean, " runs on average (negative binomial, shape ", shape, ")"
        )
        rows.append([what, paid])
    if found.canaries is not None:
        who = f"{found.canaries.inside} canaries inside, {found.canaries.outside} outside"
        what = f"epsilon is at least, with confidence {100 * found.canaries.confidence:g} %, by {who}"
        least = found.canaries.least
        rows.append([what, about_number("epsilon by canaries", least, digits(least, Kind.LOWER, 5))])
    return rows


def _epsilon(name: str, value: float) -> Cell:
    return about_number(name, value, digits(value, Kind.UPPER, 5))
