"""What the directories that `reproduce` has left say: figures and tables with the paper's own numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cesar.errors import DataError
from cesar.experiment.figures import metric_axis, shown
from cesar.experiment.paired import paired
from cesar.experiment.report import sentence
from cesar.experiment.results import MethodRow, Study, judged, mean, read_study, rows_of
from cesar.reproduce import counts
from cesar.reproduce.catalogue import CATALOGUE, find
from cesar.reproduce.compare import gap, points
from cesar.reproduce.counts import Count
from cesar.reproduce.pairs import NONE, Pair, Row, Series
from cesar.reproduce.reproduction import Outcome, Reproduction, Saved
from cesar.reproduce.running import MANIFEST, read_manifest
from cesar.reproduce.tables import Scale, check_scale

HEADS = (
    "part",
    "method",
    "% shared",
    "{metric}",
    "spread",
    "all models",
    "unsettled",
    "best",
    "paper",
    "MB per node",
    "seeds × rounds",
)


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


def read(folder: Path) -> Outcome:
    """Read the directory that `reproduce` has left.

    Raises:
        ConfigError, DataError: it is none, or nothing was measured yet.
    """
    manifest = read_manifest(folder)
    of, scale = find(str(manifest["name"])), check_scale(str(manifest["scale"]))
    counted = counts.read(folder) if (folder / counts.FILE).exists() else []
    studies = dict(_studies(of, scale, folder))
    rows = {part: {row.title: row for row in rows_of(study)} for part, study in studies.items()}
    about = [sentence(study.experiment) for study in list(studies.values())[:1]]
    pairs: list[Pair] = []
    kept: dict[str, Saved] = {}
    if counted:
        assert of.count_pair is not None
        about.append(_about_counts(of, scale, counted))
        pairs.append(of.count_pair(counted))
    pairs += _study_pairs(of, scale, studies, rows)
    pairs += _differences(of, rows)
    for measurement in of.measurements:
        places = {part: folder / part for part in studies} if measurement.of_parts else {"": folder}
        for part, place in places.items():
            path = place / measurement.file
            if saved := _json(path):
                kept[path.relative_to(folder).as_posix()] = saved
                about += [] if measurement.about is None else [measurement.about(saved)]
                pairs.append(measurement.pair(part, saved))
    if not pairs:
        raise DataError(f"{folder}: nothing was measured yet")
    return Outcome(
        of=of,
        scale=scale,
        about=about,
        pairs=pairs,
        counts=counted,
        studies=studies,
        saved=kept,
        rows=rows,
    )


def _studies(of: Reproduction, scale: Scale, folder: Path) -> Iterator[tuple[str, Study]]:
    """Parts that have been tested at least once."""
    for part in of.experiments(scale):
        if (folder / part / "experiment.json").exists():
            try:
                yield part, read_study(folder / part)
            except DataError:
                continue


def _json(path: Path) -> Saved:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}; remove it and run again") from None


def _about_counts(of: Reproduction, scale: Scale, counted: list[Count]) -> str:
    counting = of.counting(scale)
    assert counting is not None
    training, rounds = counting.training, sorted({row.round_ for row in counted})
    return (
        f"Bytes were counted on {counting.dataset} with {counting.model}: after {counting.alone:,} SGD steps of one model alone all nodes "
        f"went on from it; counted in rounds {', '.join(map(str, rounds))} (seeds: {', '.join(map(str, sorted({r.seed for r in counted})))}), "
        f"{training['steps_per_round']} steps of batch {training['batch_size']} at learning rate {training['learning_rate']:g} each. "
        f"GB are bytes of a node per round × {counts.ROUNDS:,} rounds."
    )


def _study_pairs(
    of: Reproduction, scale: Scale, studies: dict[str, Study], rows: dict[str, dict[str, MethodRow]]
) -> Iterator[Pair]:
    """One table of everything with one plot per metric, or the learning curves where those are the figure."""
    printed = scale is Scale.PAPER  # figures of other sizes do not belong side by side
    by_metric: dict[str, list[str]] = {}
    for part, study in studies.items():
        by_metric.setdefault(study.metric, []).append(part)
    for metric, parts in by_metric.items():
        axis = metric_axis(metric)
        group = {part: rows[part] for part in parts}
        yield Pair(
            title=f"{axis.title[:1].upper()}{axis.title[1:]}",
            caption="Mean over nodes and seeds at the last test, ± standard error over seeds; standard deviation between "
            "nodes; the mean of all models; the mean over nodes before settling, where rounds of averaging alone followed; the best "
            "test in training, which is what the paper prints.",
            axes=("MB sent per node" if of.by_bytes else "", axis.title),
            series=_curves(studies[parts[0]]) if of.by_bytes else _points(group),
            heads=tuple(head.format(metric=axis.title) for head in HEADS if printed or head != "paper"),
            rows=[
                _line(of, part, row, printed=printed) for part, line in group.items() for row in line.values()
            ],
        )


def _differences(of: Reproduction, rows: dict[str, dict[str, MethodRow]]) -> Iterator[Pair]:
    """Methods set against one another, seed by seed."""
    found = {
        (part, f"{one} − {other}"): (line[one], line[other])
        for one, other in of.compared
        for part, line in rows.items()
        if one in line and other in line
    }
    if not found:
        return
    ends = {name: gap(one, other, trained=True) for name, (one, other) in found.items()}
    series = []
    for part in dict.fromkeys(part for part, _ in ends):
        known = {words: end for (place, words), end in ends.items() if place == part and end is not None}
        y = [100 * end.mean for end in known.values()]
        margins = [100 * (end.margin or 0.0) for end in known.values()]
        series.append(Series(name=part, x=list(known), y=y, error=margins, line=False))
    yield Pair(
        title="Paired differences, in points",
        caption="Mean over seeds of one method less the other with the same seed, and its 95 % interval: nodes at the end of "
        "training (drawn), nodes after settling, and the mean of all models.",
        axes=("", "points"),
        series=series,
        heads=("part", "difference", "trained", "settled", "all models", "seeds"),
        rows=[
            (
                part,
                words,
                points(ends[part, words]),
                points(settled := gap(one, other)),
                points(paired(one.mean_model_by_seed, other.mean_model_by_seed)),
                NONE if settled is None else str(settled.seeds),
            )
            for (part, words), (one, other) in found.items()
        ],
    )


def _line(of: Reproduction, part: str, row: MethodRow, *, printed: bool) -> Row:
    axis = metric_axis(row.metric)
    others = (row.spread, row.mean_model, row.before_settling, row.best)
    unfinished = "" if row.seeds_finished == row.seeds_planned else f" ({row.seeds_finished} finished)"
    return (
        part,
        row.title,
        f"{100 * row.shared:.2f}",
        shown(row.value, row.error, axis),
        *(NONE if value is None else shown(value, None, axis) for value in others),
        *((of.published(part, row.title),) if printed else ()),
        f"{row.bytes / 1e6:.2f}",
        f"{row.seeds} × {row.round_}{unfinished}",
    )


def _points(rows: dict[str, dict[str, MethodRow]]) -> list[Series]:
    """A point per part and method, at the last test: by part, or by method where there is one part."""
    titles = list(dict.fromkeys(title for line in rows.values() for title in line))
    by_method = {
        title: [(part, line[title]) for part, line in rows.items() if title in line] for title in titles
    }
    by_part = {part: list(line.items()) for part, line in rows.items()}
    return [
        Series(
            name=name,
            x=[x for x, _ in found],
            y=[row.value / metric_axis(row.metric).size for _, row in found],
            error=[(row.error or 0.0) / metric_axis(row.metric).size for _, row in found],
            line=False,
        )
        for name, found in (by_method if len(rows) > 1 else by_part).items()
    ]


def _curves(study: Study) -> list[Series]:
    """The metric against the bytes that led to it."""
    metric, series = metric_axis(study.metric), []
    for method in study.methods:
        steps = judged(study, method)
        x = [mean(step, "bytes") / 1e6 for step in steps]
        y = [mean(step, study.metric) / metric.size for step in steps]
        series.append(Series(name=method.title, x=x, y=y))
    return series
