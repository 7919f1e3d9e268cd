"""The page of a detector of anomalies: one HTML file that needs nothing else."""

import hashlib
from fractions import Fraction
from html import escape
from pathlib import Path

from lipkit._files import write_whole
from lipkit.bound import Kind
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.certify.evaluate.proportion import percent
from lipkit.errors import ArgumentError
from lipkit.report.html.claims import Claim, about_interval, about_number, about_share, about_text
from lipkit.report.html.fields.anomaly_charts import ATTACKERS, auroc, health, scores
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.markup import Cell, Markup, bullets, facts, figure, join, paragraph, table, text
from lipkit.report.html.numbers import digits
from lipkit.report.results.anomaly_contents import ANOMALY, AnomalyContents, CertifiedAuroc, Labelled, StrangeRow


def write_anomaly_page(contents: AnomalyContents, folder: Path) -> Path:
    """Write `anomaly.html` to a folder, made if need be; returns where it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made a folder for the page ({error.strerror}).") from error
    path = folder / "anomaly.html"
    write_whole(path, render_anomaly_page(contents).encode())
    return path


def render_anomaly_page(contents: AnomalyContents) -> str:
    """The result of a detector as one HTML document; the same contents give the same text."""
    known = contents.labelled
    main = f'<section id="summary" aria-label="Summary">{_summary(contents)}</section>'
    if known is not None:
        main += section("auroc", "AUROC that no attacker can lower further", _auroc(known))
        main += section("decisions", "Decisions that no move changes", _decisions(known))
    main += section("scores", "Scores", _scores(contents))
    main += section("strangest", "The strangest rows", _strangest(contents))
    main += section("health", "Health of the training", _health(contents))
    main += section("reading", "How to read this page", _reading(contents))
    main += section("repeat", "How to repeat this", _repeat(contents))
    digest = hashlib.sha256(contents.to_json()).hexdigest()
    return frame_page(f"Anomalies in {contents.data}", "A detector with a proven constant", main, digest, ANOMALY)


def _summary(contents: AnomalyContents) -> str:
    known = contents.labelled
    constant = about_number("constant", contents.constant, digits(contents.constant, Kind.UPPER, 5))
    learned = f"{contents.learned} of {contents.rows}" + (" rows, all normal" if known else " rows")
    rows: list[tuple[str, Cell]] = [
        ("constant", join(constant, f", {contents.kind}, of the score in l2 and in units of the data")),
        ("threshold", about_number("threshold", contents.threshold, digits(contents.threshold, Kind.ESTIMATE, 6))),
        ("learned from", f"{learned}, of {contents.columns} columns"),
        ("promise", _promise(contents)),
    ]
    if known is not None:
        rows.insert(3, ("tested on", f"{known.normals} other normal rows and {known.anomalies} anomalies"))
    return paragraph(_lead(contents), "lead") + facts(rows)


def _lead(contents: AnomalyContents) -> Cell:
    known = contents.labelled
    if known is None:
        below = about_number("rows below the threshold", contents.below, f"{contents.below} of {contents.rows}")
        return join(below, " rows score below the threshold. Nobody said which rows are anomalies.")
    asked = [one for one in known.table if one.radius == contents.eps > 0]
    middle = asked[0] if asked else known.table[len(known.table) // 2]
    return join(
        "On rows that it did not learn from, the detector has an AUROC of ",
        _about_auroc(known.table[0], 0) if known.table[0].radius == 0 else _about_auroc(known.curve[0], 0),
        ". It stays at ", _about_auroc(middle, 1), f" or more whatever moves of length {said_radius(middle.radius)} "
        "are made to anomalies, and at ", _about_auroc(middle, 0), " or more if all rows are moved.",
    )  # fmt: skip


def _promise(contents: AnomalyContents) -> Cell:
    if not contents.held:
        return f"none: a share {contents.contamination:g} of the rows learned from scores below the threshold"
    moved = f", even if it was moved by {said_radius(contents.eps)} or less" if contents.eps else ""
    return (
        f"a normal row like those learned from is flagged with probability at most {contents.contamination:g}{moved}, "
        f"by {contents.held} rows that were held out"
    )


def _about_auroc(at: CertifiedAuroc, attacker: int) -> Claim:
    name, of = ATTACKERS[attacker]
    value = of(at)
    return about_number(f"AUROC at {said_radius(at.radius)}, {name}", value, percent(Fraction(value), Kind.LOWER))


def _auroc(known: Labelled) -> str:
    caption = (
        "Proven lower bounds of the AUROC on the test rows, if every row of a kind is moved by that length at worst. "
        "A score moves by the constant times the length at most; so one kind alone closes half the gap that both do, "
        "and the bounds of the two kinds are the same."
    )
    head = (">length", *(f">{name}" for name, _ in ATTACKERS))
    rows: list[list[Cell]] = [
        [said_radius(one.radius), *(_about_auroc(one, i) for i in range(len(ATTACKERS)))] for one in known.table
    ]
    return figure(lambda paper: auroc(known, paper), caption) + table("Certified AUROC, by who can move", head, rows)


def _decisions(known: Labelled) -> str:
    rows: list[list[Cell]] = []
    for one in known.alarms:
        cells: list[Cell] = [said_radius(one.radius)]
        for name, share in (("normal rows passed", one.passed), ("anomalies flagged", one.flagged)):
            about = f"{name} at {said_radius(one.radius)}"
            small = Markup(f"<small>{text(about_interval(about, share))}</small>")
            cells.append(join(about_share(about, share), small))
        rows.append(cells)
    head = (">length of the move", ">normal rows surely passed", ">anomalies surely flagged")
    words = (
        "A row passes if its score is not below the threshold. Here are the test rows whose decision is right, and "
        "proven to stay so after every move of that length. Small print: 95 % intervals of the share over rows drawn "
        "from the same source."
    )
    return paragraph(words) + table("Right decisions that hold, of the test rows", head, rows)


def _scores(contents: AnomalyContents) -> str:
    caption = "Scores of all rows; low ones are strange. Rows to the left of the dashed line are flagged."
    if contents.labelled is not None:
        caption += " Rows that were learned from say nothing about new ones; compare the other two kinds."
    return figure(lambda paper: scores(contents, paper), caption)


def _strangest(contents: AnomalyContents) -> str:
    known = contents.labelled is not None
    labels = ("label", "used to learn") if known else ()
    head = (">row", *labels, ">score", "decision", ">proven within")
    words = (
        "Rows are counted from 0, in the order of the data. A decision is proven within a length if no move of less "
        "than that length, in whatever columns, brings the score to the other side of the threshold."
    )
    rows = [_strange(one, contents.threshold, known) for one in contents.strangest]
    return paragraph(words) + table("Rows with the lowest scores", head, rows)


def _strange(one: StrangeRow, threshold: float, known: bool) -> list[Cell]:
    name = f"row {one.row}"
    labels: list[Cell] = [("normal", "anomaly")[one.label or 0], "yes" if one.learned else "no"] if known else []
    return [
        str(one.row), *labels, about_number(f"score of {name}", one.score, digits(one.score, Kind.ESTIMATE, 5)),
        about_text(f"decision on {name}", "flagged" if one.score < threshold else "passed"),
        about_number(f"radius of {name}", one.radius, digits(one.radius, Kind.LOWER, 4)),
    ]  # fmt: skip


def _health(contents: AnomalyContents) -> str:
    if not contents.health:
        return paragraph("No network was trained: the score is the exact distance alone, which has nothing to learn.")
    last = contents.health[-1]
    shares = (
        ("rows with f > 0", lambda one: one.recall),
        ("samples with f > 0", lambda one: one.false_positives),
        ("length of the gradient", lambda one: one.slope),
    )
    means = (
        ("rows", lambda one: one.rows),
        ("samples before their walk", lambda one: one.proposals),
        ("samples after it", lambda one: one.walked),
    )
    said = bullets(
        [
            "Healthy is: rows score above the samples, walks end between both, and the gradient has a length near 1, "
            "as that of a distance.",
            join("Loss at the last step: ", about_number("last loss", last.loss, digits(last.loss, Kind.ESTIMATE, 4))),
            "These numbers are of single batches, in standard deviations of the columns where those are standardised, "
            "and prove nothing.",
        ],
        "soft",
    )
    first = figure(
        lambda paper: health(contents.health, "shares", "share, or length", shares, paper),
        "Shares of rows and of complementary samples that the network f takes for normal, and its slope.",
    )
    second = figure(
        lambda paper: health(contents.health, "means", "mean of f", means, paper),
        "Mean scores of a batch of rows, and of complementary samples before and after their walk towards the rows.",
    )
    return said + first + second


def _reading(contents: AnomalyContents) -> str:
    words = [
        "The score is high for rows like those learned from. Its constant says how fast it can change: by the constant "
        "times the length of a move at most, in whatever direction, for all rows. The constant is proven from the "
        "weights, rounding included.",
        "So bounds of the AUROC and of decisions hold for every attacker who is held to that length, also for one who "
        "knows the detector. They say nothing about how strange new rows are.",
        "Lengths are in the units of the data, over all columns together; where columns have other units, scale them "
        "first.",
        "Certified numbers are rounded down, the constant up. Scores are computed in float64.",
    ]
    if contents.labelled is None:
        words.append("Without labels there is no AUROC; the list of the strangest rows is what to look at.")
    return bullets(words)


def _repeat(contents: AnomalyContents) -> str:
    rows: list[list[Cell]] = [[name, about_text(f"setting {name}", value)] for name, value in contents.settings]
    return (
        f'<pre tabindex="0" aria-label="command"><code>{escape(contents.command)}</code></pre>'
        + paragraph(f"Made with {contents.software}.", "soft")
        + table("Settings, and hashes of the data", ("what", "value"), rows)
    )
