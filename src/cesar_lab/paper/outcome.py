"""What the directories that `reproduce` has left say: charts and tables, with the paper's own numbers beside ours."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

from cesar.base.errors import DataError
from cesar_lab.paper import counting
from cesar_lab.paper.catalogue import CATALOGUE, Exhibit, Scale, check_scale, find
from cesar_lab.paper.counting import Count, Counting, gigabytes
from cesar_lab.paper.measured import KINDS, Saved, Shown
from cesar_lab.paper.running import MANIFEST, read_manifest
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.paired import Difference, paired
from cesar_lab.show.quantity import Quantity, points
from cesar_lab.show.results import MethodRow, Study, read_study, rows_of
from cesar_lab.show.study import progress, sentence
from cesar_lab.show.table import NONE, Table

MEGABYTES = Quantity(key="bytes", name="sent by a node", size=1e6, unit="MB")
EXCHANGES = {
    "CESAR, paper's exchange": ("cesar", True),
    "D-PSGD, paper's exchange": ("dpsgd", True),
    "CESAR, ours": ("cesar", False),
    "D-PSGD, ours": ("dpsgd", False),
}
"""What was counted for every case: (method, in the paper's exchange)."""
When = Literal["trained", "settled", "all models"]
"""Nodes at the end of training or after settling, or the mean of all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A table or figure with all that was measured for it."""

    of: Exhibit
    scale: Scale
    counts: list[Count]
    studies: dict[str, Study]
    saved: dict[str, Saved]
    """Part, or nothing → what else was measured."""
    rows: dict[str, dict[str, MethodRow]] = field(repr=False)
    """Part → title of the method → what it reached."""

    @property
    def missing(self) -> list[str]:
        """Parts that have not been tested yet, and methods of the others."""
        found = []
        for part, experiment in self.of.parts(self.scale).items():
            line = self.rows.get(part, {})
            lacking = [method.title for method in experiment.method if method.title not in line]
            if lacking:
                found.append(f"{part} ({' · '.join(lacking)})" if line else part)
        return found

    @property
    def about(self) -> list[str]:
        """What was run and counted, in words."""
        said = [sentence(study.experiment) for study in list(self.studies.values())[:1]]
        if self.counts and (counted := Counting.of(self.of, self.scale)):
            said.append(counted.about(self.counts))
        return said

    @property
    def shown(self) -> list[Shown]:
        """All charts, each with its table."""
        found = [_bytes_shown(self)] if self.counts else []
        found += [*_metrics_shown(self), *_differences_shown(self)]
        kind = KINDS[self.of.measure["kind"]] if self.of.measure else None
        return found + [kind.show(self.of, part, saved) for part, saved in self.saved.items() if kind]


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────


def read_all(directories: Sequence[Path]) -> list[Outcome]:
    """Everything that these directories hold, in the catalogue's order.

    Raises:
        DataError: they hold nothing.
    """
    folders = [path.parent for directory in directories for path in sorted(directory.glob(f"*/{MANIFEST}"))]
    found = [read(folder) for folder in folders]
    if not found:
        raise DataError(f"{', '.join(map(str, directories))}: cesar reproduce has left nothing here")
    return sorted(found, key=lambda one: list(CATALOGUE).index(one.of.name))


def read_shorter(directories: Sequence[Path]) -> dict[str, Study]:
    """The experiments that lie beside reproductions, by the name of their directory."""
    found = [path.parent for directory in directories for path in sorted(directory.glob("*/experiment.json"))]
    return {folder.name: read_study(folder) for folder in found}


def read_timed(directories: Sequence[Path]) -> dict[str, Saved]:
    """What `cesar bench overhead --json` printed, by the name of its file in the folder `bench`."""
    found = [path for directory in directories for path in sorted(directory.glob("bench/overhead-*.json"))]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}


