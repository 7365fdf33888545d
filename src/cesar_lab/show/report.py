"""Experiments that have run, as one page that opens anywhere, as Markdown, and as a table for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import cesar
from cesar.base.errors import ConfigError, DataError
from cesar.page import PALETTE, write_page
from cesar_lab.run.config import Experiment
from cesar_lab.run.machine import machine
from cesar_lab.show import page, study
from cesar_lab.show.results import MethodRow, Study, read_study, rows_of
from cesar_lab.show.table import Table

PACKAGE = "cesar_lab.show"
"""Where our templates lie."""
HEAD = """# Benchmarks

Written by `cesar report … --markdown`; every figure was measured. Metrics are means over nodes and seeds on the test
set; bytes are those of a node in all rounds; times are of all nodes on one machine.
"""


def write_report(directories: Sequence[Path], out: Path) -> Path:
    """Write one self-contained page about all these experiments; where it lies.

    Raises:
        DataError: a directory is no experiment, or nothing in it was tested yet.
    """
    if not directories:
        raise DataError("a report needs at least one experiment directory")
    studies = [read_study(directory) for directory in directories]
    titles = dict.fromkeys(method.title for one in studies for method in one.experiment.method)
    colours = {title: number for number, title in enumerate(titles)}
    return write_page(
        out / "report.html" if out.is_dir() else out,
        "experiments.html",
        package=PACKAGE,
        title=", ".join(_name(one, studies) for one in studies),
        version=cesar.__version__,
        experiments=[_shown(one, _name(one, studies), colours) for one in studies],
        looks={
            title: {"number": n, "colour": n % PALETTE, "symbol": page.symbol(n)[1]}
            for title, n in colours.items()
        },
        categories=study.PARTS,
    )


def _name(one: Study, studies: Sequence[Study]) -> str:
    """The experiment's name, with its folder where two have the same."""
    name, names = one.experiment.name, [other.experiment.name for other in studies]
    return name if names.count(name) == 1 else f"{name} ({one.folder})"


def _shown(one: Study, name: str, colours: Mapping[str, int]) -> dict[str, object]:
    """What the template says about one experiment."""
    rows = rows_of(one)
    *curves, sent = map(page.figure, study.charts(one, colours))
    try:
        graph: object = study.graph(one)
    except ConfigError as error:
        graph = str(error)
    return {
        "name": name,
        "about": study.sentence(one.experiment),
        "summary": study.summary(rows),
        "missing": list(study.unfinished(one, rows)),
        "comparison": study.comparison(one, rows),
        "settling": study.by_settling_round(one),
        "curves": curves,
        "sent": sent,
        "graph": graph,
        "tables": experiment_file(one.experiment).rstrip().split("\n\n"),
        "facts": _facts(one),
    }


def _facts(one: Study) -> dict[str, str]:
    """Everything beside the configuration that is needed to run it again."""
    runs = [(title, run) for title, several in one.runs.items() for run in several]
    found: dict[str, list[str]] = {}
    for _, run in runs:
        for name, version in run.versions.items():
            found.setdefault(name, []).append(version)
    facts = {name: ", ".join(dict.fromkeys(versions)) for name, versions in found.items()}
    return facts | {title: run.settings for title, run in runs if run.settings}


def experiment_file(experiment: Experiment) -> str:
    """The experiment with all defaults, as a file that `cesar run` takes."""
    tables = experiment.model_dump(mode="json", exclude_none=True)
    methods = tables.pop("method")
    nested = {key: value for key, value in tables.items() if isinstance(value, dict)}
    parts = [("", {key: value for key, value in tables.items() if key not in nested})]
    parts += [(f"[{key}]\n", table) for key, table in nested.items()]
    parts += [("[[method]]\n", method) for method in methods]
    return "\n".join(
        head + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
        for head, table in parts
    )


def write_tables(
    directories: Sequence[Path],
    out: Path,
    *,
    notes: Mapping[str, str] | None = None,
    benches: Sequence[Path] = (),
) -> Path:
    """Write Markdown, a section per experiment: what was run, on what, and what came of it.

    Args:
        notes: name of an experiment → what a reader must know about how it was run.
        benches: what `cesar bench … --json` printed, one file each.
    """
    studies, notes = [read_study(directory) for directory in directories], notes or {}
    unknown = sorted(notes.keys() - {one.experiment.name for one in studies})
    if unknown:
        raise ConfigError(f"there is a note on {unknown[0]!r}, but no such experiment")
    parts = [part for one in studies for part in _section(one, notes.get(one.experiment.name))]
    parts += [part for bench in benches for part in _bench(bench)]
    out.write_text("\n".join([HEAD, *(f"{part}\n" for part in parts)]).rstrip() + "\n", encoding="utf-8")
    return out


def _section(one: Study, note: str | None) -> Iterator[str]:
    rows = rows_of(one)
    yield f"## {one.experiment.name}"
    yield study.sentence(one.experiment)
    if note is not None:
        yield note
    for table in (study.summary(rows), study.comparison(one, rows), study.by_settling_round(one)):
        if table.rows:
            yield table.markdown()
            yield table.caption
    yield from study.unfinished(one, rows)
    yield from study.circumstances(one)


def _bench(path: Path) -> Iterator[str]:
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(
            (name.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else str(value))
            for name, value in figures.items()
        )
    except (OSError, ValueError, AttributeError):
        raise DataError(f"{path} does not hold what `cesar bench … --json` prints") from None
    yield f"## {path.stem}"
    yield f"`cesar bench`, on {machine()}."
    yield Table(heads=("figure", "measured"), rows=rows).markdown()


def screen(rows: Sequence[MethodRow]) -> Table:
    """The comparison of all methods, narrow enough for 80 columns."""
    return study.summary(rows).without("of full D-PSGD", "testing")
