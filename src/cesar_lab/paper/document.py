"""What is written about the results: a page with every chart, and docs/results.md with the claims one by one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import cesar
from cesar.base import files
from cesar.page import render, write_page
from cesar_lab.paper.catalogue import CATALOGUE, Tables
from cesar_lab.paper.measured import Saved, strongest
from cesar_lab.paper.outcome import MEGABYTES, Outcome, shorter_table
from cesar_lab.paper.running import MANIFEST
from cesar_lab.paper.verdicts import judge_all
from cesar_lab.show import page, picture
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.report import PACKAGE
from cesar_lab.show.results import Study
from cesar_lab.show.study import ROUND, progress, shows_models

MOST_ROWS_BESIDE = 12
"""A longer table stands below its chart."""
KEPT = {".json", ".csv"}
"""What of a directory is small, and enough to write all of it again."""


def write_report(
    outcomes: Sequence[Outcome],
    shorter: Mapping[str, Study],
    out: Path,
    timed: Mapping[str, Saved] | None = None,
) -> Path:
    """One self-contained page: the verdicts, then each chart beside its table; where it lies."""
    sections = [
        {"outcome": outcome, "pairs": [(page.figure(chart), table) for chart, table in outcome.shown]}
        for outcome in outcomes
    ]
    return write_page(
        out,
        "reproduction.html",
        package=PACKAGE,
        title="The paper, reproduced",
        version=cesar.__version__,
        claims=judge_all(outcomes, shorter, timed),
        sections=sections,
        beside=MOST_ROWS_BESIDE,
    )


def write_document(
    outcomes: Sequence[Outcome],
    shorter: Mapping[str, Study],
    out: Path,
    timed: Mapping[str, Saved] | None = None,
) -> Path:
    """Claims first, then a section for each table or figure; pictures lie in a folder of the document's name."""
    folder, drawn = out.with_suffix(""), []
    by_name = {outcome.of.name: outcome for outcome in outcomes}
    for name, of in CATALOGUE.items():
        for wanted in of.picture:
            beside = [shorter[one] for one in wanted.get("shorter", ()) if one in shorter]
            if wanted["show"] == "curves":
                charts = [_by_bytes(study, wanted["title"]) for study in beside]
            elif name in by_name:
                charts = pictured(by_name[name], wanted)
            else:
                charts = [_trained(study, wanted["title"]) for study in beside]
            if charts:
                path = picture.draw(charts, folder / f"{wanted['file']}.svg")
                drawn.append((f"{folder.name}/{path.name}", "; ".join(chart.title for chart in charts)))
    text = render(
        "results.md",
        package=PACKAGE,
        claims=judge_all(outcomes, shorter, timed),
        outcomes=outcomes,
        shorter=shorter_table(shorter) if shorter else None,
        pictures=drawn,
        places={of.place: of for of in CATALOGUE.values() if not of.place.startswith("not")},
    )
    files.write(out, text.rstrip() + "\n")
    return out


def keep(directories: Sequence[Path], out: Path) -> int:
    """Copy what the document is written from, without models and recordings; how many files."""
    copied = 0
    for manifest in (path for directory in directories for path in directory.glob(f"*/{MANIFEST}")):
        for path in sorted(manifest.parent.rglob("*")):
            if path.suffix in KEPT and "recording" not in path.parts:
                target = out / manifest.parent.name / path.relative_to(manifest.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                copied += 1
    return copied


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────


def pictured(outcome: Outcome, wanted: Tables) -> list[Chart]:
    """The charts of a picture, as its file wants them, side by side; none where nothing was measured."""
    studies = outcome.studies
    match wanted["show"]:
        case "bytes":
            return [_ends(study, f"{part}: {wanted['title']}") for part, study in studies.items()]
        case "trained":
            return [_trained(study, f"{part}: {wanted['title']}") for part, study in studies.items()]
        case "rounds" if any(study.experiment.faults.crash_rate for study in studies.values()):
            return [_by_crashes(studies, wanted["title"])]
        case "rounds":
            return [_by_round(study, title=f"{part}: {wanted['title']}") for part, study in studies.items()]
        case _:
            return [_by_privacy(outcome, part) for part in outcome.saved]


def _by_round(study: Study, *, title: str) -> Chart:
    return progress(study, ROUND, title=title, until=study.experiment.rounds)


def _by_bytes(study: Study, title: str) -> Chart:
    return progress(study, MEGABYTES, title=title, log=True, until=study.experiment.rounds)


def _ends(study: Study, title: str, until: int | None = None) -> Chart:
    """What each method reached in the end, or after some rounds, against what it had sent."""
    whole = progress(study, MEGABYTES, title=title, log=True, until=until)
    ends = [
        replace(one, x=one.x[-1:], y=one.y[-1:], error=one.error[-1:], look="points") for one in whole.series
    ]
    return replace(whole, series=tuple(ends))


def _trained(study: Study, title: str) -> Chart:
    return _ends(study, title, until=study.experiment.rounds)


def _by_crashes(studies: Mapping[str, Study], title: str) -> Chart:
    """All rates of crashes in one chart."""
    series = [
        replace(one, name=f"{one.name}, {100 * study.experiment.faults.crash_rate:g} % crash", colour=None)
        for study in studies.values()
        for one in _by_round(study, title="").series
    ]
    first = _by_round(next(iter(studies.values())), title=title)
    return replace(first, series=tuple(series))


def _by_privacy(outcome: Outcome, part: str) -> Chart:
    """A neighbour's attack by least squares after many rounds against what a node sent."""
    window, rows = outcome.saved[part]["windows"][-1], outcome.rows[part]
    plain = {method.title: shows_models(method) for method in outcome.studies[part].methods}
    series = [
        Series(
            name=method["title"],
            x=[rows[method["title"]].bytes / 1e6],
            y=[strongest(method)],
            look="points",
            open=plain[method["title"]],
        )
        for method in window["methods"]
        if method["title"] in rows
    ]
    return Chart(
        title=f"A neighbour's attack by least squares after {len(window['methods'][0]['rounds'])} rounds",
        x=MEGABYTES.axis(log=True),
        y=Axis(name="area under the ROC curve"),
        series=tuple(series),
    )