def read(folder: Path) -> Outcome:
    """Read the directory that `reproduce` has left.

    Raises:
        ConfigError, DataError: it is none, or nothing was measured yet.
    """
    manifest = read_manifest(folder)
    of, scale = find(str(manifest["name"])), check_scale(str(manifest["scale"]))
    counts = counting.read(folder) if (folder / counting.FILE).exists() else []
    studies = dict(_studies(of, scale, folder))
    saved = dict(_saved(of, studies, folder))
    if not counts and not studies and not saved:
        raise DataError(f"{folder}: nothing was measured yet")
    rows = {part: {row.title: row for row in rows_of(study)} for part, study in studies.items()}
    return Outcome(of=of, scale=scale, counts=counts, studies=studies, saved=saved, rows=rows)


def _studies(of: Exhibit, scale: Scale, folder: Path) -> Iterator[tuple[str, Study]]:
    """Parts that have been tested at least once."""
    for part in of.experiments(scale):
        if (folder / part / "experiment.json").exists():
            try:
                yield part, read_study(folder / part)
            except DataError:
                continue


def _saved(of: Exhibit, studies: dict[str, Study], folder: Path) -> Iterator[tuple[str, Saved]]:
    if of.measure is None:
        return
    kind = KINDS[of.measure["kind"]]
    for part in studies if kind.of_parts else [""]:
        path = folder / part / kind.file
        try:
            if path.exists():
                yield part, dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path} is damaged: {error}; remove it and run again") from None


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────


def _bytes_shown(outcome: Outcome) -> Shown:
    count = outcome.of.count
    assert count is not None
    return (_coordination if count["show"] == "coordination" else _sent)(outcome, count)


def _sent(outcome: Outcome, count: Saved) -> Shown:
    """All that a node sends, with CESAR and with D-PSGD at the same share."""
    counts, names, rows = outcome.counts, counting.labels(outcome.counts), []
    totals = {
        name: {label: gigabytes(counts, label, method, paper=paper) for label in names}
        for name, (method, paper) in EXCHANGES.items()
    }
    for label in names:
        printed = outcome.of.printed.get(label, {})
        theirs, theirs_plain = printed.get("gigabytes", (None, None))
        cesar, plain, ours, ours_plain = (found[label] for found in totals.values())
        shared = 100 * counting.mean(counts, label, "shared", paper=True)
        cells = [_beside(printed.get("shared"), shared), _beside(theirs, cesar), _beside(theirs_plain, plain)]
        cells.append(_beside(theirs / theirs_plain if theirs else None, cesar / plain, 3))
        rows.append((label, *cells, _beside(None, ours), _beside(None, ours / ours_plain, 3)))
    heads = ("case", "% shared", "CESAR", "D-PSGD", "CESAR ÷ D-PSGD", "CESAR, ours", "ours, ratio")
    series = [
        Series(name=name, x=names, y=list(found.values()), look="points") for name, found in totals.items()
    ]
    if known := {k: one["gigabytes"][0] for k, one in outcome.of.printed.items() if "gigabytes" in one}:
        x, y = list(known), list(known.values())
        series.append(Series(name="paper, CESAR", x=x, y=y, look="points", open=True))
    about = f"{count.get('caption', '')} In the paper's exchange, unless called ours.".lstrip()
    chart = Chart(
        title=count["title"],
        caption=about,
        x=Axis(name="case"),
        y=Axis(name="GB per node"),
        series=tuple(series),
    )
    return chart, Table(heads=heads, units=("", "", "GB", "GB", "", "GB", ""), rows=tuple(rows))


def _beside(printed: float | None, found: float, digits: int = 2) -> str:
    """The paper's figure and ours, with the difference in percent."""
    if math.isnan(found):
        return NONE
    if printed is None:
        return f"{found:.{digits}f}"
    return f"{printed:.{digits}f} / {found:.{digits}f} ({100 * (found / printed - 1):+.1f} %)"


