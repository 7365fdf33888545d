"""Results as Markdown, for documents that are written by a command and never by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cesar.errors import ConfigError, DataError
from cesar.experiment.figures import BYTES, Axis, cost_axis, metric_axis, shown
from cesar.experiment.report import sentence
from cesar.experiment.results import METRICS, MethodRow, Study, read_study, rows_of
from cesar.settings import MethodSection
from cesar.sim.machine import machine

HEAD = """# Benchmarks

Written by `cesar report … --markdown`; every figure was measured. Metrics are means over nodes and seeds on the test
set, ± the standard error over seeds. Shared is the fraction of the parameters that a node sent to a neighbour; bytes
are those of a node in all rounds. Seconds are of all nodes on one machine. Ratios of time are of training and
protocol together, without testing.
"""


def write_tables(
    directories: Sequence[Path],
    out: Path,
    *,
    notes: Mapping[str, str] | None = None,
    benches: Sequence[Path] = (),
) -> Path:
    """One section per experiment: what was run, on what, and what came of it.

    Args:
        notes: name of an experiment → what a reader must know about how it was run.
        benches: what `cesar bench … --json` printed, one file each.
    """
    studies = [read_study(directory) for directory in directories]
    unknown = sorted((notes or {}).keys() - {study.experiment.name for study in studies})
    if unknown:
        raise ConfigError(f"there is a note on {unknown[0]!r}, but no such experiment")
    lines = [line for study in studies for line in _section(study, (notes or {}).get(study.experiment.name))]
    lines += [line for bench in benches for line in _bench(bench)]
    out.write_text("\n".join([HEAD, *lines]).rstrip() + "\n", encoding="utf-8")
    return out


def _bench(path: Path) -> Iterator[str]:
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        cells = [(name.replace("_", " "), _figure(value)) for name, value in figures.items()]
    except (OSError, ValueError, AttributeError):
        raise DataError(f"{path} does not hold what `cesar bench … --json` prints") from None
    yield f"## {path.stem}\n"
    yield f"`cesar bench`, on {machine()}.\n"
    yield _table("figure", "measured")
    yield from (f"| {name} | {value} |" for name, value in cells)
    yield ""


def _figure(value: object) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


def _section(study: Study, note: str | None) -> Iterator[str]:
    rows = rows_of(study)
    yield f"## {study.experiment.name}\n"
    yield f"{sentence(study.experiment)}\n"
    if note is not None:
        yield f"{note}\n"
    yield from _results(study, rows)
    yield from _comparison(study, rows)
    yield from (f"{line}\n" for line in _circumstances(study))


def _table(*heads: str) -> str:
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _results(study: Study, rows: list[MethodRow]) -> Iterator[str]:
    metric, sent = metric_axis(study.metric), cost_axis(study, "bytes", "sent per node", BYTES)
    yield _table("method", "shared", metric.title, sent.title, "training s", "protocol s", "testing s")
    for row in rows:
        seconds = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
        cells = (f"{row.shared:.2%}", shown(row.value, row.error, metric), f"{row.bytes / sent.size:.2f}")
        yield f"| {' | '.join([_cell(row.title), *cells, *(f'{part:.1f}' for part in seconds)])} |"
    yield ""
    for row in rows:
        if row.round_ < row.rounds or row.seeds < row.seeds_planned:
            yield (
                f"Not complete: {row.title}, {row.seeds} of {row.seeds_planned} seeds, {row.round_} of {row.rounds} "
                "rounds.\n"
            )


def _comparison(study: Study, rows: list[MethodRow]) -> Iterator[str]:
    """Masked methods against D-PSGD with the same sparsifier."""
    metric = metric_axis(study.metric)
    pairs = list(zip(study.methods, rows, strict=True))
    lines = [
        f"| {_cell(row.title)} | {_cell(plain.title)} | {_seconds(row) / _seconds(plain):.3f} | {_against(row, plain, metric)} |"
        for method, row in pairs
        if method.name != "dpsgd" and (plain := _counterpart(method, row, pairs))
    ]
    if lines:
        yield _table("method", "against", "ratio of time", metric.name)
        yield from lines
        yield ""


def _counterpart(
    method: MethodSection, row: MethodRow, pairs: list[tuple[MethodSection, MethodRow]]
) -> MethodRow | None:
    """D-PSGD with the same sparsifier: of several the one that shares most nearly as much, after as many rounds."""
    plain = [
        (other.paper != method.paper, abs(one.shared - row.shared), one.title, one)
        for other, one in pairs
        if other.name == "dpsgd" and other.sparsifier == method.sparsifier and one.round_ == row.round_
    ]
    return min(plain)[-1] if plain else None


def _seconds(row: MethodRow) -> float:
    return row.seconds_training + row.seconds_protocol


def _against(row: MethodRow, plain: MethodRow, metric: Axis) -> str:
    """Percentages and scores as a difference, errors as a ratio."""
    if METRICS[row.metric] == "lower":
        return f"{row.value / plain.value:.4f} times"
    unit = " points" if metric.unit == "%" else ""
    return f"{(row.value - plain.value) / metric.size:+.{2 if unit else 4}f}{unit}"


def _circumstances(study: Study) -> Iterator[str]:
    """Machine, versions and memory, as the runs noted them."""
    runs = [run for method in study.methods for run in study.runs[method.title] if run.steps]
    notes = {
        ", ".join([run.versions.get("machine", "an unknown machine"), *_versions(run.versions)])
        for run in runs
    }
    yield f"Made on {'; and on '.join(sorted(notes))}."
    peaks = [run.peak_rss_bytes for run in runs if run.peak_rss_bytes is not None]
    if peaks:
        yield f"Peak memory of the process that ran it: {max(peaks) / 1e9:.2f} GB."


def _versions(versions: dict[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in versions.items() if name != "machine"]
