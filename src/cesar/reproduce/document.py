"""What is written about the results: a page with every plot, and docs/results.md with the claims one by one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cesar
from cesar import files
from cesar.experiment.paired import Difference
from cesar.experiment.results import Study, judged, mean, rows_of, standard_error
from cesar.page import render, write_page
from cesar.reproduce.catalogue import CATALOGUE
from cesar.reproduce.compare import gap, points
from cesar.reproduce.plots import Mark, Panel, draw
from cesar.reproduce.reproduction import Finding, Outcome, Shorter, Verdict
from cesar.reproduce.running import MANIFEST

MOST_ROWS_BESIDE = 12
"""A longer table stands below its plot."""
KEPT = {".json", ".csv"}
"""What of a directory is small, and enough to write all of it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim with what was found; `place` is where it stands, `name` the command that measures it."""

    title: str
    place: str
    name: str
    paper: str
    found: Finding


def write_report(outcomes: list[Outcome], out: Path) -> Path:
    """One self-contained page, each plot beside the paper's numbers; where it lies."""
    return write_page(
        out,
        "reproduction.html",
        title="The paper, reproduced",
        version=cesar.__version__,
        outcomes=outcomes,
        beside=MOST_ROWS_BESIDE,
    )


def write_document(outcomes: list[Outcome], shorter: Mapping[str, Study], out: Path) -> Path:
    """Claims first, then a section for each reproduction; plots lie in a folder of the document's name."""
    folder = out.with_suffix("")
    drawn = []
    for name, panels in _plots({outcome.of.name: outcome for outcome in outcomes}):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{name}.svg", draw(panels))
        drawn.append((f"{folder.name}/{name}.svg", panels))
    claims = list(_claims(outcomes, shorter))
    places = {of.place: of for of in CATALOGUE.values() if of.place.startswith(("Table", "Fig", "App"))}
    text = render("results.md", claims=claims, outcomes=outcomes, plots=drawn, places=places)
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


def _claims(outcomes: list[Outcome], shorter: Mapping[str, Study]) -> Iterator[Judged]:
    found = {outcome.of.name: outcome for outcome in outcomes}
    for name, of in CATALOGUE.items():
        for claim in of.claims:
            finding = claim.check(found[name]) if name in found else None
            if finding is None and claim.shorter is not None:
                finding = _shorter(claim.shorter, shorter)
            missing = Finding(verdict=Verdict.MISSING, ours="")
            yield Judged(
                title=claim.title, place=of.place, name=name, paper=claim.paper, found=finding or missing
            )


def _shorter(runs: Shorter, studies: Mapping[str, Study]) -> Finding | None:
    """What shorter runs say, as far as they are there."""
    differences: list[Difference | None] = []
    texts = []
    for name in (name for name in runs.pairs if name in studies):
        study = studies[name]
        rows = {row.title: row for row in rows_of(study)}
        found = {f"{a} minus {b}": gap(rows[a], rows[b]) for a, b in runs.pairs[name]}
        listed = ", ".join(f"{words} {points(difference)}" for words, difference in found.items())
        texts.append(
            f"{study.metric} in {study.experiment.rounds} rounds, {listed} (`cesar run docs/results/{name}.toml`)"
        )
        differences += found.values()
    if not texts:
        return None
    return Finding(verdict=runs.judge(differences), ours=f"In hundredths: {'; '.join(texts)}.", why=runs.why)


# ── plots ───────────────────────────────────────────────────────────────────────────────────────────────


def _plots(found: dict[str, Outcome]) -> Iterator[tuple[str, list[Panel]]]:
    """(file, panels) of what was measured."""
    if "groups" in found and found["groups"].studies:
        studies = found["groups"].studies
        yield "accuracy-bytes", [_by_bytes(part, study) for part, study in studies.items()]
        yield "accuracy-rounds", [_by_round(part, study) for part, study in studies.items()]
    if "dropouts" in found and found["dropouts"].studies:
        yield "dropouts", [_by_crashes(found["dropouts"].studies)]
    if "approaches" in found and "cifar10/neighbour.json" in found["approaches"].saved:
        yield "privacy-bytes", [_by_privacy(found["approaches"])]


def _by_bytes(part: str, study: Study) -> Panel:
    """What each method reached after settling against what it sent in all."""
    marks = []
    for method in study.methods:
        steps = judged(study, method)[-1]
        marks.append(
            Mark(
                name=method.title,
                x=[mean(steps, "bytes") / 1e6],
                y=[100 * mean(steps, study.metric)],
                error=[100 * (standard_error(steps, study.metric) or 0.0)],
                plain=method.name == "dpsgd",
            )
        )
    return Panel(
        title=f"{part}: accuracy against bytes",
        x="MB sent by a node",
        y="after settling",
        marks=marks,
        log=True,
    )


def _by_round(part: str, study: Study) -> Panel:
    """Nodes' mean by round of training, with bands of a standard error."""
    marks = []
    for method in study.methods:
        groups = [g for g in judged(study, method) if g[0]["round"] <= study.experiment.rounds]
        marks.append(
            Mark(
                name=method.title,
                x=[group[0]["round"] for group in groups],
                y=[100 * mean(group, study.metric) for group in groups],
                error=[100 * (standard_error(group, study.metric) or 0.0) for group in groups],
                plain=method.name == "dpsgd",
            )
        )
    return Panel(title=f"{part}: accuracy by round", x="rounds of training", y="mean over nodes", marks=marks)


def _by_crashes(studies: Mapping[str, Study]) -> Panel:
    """Nodes' mean by round of training, for every rate of crashes."""
    marks = [
        replace(mark, name=f"{mark.name}, {100 * study.experiment.faults.crash_rate:g} % crash")
        for part, study in studies.items()
        for mark in _by_round(part, study).marks
    ]
    return Panel(title="Crashes: accuracy by round", x="rounds of training", y="mean over nodes", marks=marks)


def _by_privacy(outcome: Outcome) -> Panel:
    """The strongest attack of a neighbour after many rounds against what a node sent."""
    from cesar.reproduce.figures.approaches import strongest  # noqa: PLC0415

    window = outcome.saved["cifar10/neighbour.json"]["windows"][-1]
    rows, plain = (
        outcome.rows["cifar10"],
        {m.title: m.name == "dpsgd" for m in outcome.studies["cifar10"].methods},
    )
    marks = [
        Mark(
            name=method["title"],
            x=[rows[method["title"]].bytes / 1e6],
            y=[strongest(method)],
            error=[0.0],
            plain=plain[method["title"]],
        )
        for method in window["methods"]
        if method["title"] in rows
    ]
    title = f"A neighbour's attack after {len(window['methods'][0]['rounds'])} rounds"
    return Panel(
        title=title, x="MB sent by a node", y="area under the ROC curve", marks=marks, unit="", log=True
    )