def _coordination(outcome: Outcome, count: Saved) -> Shown:
    """Bytes of the coordination alone, and how they go with View2."""
    counts, names, printed = outcome.counts, counting.labels(outcome.counts), outcome.of.printed
    sizes = {label: counting.mean(counts, label, "view2", paper=True) for label in names}
    nodes = {row.label: float(row.nodes) for row in counts}
    theirs, ours = (
        {label: gigabytes(counts, label, paper=paper, what="coordination") for label in names}
        for paper in (True, False)
    )
    by_nodes, rows = count["along"] == "nodes", []
    for label in names:
        known = printed.get(label, {})
        gb, each = (
            known.get("coordination"),
            None if "view2" not in known else known["coordination"] / known["view2"],
        )
        cells = [NONE if gb is None else f"{gb:.2f}", NONE if each is None else f"{each:.4f}"]
        cells += [f"{theirs[label]:.2f}", f"{theirs[label] / sizes[label]:.4f}", f"{ours[label]:.2f}"]
        rows.append((label, f"{sizes[label]:.2f}", *cells))
    heads = ("case", "View2", "paper", "paper, per neighbour", "measured", "per neighbour", "ours")
    table = Table(heads=heads, units=("", "", *["GB"] * 5), rows=tuple(rows))
    along = nodes if by_nodes else sizes
    series = [
        Series(name=name, x=[along[label] for label in names], y=list(found.values()))
        for name, found in (("CESAR, paper's exchange", theirs), ("CESAR, ours", ours))
    ]
    # As printed: the labels say how many nodes there were, and Appendix B how large View2 was.
    places = [float(label.split()[0]) if by_nodes else one["view2"] for label, one in printed.items()]
    values = [one["coordination"] for one in printed.values()]
    chart = Chart(
        title=count["title"],
        caption=count["caption"],
        x=Axis(name="nodes" if by_nodes else "mean size of View2"),
        y=Axis(name="GB of coordination per node"),
        series=(*series, Series(name="paper", x=places, y=values, open=True)),
    )
    return chart, table.without("paper, per neighbour") if by_nodes else table


# ── accuracy ────────────────────────────────────────────────────────────────────────────────────────────


def _metrics_shown(outcome: Outcome) -> Iterator[Shown]:
    """One table of everything with one chart per metric: a point for each method, or curves over the bytes sent."""
    by_metric: dict[str, list[str]] = {}
    for part, study in outcome.studies.items():
        by_metric.setdefault(study.metric, []).append(part)
    for key, parts in by_metric.items():
        metric = Quantity.metric(key)
        lines = [(part, row) for part in parts for row in outcome.rows[part].values()]
        title = f"{metric.axis().title[:1].upper()}{metric.axis().title[1:]}"
        caption = (
            "Mean over nodes and seeds at the last test, ± standard error over seeds; standard deviation between "
            "nodes; the mean of all models; the mean over nodes before settling, where rounds of averaging alone followed; the best "
            "test in training, which is what the paper prints."
        )
        if outcome.of.by_bytes:
            chart = progress(outcome.studies[parts[0]], MEGABYTES, title=title, log=True)
            chart = Chart(title=title, caption=caption, x=chart.x, y=chart.y, series=chart.series)
        else:
            points = tuple(_points({part: outcome.rows[part] for part in parts}, metric))
            chart = Chart(title=title, caption=caption, x=Axis(), y=metric.axis(), series=points)
        yield chart, _metric_table(outcome, lines, metric)


def _metric_table(outcome: Outcome, lines: list[tuple[str, MethodRow]], metric: Quantity) -> Table:
    def seeds(row: MethodRow) -> str:
        short = "" if row.seeds_finished == row.seeds_planned else f" ({row.seeds_finished} finished)"
        return f"{row.seeds} × {row.round_}{short}"

    return Table.of(
        {
            ("part", ""): [part for part, _ in lines],
            ("method", ""): [row.title for _, row in lines],
            ("% shared", ""): [f"{100 * row.shared:.2f}" for _, row in lines],
            metric.head: [metric.text(row.value, row.error) for _, row in lines],
            ("spread", ""): [metric.text(row.spread) for _, row in lines],
            ("all models", ""): [metric.text(row.mean_model) for _, row in lines],
            ("unsettled", ""): [metric.text(row.before_settling) for _, row in lines],
            ("best", ""): [metric.text(row.best) for _, row in lines],
            ("paper", ""): [_published(outcome, part, row.title) for part, row in lines],
            ("MB per node", ""): [f"{row.bytes / 1e6:.2f}" for _, row in lines],
            ("seeds × rounds", ""): [seeds(row) for _, row in lines],
        },
        names=2,
    )


