"""The top of a page: warnings, the result at the radii that were asked for, and what it is about."""

from lipkit.bound import Kind, Scope
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.report.html.claims import Claim, ShareClaims, about_interval, about_number, about_text
from lipkit.report.html.markup import Cell, Markup, bullets, facts, join, paragraph, table, text
from lipkit.report.html.numbers import constant, digits, norm_in_words
from lipkit.report.results.contents import Contents


def noun(contents: Contents) -> str:
    """The word for one sample: image, or sample."""
    return "sample" if contents.no_gallery else "image"


def summary(contents: Contents) -> str:
    """Everything that a reader in a hurry needs, in this order: doubts, the result, its circumstances, its meaning."""
    doubts = [about_text(f"warning {i + 1}", sentence) for i, sentence in enumerate(contents.warnings)]
    lost = [failure.part for failure in contents.failures]
    parts = f"Some parts could not be measured: {', '.join(lost)}; each says why in its place."
    return (
        (f'<div class="warning" role="note">{"".join(map(paragraph, doubts))}</div>' if doubts else "")
        + paragraph(_lead(contents), "lead")
        + (_shares(contents) if contents.eps else "")
        + (paragraph(parts, "failed") if lost else "")
        + facts(_facts(contents))
        + bullets(caveats(contents), "soft")
    )


def _lead(contents: Contents) -> Markup:
    clean = ShareClaims(contents.overall, contents.eps).clean
    start = join("The model classifies ", _strong(clean), f", of the test {noun(contents)}s correctly.")
    if not contents.eps:
        return start
    least = " The table shows how many of them keep their class under every change up to the given size"
    attacked = contents.overall.attacked is not None
    return join(
        start, least, ": proven at least, and at most what the attack left." if attacked else ": this is proven."
    )


def _shares(contents: Contents) -> str:
    """A row for each radius that was asked for."""
    claims = ShareClaims(contents.overall, contents.eps)
    attacked = contents.overall.attacked
    head = ["change up to", "", ">proven", *([">left by the attack"] if attacked is not None else [])]
    rows: list[list[Cell]] = []
    for i, eps in enumerate(contents.eps):
        sure, left = claims.certified(i), claims.attacked(i)
        share = contents.overall.certified[i]
        row: list[Cell] = [radius_words(eps), _bar(contents, i), _with_interval(sure, about_interval(sure.name, share))]
        if left is not None and attacked is not None:
            row.append(_with_interval(left, about_interval(left.name, attacked[i])))
        rows.append(row)
    level = about_number("confidence", contents.level, f"{100 * contents.level:g} %")
    note = join(
        "Below each share: ", level, f" confidence interval for new {noun(contents)}s from the same source, each by "
        "itself. Shares are rounded to the safe side: proven ones down, those of an attack up. Bars: solid is proven, "
        "hatched is open, grey is wrong or broken.",
    )  # fmt: skip
    caption = f"Correct {noun(contents)}s under changes, in l{contents.p:g}"
    return table(caption, head, rows, "scores") + paragraph(note, "note")


def _with_interval(claim: Claim, interval: Claim) -> Markup:
    return Markup(f"{_strong(claim).text}<small>{text(interval)}</small>")


def _strong(claim: Claim) -> Markup:
    return Markup(f"<strong>{text(claim)}</strong>")


def _bar(contents: Contents, i: int) -> Markup:
    """The proven part filled, what only the attack allows hatched; the numbers beside it say the same."""
    sure = contents.overall.certified[i]
    attacked = contents.overall.attacked
    open_ = 0 if attacked is None else attacked[i].count - sure.count
    widths = ((count, look) for count, look in ((sure.count, "sure"), (open_, "open")) if sure.total and count > 0)
    parts = "".join(f'<i class="{look}" style="width:{100 * count / sure.total:.2f}%"></i>' for count, look in widths)
    return Markup(f'<span class="track" aria-hidden="true">{parts}</span>')


def radius_words(eps: float) -> str:
    """A radius as it was asked for, with its decimal value where it is a fraction: 36/255 = 0.1412."""
    said = said_radius(eps)
    return f"{said} ≈ {eps:.4g}" if "/" in said else said


