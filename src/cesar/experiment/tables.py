"""Results as Markdown, for documents that are written by a command and never by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cesar.errors import ConfigError, DataError
from cesar.experiment.cells import Cells, by_settling_round, comparison, metric_cells, settling_note
from cesar.experiment.figures import BYTES, cost_axis, settled_words
from cesar.experiment.report import sentence
from cesar.experiment.results import MethodRow, Study, read_study, rows_of
from cesar.sim.machine import machine

HEAD = """# Benchmarks

Written by `cesar report … --markdown`; every figure was measured. Metrics are means over nodes and seeds on the test
set, ± the standard error over seeds; the spread is the standard deviation between nodes. Shared is the fraction of the
parameters that a node sent to a neighbour; bytes are those of a node in all rounds. Seconds are of all nodes on one
machine. Methods are compared with D-PSGD of the same sparsifier and share, or else with full sharing, seed by seed:
mean difference ± its standard error, and its 95 % interval (Student's t). Ratios of time are of training and protocol
together, without testing.
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
    yield from _grid(comparison(study, rows))
    if words := settled_words(study):
        yield from _grid(by_settling_round(study))
        yield f"Round 0 is the end of training. In all: {words}. {settling_note(study)}".rstrip() + "\n"
    yield from (f"{line}\n" for line in _circumstances(study))


def _table(*heads: str) -> str:
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _grid(table: Cells) -> Iterator[str]:
    if table.rows:
        yield _table(*table.heads)
        yield from (_line(row) for row in table.rows)
        yield ""


def _results(study: Study, rows: list[MethodRow]) -> Iterator[str]:
    sent, (heads, metrics) = cost_axis(study, "bytes", "sent per node", BYTES), metric_cells(rows)
    yield _table("method", "shared", *heads, sent.title, "training s", "protocol s", "testing s")
    for row, values in zip(rows, metrics, strict=True):
        seconds = (row.seconds_training, row.seconds_protocol, row.seconds_evaluation)
        cells = [row.title, f"{row.shared:.2%}", *values, f"{row.bytes / sent.size:.2f}"]
        yield _line([*cells, *(f"{part:.1f}" for part in seconds)])
    yield ""
    for row in rows:
        if row.round_ < row.rounds or row.seeds < row.seeds_planned:
            yield (
                f"Not complete: {row.title}, {row.seeds} of {row.seeds_planned} seeds, {row.round_} of {row.rounds} "
                "rounds.\n"
            )


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
