"""The statement for a data-protection officer: what a configuration protects against whom, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import cesar
from cesar.audit.cells import FOR_ALL_ROUNDS, CellAudit, CellSubject
from cesar.audit.collusion import Risk
from cesar.audit.exposure import Audit, Finding
from cesar.audit.sources import Subject
from cesar.base.sentences import listed
from cesar.graph.neighbourhood import Owners, strict_requirement
from cesar.page import Figure, Spec, graph_figure, json_number, plot_axis, plot_layout, write_page

OVER_ROUNDS = (
    "This holds for one round. Over several rounds averaging couples the sums, by weights that everybody knows, so that a "
    "single participant can work out others' values: exactly while they average without training, nearly while they train. "
    "More masks do not repair that; cells do (`cesar network init --cells 4`)."
)
"""Stands below every verdict: what the audit decides, and what it does not."""


def as_dict(audit: Audit, subject: Subject) -> dict[str, object]:
    """Everything for machines."""
    return {
        "source": subject.source,
        "nodes": audit.nodes,
        "links": subject.graph.number_of_edges(),
        "sparsifier": subject.sparsifier,
        "alpha": subject.alpha,
        "masks": audit.masks,
        "strict_masks": strict_requirement(subject.graph, audit.collusion, subject.owners),
        "collusion": audit.collusion,
        "seed": subject.seed,
        "rounds": "one",
        "over_rounds": OVER_ROUNDS,
        "positions": audit.positions,
        "patterns": audit.patterns,
        "exposed": audit.exposed,
        "exhaustive": audit.exhaustive,
        "worst": audit.worst,
        "coalitions": [asdict(tested) | {"exhaustive": tested.exhaustive} for tested in audit.sizes],
        "findings": [_finding(finding) for finding in audit.findings],
        "read": audit.read.tolist(),
        "owners": {str(node): owner for node, owner in sorted(subject.owners.items())},
        "notes": list(subject.notes),
    }


def cells_as_dict(audit: CellAudit, subject: CellSubject) -> dict[str, object]:
    """The same for cells."""
    return {
        "source": subject.source,
        "nodes": audit.nodes,
        "links": subject.graph.number_of_edges(),
        "sparsifier": subject.sparsifier,
        "share": subject.share,
        "cells": subject.plan.cells,
        "collusion": audit.collusion,
        "rounds": "all",
        "over_rounds": FOR_ALL_ROUNDS,
        "exposed": audit.exposed,
        "left": audit.left,
        "findings": [asdict(finding) for finding in audit.findings],
        "words": subject.promises(),
        "owners": {str(node): owner for node, owner in sorted(subject.owners.items())},
        "notes": list(subject.notes),
    }


def cell_verdict(audit: CellAudit, subject: CellSubject) -> tuple[bool, str, str]:
    """Whether all is well, the headline, and the sentence below it."""
    who = _colluders(audit.collusion, subject.owners)
    if audit.exposed:
        count = len(audit.findings)
        return (
            False,
            f"Not safe against {who}.",
            f"In {count} of {len(audit.left)} cell(s) too few others are left.",
        )
    what = "Together they learn" if audit.collusion > 1 else "It learns"
    return (
        True,
        f"Safe against {who}, in all rounds together.",
        f"{what} sums of what at least {min(audit.left)} others train, and nothing else about a single one.",
    )


def _colluders(k: int, owners: Owners) -> str:
    one = "owner" if owners else "participant"
    return f"a single curious {one}" if k == 1 else f"up to {k} {one}s who pool what they know"


def _owned(subject: Subject | CellSubject) -> list[str]:
    """Who runs several nodes, in words."""
    several: dict[str, list[str]] = {}
    for node, owner in sorted(subject.owners.items()):
        several.setdefault(owner, []).append(subject.name(node))
    return [f"{owner} runs {', '.join(nodes)}" for owner, nodes in several.items() if len(nodes) > 1]


def _finding(finding: Finding) -> dict[str, object]:
    fields = ("coalition", "fraction", "victims")
    return {name: getattr(finding, name) for name in fields} | {"sentence": sentence(finding)}


def sentence(finding: Finding) -> str:
    """The way to read most, so that a person can follow it."""
    coalition, victim, way = finding.coalition, finding.victim, finding.way
    who = f"node {coalition[0]} alone" if len(coalition) == 1 else f"nodes {listed(coalition)} together"
    at = f"at {percent(finding.reached)} of the positions"
    common = math.lcm(*(factor.denominator for _, factor in way))
    terms = sorted(((r, int(factor * common)) for r, factor in way), key=lambda term: (term[1] < 0, term[0]))
    if len(terms) == 1:
        return f"{who}: apart from their own values the sum at {terms[0][0]} holds only node {victim}'s, {at}"
    sums = "".join(_term(k, r, factor) for k, (r, factor) in enumerate(terms))
    left = f"node {victim}" if common == 1 else f"{common} times node {victim}"
    return f"{who}: {sums} leaves {left}, {at}"


def percent(fraction: float) -> str:
    """A fraction for people: three digits, and never rounded to nothing.

    >>> [percent(x) for x in (1, 0.0654, 0.00012, 0)]
    ['100 %', '6.54 %', '0.012 %', '0 %']
    """
    return f"{float(f'{100 * fraction:.3g}'):g} %"


def _term(k: int, r: int, factor: int) -> str:
    joint = "" if k == 0 else (" plus " if factor > 0 else " minus ")
    times = "the" if abs(factor) == 1 else f"{abs(factor)} times the"
    return f"{joint}{times} sum at {r}"


def verdict(audit: Audit, subject: Subject) -> tuple[bool, str, str]:
    """Whether all is well, the headline, and the sentence below it."""
    k, safe = audit.collusion, strict_requirement(subject.graph, audit.collusion, subject.owners)
    group = _colluders(k, subject.owners)
    if audit.exposed:
        return (
            False,
            f"Not safe against {group}.",
            (
                f"{sum(t.exposing for t in audit.sizes):,} of {sum(t.tested for t in audit.sizes):,} groups that were tried read "
                f"somebody's exact value, the worst at {percent(audit.worst)} of the parameters in one round."
            ),
        )
    if audit.masks >= safe:
        return (
            True,
            f"One round is safe against {group}.",
            (
                f"Proven for every selection on this graph: it needs {safe} mask(s) per value, and {audit.masks} are used. "
                f"The audit tried {sum(t.tested for t in audit.sizes):,} groups and found nothing."
            ),
        )
    tried = "every group" if audit.exhaustive else "a sample of the groups"
    return (
        False,
        f"Nothing found in one round against {group}, but not proven.",
        (
            f"{tried.capitalize()} was tried on {audit.positions:,} positions and read nothing. A proof for all selections "
            f"needs {safe} mask(s) per value; {audit.masks} are used."
        ),
    )


def write_statement(audit: Audit, subject: Subject, out: Path) -> Path:
    """Write the page for a data-protection officer; where it lies."""
    degrees = sorted({degree for _, degree in subject.graph.degree})
    return _write(
        out,
        "statement.html",
        audit,
        subject,
        verdict(audit, subject),
        _figures(audit, subject),
        neighbours=f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}",
        safe=strict_requirement(subject.graph, audit.collusion, subject.owners),
        alone=audit.sizes[0],
        together=max((tested.worst for tested in audit.sizes[1:]), default=0.0),
        sentence=sentence,
    )


def write_cell_statement(audit: CellAudit, subject: CellSubject, out: Path) -> Path:
    """Write the page about cells; where it lies."""
    marked = audit.findings[0].victims if audit.findings else subject.plan.cells[0]
    what = (
        "Somebody who could be read is marked"
        if audit.findings
        else "The members of the first cell are marked"
    )
    plain = nx.convert_node_labels_to_integers(subject.graph, ordering="sorted", label_attribute="id")
    spec = _graph(plain, tuple(node for node in plain if plain.nodes[node]["id"] in marked))
    return _write(
        out,
        "cells.html",
        audit,
        subject,
        cell_verdict(audit, subject),
        [
            Figure(
                title="Who talks to whom",
                caption=f"{what}. Point at a node to see its links.",
                spec=spec,
                wide=True,
            )
        ],
        FOR_ALL_ROUNDS,
        promises=subject.promises(),
    )


def _write(
    out: Path,
    template: str,
    audit: Audit | CellAudit,
    subject: Subject | CellSubject,
    outcome: tuple[bool, str, str],
    figures: list[Figure],
    over_rounds: str = OVER_ROUNDS,
    **fields: Any,
) -> Path:
    """What every statement has (`protection.html`), and what its own template adds."""
    return write_page(
        out,
        template,
        title="What this network protects",
        version=cesar.__version__,
        audit=audit,
        subject=subject,
        owned=_owned(subject),
        verdict=outcome,
        over_rounds=over_rounds,
        all_rounds=over_rounds is not OVER_ROUNDS,
        figures=figures,
        percent=percent,
        **fields,
    )


def _figures(audit: Audit, subject: Subject) -> list[Figure]:
    found = []
    if audit.pairs is not None and audit.pairs.max() > 0:
        caption = "Positions at which two participants together read somebody."
        found.append(Figure(title="What each pair reads", caption=caption, spec=_pairs(audit)))
    if audit.exposed:
        found.append(
            Figure(
                title="How much of each participant is read",
                caption="By the group that reads most of it.",
                spec=_victims(audit),
                wide=not found,
            )
        )
    marked = audit.findings[0].coalition if audit.findings else ()
    caption = (
        f"The group that reads most is marked: {', '.join(map(str, marked))}."
        if marked
        else "Point at a node to see its neighbours."
    )
    graph = _graph(subject.graph, marked)
    return [*found, Figure(title="Who averages with whom", caption=caption, spec=graph, wide=True)]


def _pairs(audit: Audit) -> Spec:
    assert audit.pairs is not None
    cells = [[json_number(100 * value) for value in row] for row in audit.pairs]
    heat = {
        "type": "heatmap",
        "z": cells,
        "zmin": 0,
        "colorscale": [[0, "css:paper"], [0.02, "css:rule"], [1, "css:c1"]],
        "colorbar": {"ticksuffix": " %", "thickness": 10, "outlinewidth": 0},
        "hovertemplate": "nodes %{x} and %{y}: %{z:.3~g} %<extra></extra>",
    }
    axis = plot_axis("node", showgrid=False)
    return {
        "data": [heat],
        "layout": plot_layout(axis, {**axis, "scaleanchor": "x", "autorange": "reversed"}),
    }


def _victims(audit: Audit) -> Spec:
    bars = {
        "type": "bar",
        "x": list(range(audit.nodes)),
        "y": [json_number(100 * value) for value in audit.read],
        "marker": {"color": "css:c1", "line": {"width": 0}},
        "hovertemplate": "node %{x}: %{y:.3~g} %<extra></extra>",
    }
    top = max(1.0, 110 * float(np.max(audit.read)))
    return {
        "data": [bars],
        "layout": plot_layout(plot_axis("node"), plot_axis("read (% of the positions)", range=[0, top])),
    }


def _graph(graph: nx.Graph, marked: tuple[int, ...]) -> Spec:
    spec = graph_figure(graph, "file")
    spec["data"][1]["marker"]["color"] = ["css:c1" if node in marked else "css:node" for node in graph]
    return spec


def write_risks(risks: Sequence[Risk], out: Path, about: str) -> Path:
    """The page with the plot of collusion risks."""
    by_count: dict[int, list[Risk]] = {}
    for risk in sorted(risks, key=lambda risk: risk.adversaries):
        by_count.setdefault(risk.adversaries, []).append(risk)
    figures = (
        Figure(
            title="Graphs at risk",
            caption="Solid: the paper's criterion, an adversary with at least s adversarial neighbours. Dashed: a selection exists at which "
            "one sum, or the difference of two, is a single honest value. Zero is left out; whiskers are 95 % intervals.",
            spec=_risk_plot(by_count, (("paper", "solid"), ("at_least", "dash"))),
            wide=True,
        ),
        Figure(
            title="Positions at risk",
            caption="Probability that the adversaries read somebody at a random position, all sums considered; α follows from the share.",
            spec=_risk_plot(by_count, (("at_random", "solid"),)),
            wide=True,
        ),
    )
    return write_page(
        out,
        "risks.html",
        title="Collusion risk",
        version=cesar.__version__,
        about=about,
        figures=figures,
        risks=by_count,
        percent=percent,
    )


def _risk_plot(risks: dict[int, list[Risk]], lines: tuple[tuple[str, str], ...]) -> Spec:
    data = []
    for number, (count, rows) in enumerate(risks.items()):
        for name, dash in lines:
            shown = [(risk.masks, getattr(risk, name)) for risk in rows]
            shown = [(s, estimate) for s, estimate in shown if estimate.hits]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{count} adversaries{'' if dash == 'solid' else ', two sums'}",
                    "x": [s for s, _ in shown],
                    "y": [json_number(100 * e.value) for _, e in shown],
                    "error_y": {
                        "type": "data",
                        "array": [json_number(100 * (e.interval[1] - e.value)) for _, e in shown],
                        "arrayminus": [json_number(100 * (e.value - e.interval[0])) for _, e in shown],
                        "thickness": 1,
                        "width": 3,
                    },
                    "line": {"color": f"css:c{number}", "width": 2.2, "dash": dash},
                    "marker": {"color": f"css:c{number}", "size": 6},
                    "hovertemplate": "%{fullData.name}, s = %{x}: %{y:.3~g} %<extra></extra>",
                }
            )
    legend = {"orientation": "h", "y": 1.12}
    x = plot_axis("masking requirement s", dtick=2)
    return {
        "data": data,
        "layout": plot_layout(
            x,
            plot_axis("risk (%)", type="log", dtick=1, exponentformat="none"),
            showlegend=True,
            legend=legend,
        ),
    }