def _facts(contents: Contents) -> list[tuple[str, Cell]]:
    about, data, one, kind = contents.about, contents.data, contents.constant, noun(contents)
    shape = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}".join(map(str, data.shape)) or "1"
    name, mean = about_text("data", data.name or "without a name"), contents.overall.mean_radius
    rows: list[tuple[str, Cell]] = [
        ("Data", join(
            name, ": ", about_number("samples", data.samples, str(data.samples)), f" test {kind}s of ",
            Claim("shape", "x".join(map(str, data.shape)), shape), f", {len(contents.classes)} classes",
        )),
        ("Value range", join("entries from ", _plain_number("smallest entry", data.low), " to ",
                             _plain_number("largest entry", data.high))),
        ("Radii", join(about_text("norm", f"l{contents.p:g}"), f", {norm_in_words(contents.p, _entry(contents))}; ",
                       _units(contents))),
        ("Attack", _attack(contents)),
        ("Constant", join(_constant(contents), f", {one.kind.value}, {_whose(contents)}")),
        ("Found by", join(about_text("method", one.method), f"; valid {_where(one.region)}")),
        ("Precision", join("weights in ", about_text("precision", contents.precision),
                           "; radii from scores in float64, less their rounding error")),
        ("Mean radius", join(about_number("mean radius", mean, digits(mean, Kind.LOWER, 3)), "; 0 where wrong")),
        ("Seed", about_number("seed", about.seed, str(about.seed))),
        ("Time", _time(contents)),
        ("Software", _software(contents)),
    ]  # fmt: skip
    if about.prints.weights:
        rows.append(
            ("Weights", Markup(f"SHA-256 <code>{text(about_text('SHA-256 of weights', about.prints.weights))}</code>"))
        )
    return rows


def _time(contents: Contents) -> Cell:
    about = contents.about
    made = about_text("date", about.date)
    if about.seconds is None:
        return join(made, f", on {about.device}")
    trained = about_number("seconds of training", about.seconds, f"{about.seconds:.1f} s")
    return join(made, "; trained in ", trained, f" on {about.device}")


def _software(contents: Contents) -> Cell:
    found = contents.about.software
    versions = {"lipkit": found.lipkit, "torch": found.torch, "Python": found.python}
    parts = [join(f"{name} ", about_text(f"version of {name}", version)) for name, version in versions.items()]
    return Markup(", ".join(part.text for part in parts))


def _attack(contents: Contents) -> Cell:
    used = contents.attack
    if used is None:
        return about_text("attack", "none: how many more would stand is not known")
    settings = f": {used.settings}" if used.settings else ""
    box = f"; {_entry(contents)}s stay in [{used.low:g}, {used.high:g}]" if used.boxed else ""
    return about_text("attack", f"{used.name}{settings}{box}; run at every radius on every correct {noun(contents)}")


def _constant(contents: Contents) -> Claim:
    one = contents.constant
    return about_number("logarithm of the constant", one.log_value, constant(one.log_value, one.kind))


def _whose(contents: Contents) -> str:
    one = contents.constant
    return f"for {one.of}" if one.entries == 1 else f"the largest of {one.entries}, for {one.of}"


def _plain_number(name: str, value: float) -> Claim:
    return about_number(name, value, f"{value:.5g}")


def _units(contents: Contents) -> str:
    """The unit of the radii, by the range of the inputs."""
    entry, data = _entry(contents), contents.data
    if data.low >= 0 and data.high <= 1 and not contents.no_gallery:
        return f"{entry}s scaled to [0, 1]"
    return f"in the units of the inputs, whose {_plural(entry)} range from {data.low:.5g} to {data.high:.5g}"


def _entry(contents: Contents) -> str:
    return "entry" if contents.no_gallery else "pixel"


def _plural(word: str) -> str:
    return "entries" if word == "entry" else f"{word}s"


def caveats(contents: Contents) -> list[Cell]:
    """Sentences on what the results mean: the two sides, the constant, the probability of failure."""
    one = contents.constant
    found: list[Cell] = [
        "Proven shares are lower bounds of the accuracy under the worst possible change; shares left by an attack are "
        "upper bounds of it, because a stronger attack may exist. The truth lies between the two.",
        join(
            f"{_which(contents)} on one fact: {_grows(one.of)} at most ", _constant(contents), " times as much as the "
            f"input, {_where(one.region)}, in l{one.metric.p_in:g}.",
        ),
    ]  # fmt: skip
    if contents.failure > 0:
        risk = about_number("probability of failure", contents.failure, digits(contents.failure, Kind.UPPER, 2))
        found.append(
            join("The constant was found by a randomised method: with probability at most ", risk,
                 " it is wrong, and then nothing here is proven.")
        )  # fmt: skip
    return found


def _which(contents: Contents) -> str:
    if not contents.local:
        return "All radii rest"
    return (
        f"The radii of {contents.local} of {len(contents.outcomes.radii)} samples are proven by the network's margins "
        "on the ball around each, by linear relaxation or with constants that hold there. All others rest"
    )


def _grows(of: str) -> str:
    return "the difference of two scores changes" if of == str(Scope.PAIR) else "the scores change"


def _where(region: str) -> str:
    return "for all inputs" if region == "everywhere" else f"on the {region}"
