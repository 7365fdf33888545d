"""docs/results.md: the paper's claims one by one, then every table, written from the results alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from cesar.experiment.results import METRICS, MethodRow, rows_of
from cesar.reproduce import paper
from cesar.reproduce.counting import Count
from cesar.reproduce.sections import Pair, Section, gigabytes

HEAD = """# The paper, reproduced

Written by `cesar reproduce report DIR --markdown docs/results.md` from the results in DIR; every figure but those
called the paper's was measured. `cesar reproduce list` says which command makes which section. "Paper's exchange"
is `Cesar.paper()`, "ours" is `Cesar()`; both run on the same engine, with every frame encoded and counted. Accuracies
are means over nodes and seeds at the last test, ± the standard error over seeds; the paper prints the best of all
tests, of five seeds. Below the paper's scale there are few nodes and rounds and no GPU, so accuracies are to be compared
within a table and not with the paper's. Seconds are those of a machine that was busy with other things.
Which rounds the bytes are counted in was decided after the first results: design/006-where-bytes-are-counted.md says why
and what the others gave.
"""


WIDTHS = (24, 20, 16)


SLOWER = (
    " So the claim does not hold in so few rounds: with every crash most of a round's mixing is lost, and training is slower; "
    "design/008-dropouts-in-few-rounds.md says why, and that the difference becomes smaller in longer runs."
)
AHEAD = (
    " Why CESAR is ahead with random subsampling: D-PSGD gives a neighbour its Metropolis–Hastings weight, 1/(δ + 1) here, "
    "however few values arrive, while CESAR takes the mean of the own value and those that arrive. So it mixes more, which "
    "shows on label shards in few rounds; the paper's thousands of rounds leave nothing of it. That this is the reason was "
    "not tried separately."
)


def write_document(sections: list[Section], out: Path) -> Path:
    """Claims first, then a section per entry."""
    by_name = {section.figure.name: section for section in sections}
    lines = [HEAD, "## The claims, one by one\n", *_claims(by_name)]
    for section in sections:
        lines += _section(section)
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return out


def _section(section: Section) -> Iterator[str]:
    found = section.figure
    yield f"## {found.name}\n"
    yield f"{found.place}: {found.what}. `cesar reproduce {found.name} --scale {section.scale}`\n"
    for text in section.about:
        yield f"{text}\n"
    for pair in section.pairs:
        yield f"**{pair.title}.** {pair.caption}\n"
        yield from _table(pair)
        yield ""
    missing = [part for part in found.experiments(section.scale) if part not in section.studies]
    if missing:
        yield f"Not run yet: {', '.join(missing)}.\n"


def _table(pair: Pair) -> Iterator[str]:
    yield f"| {' | '.join(pair.heads)} |\n|{'---|' * len(pair.heads)}"
    for row in pair.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _claims(found: dict[str, Section]) -> Iterator[str]:
    claims = (
        ("settings", "Matches the accuracy of D-PSGD", _accuracy),
        ("settings", "66.7 % less data than full sharing", _less_data),
        ("settings", "Overhead of 7 to 11 % (random) and 12 to 35 % (TopK) over D-PSGD", _overhead),
        ("settings", "The gigabytes of Table III", _table_three),
        ("dropouts", "Dropouts cost at most a fraction of a point", _dropouts),
        ("nodes", "Coordination does not grow with the network", _nodes),
        ("degree", "Coordination follows View2", _degree),
        ("ring", "How wide a ring", _ring),
        ("subsampling", "Coordinated against independent subsampling, at equal bytes", _subsampling),
    )
    for number, (name, title, claim) in enumerate(claims, start=1):
        text = claim(found[name]) if name in found else ""
        missing = f"Not measured yet: `cesar reproduce {name}` has not come that far."
        yield f"{number}. **{title}.** {text or missing}"
    yield ""


def _rows(section: Section) -> Iterator[tuple[str, dict[str, MethodRow]]]:
    for part, study in section.studies.items():
        yield part, {row.title: row for row in rows_of(study)}


def gap(one: MethodRow, other: MethodRow) -> tuple[float, float]:
    """The difference of two means, and its standard error (NaN where a side has one seed)."""
    errors = [math.nan if row.error is None else row.error for row in (one, other)]
    return one.value - other.value, math.hypot(*errors)


def _points(difference: float, error: float) -> str:
    return f"{100 * difference:+.2f}" + ("" if math.isnan(error) else f" ± {100 * error:.2f}")


def _accuracy(section: Section) -> str:
    gaps = []
    for part, rows in _rows(section):
        other = next((row for title, row in rows.items() if title.startswith("D-PSGD")), None)
        if other is not None and "CESAR" in rows:
            gaps.append((part, *gap(rows["CESAR"], other)))
    if not gaps:
        return ""
    listed = "; ".join(f"{part} {_points(d, e)}" for part, d, e in gaps)
    mean = sum(d for _, d, _ in gaps) / len(gaps)
    far = [part for part, d, e in gaps if not abs(d) <= 2 * e]
    ahead = any(part in far and part.startswith("random") and d > 0 for part, d, _ in gaps)
    verdict = (
        "no row differs by more than two standard errors"
        if not far
        else f"more than two standard errors apart: {', '.join(far)}"
    )
    return (
        f"{len(gaps)} of {len(paper.SETTINGS)} rows of Table III were run. Paper: between −0.46 and +0.30 points. "
        f"Measured, ours minus D-PSGD at the same share, in points: {listed}; mean {100 * mean:+.2f}. "
        f"With so few seeds the standard errors are themselves rough; {verdict}." + (AHEAD if ahead else "")
    )


def _labels(counts: list[Count]) -> list[str]:
    return list(dict.fromkeys(row.label for row in counts))


def _less_data(section: Section) -> str:
    rows = [row for row in section.counts if row.method == "cesar" and row.label.endswith("-6-30")]
    if not rows:
        return ""

    def saved(kind: str, *, printed: bool) -> float:
        chosen = [row for row in rows if row.paper == printed and row.label.startswith(kind)]
        return sum(1 - row.bytes / (row.values / row.shared) for row in chosen) / len(chosen)

    figures = [
        f"{kind} {saved(kind, printed=True):.1%} in the paper's exchange, {saved(kind, printed=False):.1%} with ours"
        for kind in ("random", "topk")
    ]
    return (
        "At degree 6 and 30 %, against all parameters in 4 bytes each: "
        f"{'; '.join(figures)}. The paper's own table gives 66.4 % for random subsampling and 55.3 % for TopK."
    )


def _ratios(counts: list[Count], kind: str, *, printed: bool) -> list[float]:
    return [
        gigabytes(counts, label, "cesar", printed=printed)
        / gigabytes(counts, label, "dpsgd", printed=printed)
        for label in _labels(counts)
        if label.startswith(kind)
    ]


def _overhead(section: Section) -> str:
    if not section.counts:
        return ""
    parts = []
    for kind in ("random", "topk"):
        theirs, ours = (_ratios(section.counts, kind, printed=printed) for printed in (True, False))
        parts.append(
            f"{kind} {100 * (min(theirs) - 1):.1f} to {100 * (max(theirs) - 1):.1f} % in the paper's exchange, "
            f"{100 * (min(ours) - 1):.1f} to {100 * (max(ours) - 1):.1f} % with ours"
        )
    return f"Measured at the same share: {'; '.join(parts)}."


def _table_three(section: Section) -> str:
    """How far the byte figures are from the printed ones, and why."""
    if not section.counts:
        return ""
    far, most = [], {"random": 0.0, "topk": 0.0}
    for label in _labels(section.counts):
        kind, known = label.split("-", maxsplit=1)[0], paper.SETTINGS[label]
        got = [gigabytes(section.counts, label, method, printed=True) for method in ("cesar", "dpsgd")]
        off = max(abs(mine / theirs - 1) for mine, theirs in zip(got, known.gigabytes, strict=True))
        most[kind] = max(most[kind], off)
        ratio = got[0] / got[1]
        if off > {"random": 0.06, "topk": 0.08}[kind] or abs(ratio - known.ratio) > 0.05:
            far.append(f"{label} (bytes off by {off:.1%}, ratio {ratio:.3f} for {known.ratio:.3f})")
    text = (
        f"In the paper's exchange the largest difference is {most['random']:.1%} for random "
        f"subsampling and {most['topk']:.1%} for TopK."
    )
    if not far:
        return f"{text} Every ratio CESAR ÷ D-PSGD is within 0.05 of the printed one."
    return (
        f"{text} Not within 6 % (random), 8 % (TopK) and 0.05 of the ratio: {'; '.join(far)}. TopK's sets are what "
        "differs: early in training large changes cluster by layer, and Elias gamma needs fewer bits for clusters; the "
        "printed bytes fit sets with hardly any clusters, as they come late in 12,000 rounds."
    )


def _dropouts(section: Section) -> str:
    rows = dict(_rows(section))
    base = rows.get("0-percent", {}).get("CESAR")
    others = [(part, line["CESAR"]) for part, line in rows.items() if part != "0-percent" and "CESAR" in line]
    if base is None or not others:
        return ""
    listed = ", ".join(
        f"{_points(*gap(row, base))} at {part.removesuffix('-percent')} %" for part, row in others
    )
    lost = ", ".join(
        f"{rate} %: {value[0] - paper.DROPOUTS[0][0]:+.2f}" for rate, value in paper.DROPOUTS.items() if rate
    )
    worst = min(gap(row, base)[0] for _, row in others)
    return f"Paper, in points: {lost}. Measured with ours, in points: {listed}." + (
        SLOWER if worst < -0.01 else ""
    )


def _per_neighbour(section: Section, *, printed: bool) -> list[float]:
    counts = [row for row in section.counts if row.method == "cesar" and row.paper == printed]
    return [
        sum(r.coordination / r.view2 for r in counts if r.label == label)
        / sum(1 for r in counts if r.label == label)
        for label in _labels(counts)
    ]


def _spread(values: list[float]) -> str:
    middle = sum(values) / len(values)
    return f"{max(abs(value / middle - 1) for value in values):.2%}"


def _nodes(section: Section) -> str:
    values = _per_neighbour(section, printed=True)
    sizes = sorted({row.nodes for row in section.counts})
    return (
        f"From {sizes[0]} to {sizes[-1]} nodes the bytes of coordination per "
        f"View2 neighbour stay within {_spread(values)} of their mean; what grows is View2, because in small networks "
        "neighbours' neighbours coincide."
    )


def _degree(section: Section) -> str:
    return (
        "Over the degrees the bytes of coordination per View2 neighbour stay within "
        f"{_spread(_per_neighbour(section, printed=True))} of their mean in the paper's exchange, within "
        f"{_spread(_per_neighbour(section, printed=False))} with ours, which relays once per pair."
    )


def _better(row: MethodRow, other: MethodRow) -> float:
    """By how much a row is better than another, in percent of the metric for errors and points for accuracies."""
    difference, _ = gap(row, other)
    return 100 * difference if METRICS[row.metric] == "higher" else -100 * difference / other.value


def _compared(section: Section, base: str) -> str:
    texts = []
    for part, rows in _rows(section):
        if base not in rows:
            continue
        axis = "points of accuracy" if METRICS[rows[base].metric] == "higher" else "% lower RMSE"
        listed = ", ".join(
            f"{title.removeprefix('CESAR, ')} {_better(row, rows[base]):+.2f}"
            for title, row in rows.items()
            if title != base
        )
        if listed:
            texts.append(f"{part} ({axis}): {listed}")
    return "; ".join(texts)


def _ring(section: Section) -> str:
    """What narrower rings cost, and the narrowest that cost nothing measurable."""
    compared, harmless = _compared(section, "CESAR"), set(WIDTHS)
    if not compared:
        return ""
    for _, rows in _rows(section):
        for bits in WIDTHS:
            row = rows.get(f"CESAR, {bits} bits")
            difference, error = (math.nan, math.nan) if row is None else gap(row, rows["CESAR"])
            if not abs(difference) <= 2 * error:
                harmless.discard(bits)
    advice = (
        f"where bytes matter, {min(harmless)} bits are within two standard errors of 32 on all of them"
        if harmless
        else "no narrower ring is within two standard errors of it on all of them"
    )
    return (
        f"Against 32 bits: {compared}. The default stays at 32 bits: values then are finer than six decimals for parameters "
        f"below 100, so that nothing has to be tried out first; {advice}."
    )


def _subsampling(section: Section) -> str:
    compared = _compared(section, "CESAR")
    if not compared:
        return ""
    return f"{compared}."
