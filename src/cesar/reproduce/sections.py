"""What the results of an entry say: figures and tables with the paper's own numbers, for the page and the document."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cesar.errors import DataError
from cesar.experiment.figures import PALETTE, metric_axis, shown
from cesar.experiment.report import sentence
from cesar.experiment.results import MethodRow, Study, judged, mean, read_study, rows_of
from cesar.page import Figure, Spec, json_number, plot_axis, plot_layout
from cesar.reproduce import paper
from cesar.reproduce.catalogue import Entry, Scale, check_scale, entry
from cesar.reproduce.counting import FILE, Count, read
from cesar.reproduce.running import COLLUSION, MANIFEST, MEMBERSHIP, read_manifest

Row = Sequence[str]
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart; `error` are standard errors."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    error: Sequence[float] | None = None
    line: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plot and the table beside it."""

    title: str
    caption: str
    axes: tuple[str, str]
    series: list[Series]
    heads: Row
    rows: Sequence[Row]

    @property
    def plot(self) -> Figure:
        """The plot; the paper's own figures are open markers."""
        data = [_trace(one, number) for number, one in enumerate(self.series)]
        legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        x = plot_axis(self.axes[0], type="category") if _by_name(self.series) else plot_axis(self.axes[0])
        margin = {"l": 48, "r": 16, "t": 24 + 22 * ((len(self.series) + 1) // 2), "b": 44}
        layout = plot_layout(x, plot_axis(self.axes[1]), showlegend=True, legend=legend, margin=margin)
        return Figure(title=self.title, caption=self.caption, spec={"data": data, "layout": layout})


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One entry of the catalogue with all that was measured for it."""

    figure: Entry
    scale: Scale
    about: list[str]
    pairs: list[Pair]
    counts: list[Count]
    studies: dict[str, Study]


def _by_name(series: list[Series]) -> bool:
    return any(isinstance(value, str) for one in series for value in one.x)


def _trace(one: Series, number: int) -> Spec:
    colour, printed = f"css:c{number % PALETTE}", one.name == "paper" or one.name.startswith("paper,")
    trace: Spec = {
        "type": "scatter",
        "mode": "lines+markers" if one.line else "markers",
        "name": one.name,
        "x": list(one.x),
        "y": [json_number(value) for value in one.y],
        "line": {"color": colour, "dash": "dot" if printed else "solid"},
        "marker": {"color": colour, "size": 9, "symbol": "circle-open" if printed else "circle"},
    }
    if one.error is not None:
        trace["error_y"] = {"type": "data", "array": [json_number(e) for e in one.error], "color": colour}
    return trace


def section(folder: Path) -> Section:
    """Read the directory that `reproduce` has left.

    Raises:
        ConfigError, DataError: it is none, or nothing was measured yet.
    """
    manifest = read_manifest(folder)
    found, scale = entry(str(manifest["name"])), check_scale(str(manifest["scale"]))
    counts = read(folder) if (folder / FILE).exists() else []
    studies = dict(_studies(found, scale, folder))
    risks = _json(folder / COLLUSION)
    areas = {part: _json(folder / part / MEMBERSHIP) for part in studies}
    if not counts and not studies and not risks:
        raise DataError(f"{folder}: nothing was measured yet")
    about = [sentence(study.experiment) for study in list(studies.values())[:1]]
    if counts:
        about.append(_about_counts(found, scale, counts))
    pairs = [*_count_pairs(found, counts), *_study_pairs(found, studies)]
    pairs += [_membership(found, part, area) for part, area in areas.items() if area]
    if risks:
        about.append(
            f"{risks['graphs']:,} random graphs, adversaries drawn anew for each; α shares 30 % at each s."
        )
        pairs.append(_collusion(risks))
    return Section(figure=found, scale=scale, about=about, pairs=pairs, counts=counts, studies=studies)


def _studies(found: Entry, scale: Scale, folder: Path) -> Iterator[tuple[str, Study]]:
    """Parts that have been tested at least once."""
    for part in found.experiments(scale):
        if (folder / part / "experiment.json").exists():
            try:
                yield part, read_study(folder / part)
            except DataError:
                continue


def _about_counts(found: Entry, scale: Scale, counts: list[Count]) -> str:
    counting = found.counting(scale)
    assert counting is not None
    rounds = sorted({row.round_ for row in counts})
    return (
        f"Bytes were counted on {counting.dataset} with {counting.model}: after {counting.alone:,} SGD steps of one model alone all nodes "
        f"went on from it; counted in rounds {', '.join(map(str, rounds))} (seeds: {', '.join(map(str, sorted({r.seed for r in counts})))}), "
        f"{counting.sgd.steps} steps of batch {counting.sgd.batch_size} at learning rate {counting.sgd.learning_rate:g} each. "
        f"GB are bytes of a node per round × {paper.ROUNDS:,} rounds."
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}; remove it and run again") from None


def _membership(found: Entry, part: str, saved: dict[str, Any]) -> Pair:
    """The area under the ROC curve for one model, and for means of more and more."""
    rows, series = [], []
    for method in saved["methods"]:
        sums, title = method["sums"], method["title"]
        first, last = sums[0], sums[-1]
        seen = last if title.startswith(("CESAR", "secure")) else first
        key = next((name for name in paper.MEMBERSHIP if name in title), None)
        known = f"{paper.MEMBERSHIP[key]:.2f}" if key is not None and found.name == "membership" else NONE
        ends = [f"{one['auc']:.3f} ± {one['auc_error']:.3f}" for one in (first, last, seen)]
        rows.append((title, ends[0], ends[1], f"{first['auc'] - last['auc']:.3f}", known, ends[2]))
        x = [float(one["models"]) for one in sums]
        errors = [one["auc_error"] for one in sums]
        series.append(Series(name=title, x=x, y=[one["auc"] for one in sums], error=errors))
    return Pair(
        title=f"Membership inference, {part}",
        caption="Area under the ROC curve, mean over victims ± standard error; 0.5 is guessing. Masked methods show "
        "a neighbour the mean of all only.",
        axes=("models in the sum", "area under the ROC curve"),
        series=series,
        heads=("method", "one model", "mean of all", "difference", "paper", "what a neighbour has"),
        rows=rows,
    )


def _collusion(saved: dict[str, Any]) -> Pair:
    risks = saved["risks"]

    def value(risk: dict[str, Any], name: str) -> float:
        return 100 * float(risk[name]["hits"]) / float(risk[name]["trials"])

    names = {"paper": "paper's criterion", "at_least": "at least", "at_random": "at a random position"}
    most = [risk for risk in risks if risk["adversaries"] == 15]
    series = [Series(name="paper", x=list(paper.COLLUSION), y=list(paper.COLLUSION.values()), line=False)]
    series += [
        Series(name=label, x=[float(r["masks"]) for r in most], y=[value(r, name) for r in most])
        for name, label in names.items()
    ]
    rows = [
        (
            f"{risk['masks']}",
            f"{paper.COLLUSION[risk['masks']]:.2f}" if risk["masks"] in paper.COLLUSION else NONE,
            *(f"{value(risk, name):.3g}" for name in ("paper", "at_least", "at_most", "at_random")),
        )
        for risk in most
        if risk["masks"] <= 16
    ]
    return Pair(
        title="Risk with 15 adversaries, in percent of the graphs",
        caption="The paper's criterion overlooks differences of two sums; at least and at most enclose the true risk.",
        axes=("s", "risk (%)"),
        series=series,
        heads=("s", "paper", "paper's criterion", "at least", "at most", "at a random position"),
        rows=rows,
    )


def gigabytes(counts: list[Count], label: str, method: str, *, printed: bool, part: str = "bytes") -> float:
    """Mean over rounds and seeds of what a node sends, in GB for all rounds of the paper."""
    rows = [row for row in counts if (row.label, row.method, row.paper) == (label, method, printed)]
    return statistics.mean(float(getattr(row, part)) for row in rows) * paper.ROUNDS / 1e9


def _mean(counts: list[Count], label: str, what: str) -> float:
    return statistics.mean(
        float(getattr(r, what)) for r in counts if r.label == label and r.method == "cesar"
    )


def _labels(counts: list[Count]) -> list[str]:
    return list(dict.fromkeys(row.label for row in counts))


def _count_pairs(found: Entry, counts: list[Count]) -> Iterator[Pair]:
    if counts:
        yield {"settings": _settings_bytes, "nodes": _nodes_bytes, "degree": _degree_bytes}[found.name](
            counts
        )


def percent(ours: float, theirs: float) -> str:
    """The difference in percent, signed."""
    return f"{100 * (ours / theirs - 1):+.1f} %"


def _settings_bytes(counts: list[Count]) -> Pair:
    labels, rows = _labels(counts), []
    for label in labels:
        known = paper.SETTINGS[label]
        faithful = [gigabytes(counts, label, m, printed=True) for m in ("cesar", "dpsgd")]
        ours = [gigabytes(counts, label, m, printed=False) for m in ("cesar", "dpsgd")]
        ratio = faithful[0] / faithful[1]
        rows.append(
            (
                label,
                f"{known.shared:.2f} / {100 * _mean(counts, label, 'shared'):.2f}",
                f"{known.gigabytes[0]:.2f} / {faithful[0]:.2f} ({percent(faithful[0], known.gigabytes[0])})",
                f"{known.gigabytes[1]:.2f} / {faithful[1]:.2f} ({percent(faithful[1], known.gigabytes[1])})",
                f"{known.ratio:.3f} / {ratio:.3f} ({ratio - known.ratio:+.3f})",
                f"{ours[0]:.2f}",
                f"{ours[0] / ours[1]:.3f}",
            )
        )
    series = [
        Series(name="paper, CESAR", x=labels, y=[paper.SETTINGS[n].gigabytes[0] for n in labels], line=False),
        *(
            Series(
                name=name, x=labels, y=[gigabytes(counts, n, "cesar", printed=p) for n in labels], line=False
            )
            for name, p in (("CESAR, paper's exchange", True), ("CESAR, ours", False))
        ),
        Series(
            name="D-PSGD, paper's exchange",
            x=labels,
            y=[gigabytes(counts, n, "dpsgd", printed=True) for n in labels],
            line=False,
        ),
    ]
    return Pair(
        title="Bytes of a node",
        caption="Lines are sparsifier, degree and percent shared. Paper / measured in the paper's exchange.",
        axes=("setting", "GB per node"),
        series=series,
        heads=("setting", "% shared", "CESAR GB", "D-PSGD GB", "CESAR ÷ D-PSGD", "ours, GB", "ours, ratio"),
        rows=rows,
    )


def _nodes_bytes(counts: list[Count]) -> Pair:
    rows, labels = [], _labels(counts)
    numbers = [int(label.split()[0]) for label in labels]
    for label, nodes in zip(labels, numbers, strict=True):
        faithful = gigabytes(counts, label, "cesar", printed=True, part="coordination")
        ours = gigabytes(counts, label, "cesar", printed=False, part="coordination")
        view2 = _mean(counts, label, "view2")
        known = f"{paper.NODES[nodes][1]:.2f}" if nodes in paper.NODES else NONE
        cells = (f"{view2:.2f}", known, f"{faithful:.2f}", f"{faithful / view2:.4f}", f"{ours:.2f}")
        rows.append((f"{nodes}", *cells))
    series = [
        Series(name="paper", x=list(paper.NODES), y=[v[1] for v in paper.NODES.values()]),
        *_coordination(counts, labels, [float(n) for n in numbers]),
    ]
    return Pair(
        title="Coordination by number of nodes",
        caption="5-regular graphs, TopK selecting 40 %. Only the size of View2 grows with the network.",
        axes=("nodes", "GB of coordination per node"),
        series=series,
        heads=("nodes", "View2", "paper GB", "measured GB", "GB per View2 neighbour", "ours, GB"),
        rows=rows,
    )


def _coordination(counts: list[Count], labels: list[str], x: list[float]) -> Iterator[Series]:
    """Both exchanges, measured."""
    for name, printed in (("CESAR, paper's exchange", True), ("CESAR, ours", False)):
        y = [gigabytes(counts, label, "cesar", printed=printed, part="coordination") for label in labels]
        yield Series(name=name, x=x, y=y)


def _degree_bytes(counts: list[Count]) -> Pair:
    rows, labels = [], _labels(counts)
    sizes = [_mean(counts, label, "view2") for label in labels]
    for label, view2 in zip(labels, sizes, strict=True):
        degree = int(label.split()[1])
        faithful = gigabytes(counts, label, "cesar", printed=True, part="coordination")
        ours = gigabytes(counts, label, "cesar", printed=False, part="coordination")
        known = (NONE, NONE)
        if degree in paper.DEGREE:
            total, size = paper.DEGREE[degree]
            known = (f"{total:.2f}", f"{total / size:.4f}")
        rows.append(
            (f"{degree}", f"{view2:.2f}", *known, f"{faithful:.2f}", f"{faithful / view2:.4f}", f"{ours:.2f}")
        )
    known_points = list(paper.DEGREE.values())
    series = [
        Series(name="paper", x=[size for _, size in known_points], y=[total for total, _ in known_points]),
        *_coordination(counts, labels, sizes),
    ]
    return Pair(
        title="Coordination by size of View2",
        caption="TopK selecting 40 %. A straight line: each neighbour's neighbour costs the same.",
        axes=("mean size of View2", "GB of coordination per node"),
        series=series,
        heads=(
            "degree",
            "View2",
            "paper GB",
            "paper per neighbour",
            "measured GB",
            "per neighbour",
            "ours, GB",
        ),
        rows=rows,
    )


def _study_pairs(found: Entry, studies: dict[str, Study]) -> Iterator[Pair]:
    """One table of everything with one plot per metric, or the learning curves where those are the figure."""
    by_metric: dict[str, dict[str, Study]] = {}
    for part, study in studies.items():
        by_metric.setdefault(study.metric, {})[part] = study
    for metric, group in by_metric.items():
        axis = metric_axis(metric)
        table = [_line(found, part, row) for part, study in group.items() for row in rows_of(study)]
        heads = (
            "part",
            "method",
            "% shared",
            axis.title,
            "paper",
            "MB per node",
            "protocol s",
            "seeds × rounds",
        )
        series, axes = (_curves if found.name == "budget" else _points)(group)
        yield Pair(
            title=f"{axis.title[:1].upper()}{axis.title[1:]}",
            caption="Mean over nodes and seeds at the last test, ± standard error over seeds.",
            axes=axes,
            series=series,
            heads=heads,
            rows=table,
        )


def _line(found: Entry, part: str, row: MethodRow) -> Row:
    axis = metric_axis(row.metric)
    unfinished = "" if row.seeds_finished == row.seeds_planned else f" ({row.seeds_finished} finished)"
    return (
        part,
        row.title,
        f"{100 * row.shared:.2f}",
        shown(row.value, row.error, axis),
        published(found.name, part, row.title),
        f"{row.bytes / 1e6:.2f}",
        f"{row.seconds_protocol:.1f}",
        f"{row.seeds} × {row.round_}{unfinished}",
    )


def published(name: str, part: str, title: str) -> str:
    """The paper's own figure for a line, if it prints one."""
    column = 0 if title.startswith("CESAR") else 1
    if name == "settings":
        return f"{paper.SETTINGS[part].accuracy[column]:.2f}"
    if name in ("datasets-random", "datasets-topk") and part == "cifar10":
        return f"{paper.SETTINGS[name.removeprefix('datasets-') + '-6-30'].accuracy[column]:.2f}"
    if name == "datasets-random" and part == "xsum":
        return f"{(paper.ROUGE_L['CESAR'], paper.ROUGE_L['D-PSGD'])[column] / 100:.4f}"
    if name == "dropouts" and (part != "0-percent") == ("add-on" in title or title == "CESAR"):
        return f"{paper.DROPOUTS[int(part.removesuffix('-percent'))][0]:.2f}"
    return NONE


def _points(group: dict[str, Study]) -> tuple[list[Series], tuple[str, str]]:
    """A point per part and method, at the last test."""
    metric = metric_axis(next(iter(group.values())).metric)
    rows = {part: {row.title: row for row in rows_of(study)} for part, study in group.items()}
    titles = list(dict.fromkeys(title for line in rows.values() for title in line))

    def one(title: str, parts: list[str], get: Callable[[MethodRow], float]) -> list[float]:
        return [get(rows[part][title]) / metric.size for part in parts]

    series = []
    for title in titles:
        parts = [part for part in rows if title in rows[part]]
        errors = one(title, parts, lambda row: row.error or 0.0)
        series.append(
            Series(name=title, x=parts, y=one(title, parts, lambda row: row.value), error=errors, line=False)
        )
    return series, ("part", metric.title)


def _curves(group: dict[str, Study]) -> tuple[list[Series], tuple[str, str]]:
    """The metric against the bytes that led to it."""
    study = next(iter(group.values()))
    metric, series = metric_axis(study.metric), []
    for method in study.methods:
        steps = judged(study, method)
        x, y = (
            [mean(step, "bytes") / 1e6 for step in steps],
            [mean(s, study.metric) / metric.size for s in steps],
        )
        series.append(Series(name=method.title, x=x, y=y))
    return series, ("MB sent per node", metric.title)


def sections(directories: Sequence[Path], order: Sequence[str]) -> list[Section]:
    """All entries that these directories hold, in the given order.

    Raises:
        DataError: they hold none.
    """
    folders = [path.parent for directory in directories for path in sorted(directory.glob(f"*/{MANIFEST}"))]
    found = [section(folder) for folder in folders]
    if not found:
        raise DataError(f"{', '.join(map(str, directories))}: cesar reproduce has left nothing here")
    return sorted(found, key=lambda one: order.index(one.figure.name))