def shorter_table(studies: Mapping[str, Study]) -> Table:
    """What experiments of fewer rounds reached, by the name of their directory: at the end of training, and after settling."""
    lines = [(name, row) for name, study in studies.items() for row in rows_of(study)]

    def text(row: MethodRow, value: float | None) -> str:
        return Quantity.metric(row.metric).text(value)

    return Table.of(
        {
            ("runs", ""): [name for name, _ in lines],
            ("method", ""): [row.title for _, row in lines],
            ("metric", ""): [
                "accuracy (%)" if row.metric == "accuracy" else row.metric.upper() for _, row in lines
            ],
            ("trained", ""): [text(row, statistics.mean(row.trained_by_seed.values())) for _, row in lines],
            ("settled", ""): [text(row, row.value) if row.settle_rounds else NONE for _, row in lines],
            ("all models", ""): [text(row, row.mean_model) for _, row in lines],
            ("MB while training", ""): [f"{(row.bytes - row.settle_bytes) / 1e6:.2f}" for _, row in lines],
            ("seeds × rounds", ""): [f"{row.seeds} × {row.round_}" for _, row in lines],
        },
        names=2,
    )


def _published(outcome: Outcome, part: str, title: str) -> str:
    """What the paper prints for a method; figures of other sizes do not belong side by side."""
    if outcome.scale is not Scale.PAPER:
        return NONE
    known = outcome.of.printed.get(part, {}).get("metric", {})
    return next((value for pattern, value in known.items() if fnmatchcase(title, pattern)), NONE)


def _points(rows: dict[str, dict[str, MethodRow]], metric: Quantity) -> Iterator[Series]:
    """A point per part and method, at the last test: by part, or by method where there is one part."""
    titles = dict.fromkeys(title for line in rows.values() for title in line)
    by_method = {
        title: {part: line[title] for part, line in rows.items() if title in line} for title in titles
    }
    for name, found in (by_method if len(rows) > 1 else rows).items():
        yield Series(
            name=name,
            x=list(found),
            y=[row.value / metric.size for row in found.values()],
            error=[(row.error or 0.0) / metric.size for row in found.values()],
            look="points",
        )


# ── differences ─────────────────────────────────────────────────────────────────────────────────────────


def gap(one: MethodRow, other: MethodRow, *when: When) -> Difference | None:
    """By how much one is ahead of the other, over the seeds that both have; `when` is of both, or of each."""

    def values(row: MethodRow, when: When) -> dict[int, float]:
        match when:
            case "trained":
                return row.trained_by_seed
            case "settled":
                return row.by_seed
            case "all models":
                return row.mean_model_by_seed

    both = values(one, when[0]), values(other, when[-1])
    return paired(*both) if one.higher_is_better else paired(*reversed(both))


def _differences_shown(outcome: Outcome) -> Iterator[Shown]:
    """Methods set against one another, seed by seed."""
    rows, series = [], []
    for part, line in outcome.rows.items():
        ends: dict[str, Difference] = {}
        for one, other in outcome.of.compared:
            if one not in line or other not in line:
                continue
            words = f"{one} − {other}"
            found = [gap(line[one], line[other], when) for when in get_args(When)]
            rows.append((part, words, *map(points, found), f"{found[0].seeds}" if found[0] else NONE))
            ends |= {words: found[0]} if found[0] else {}
        y, error = (
            [100 * end.mean for end in ends.values()],
            [100 * (end.margin or 0.0) for end in ends.values()],
        )
        series.append(Series(name=part, x=list(ends), y=y, error=error, look="points"))
    if rows:
        chart = Chart(
            title="Paired differences, in points",
            caption="By how much one method is ahead of the other with the same seed, mean over seeds, and its 95 % interval: nodes at "
            "the end of training (drawn), nodes after settling, and the mean of all models.",
            x=Axis(),
            y=Axis(name="points"),
            series=tuple(series),
        )
        heads = ("part", "difference", *get_args(When), "seeds")
        yield chart, Table(heads=heads, rows=tuple(rows), names=2)
