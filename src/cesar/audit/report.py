"""The statement for a data-protection officer: what a configuration protects against whom, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import networkx as nx
import numpy as np

import cesar
from cesar.audit.collusion import Risk
from cesar.audit.exposure import Audit, Finding
from cesar.audit.lasting import GroupAudit, GroupSubject
from cesar.audit.sources import Subject
from cesar.page import Figure, Spec, graph_figure, json_number, plot_axis, plot_layout, write_page
from cesar.topology import Owners, strict_requirement


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


def groups_as_dict(audit: GroupAudit, subject: GroupSubject) -> dict[str, object]:
    """The same for fixed groups; a coalition that reads somebody does so wherever all its sums are sent."""
    read = dict.fromkeys(audit.victims, 1.0)
    return {
        "source": subject.source,
        "nodes": audit.nodes,
        "links": subject.graph.number_of_edges(),
        "sparsifier": subject.sparsifier,
        "alpha": subject.alpha,
        "masks": subject.group_size - 1,
        "group_size": subject.group_size,
        "collusion": audit.collusion,
        "rounds": "all" if subject.lasting else "one",
        "exposed": audit.exposed,
        "exhaustive": True,
        "worst": float(audit.exposed),
        "coalitions": [asdict(tested) | {"exhaustive": tested.exhaustive} for tested in audit.sizes],
        "findings": [
            asdict(finding) | {"victims": dict.fromkeys(finding.victims, 1.0), "fraction": 1.0}
            for finding in audit.findings
        ],
        "read": [read.get(node, 0.0) for node in sorted(subject.held)],
        "groups": {str(r): groups for r, groups in subject.groups.items()},
        "words": subject.words(),
        "owners": {str(node): owner for node, owner in sorted(subject.owners.items())},
        "notes": list(subject.notes),
    }


def group_verdict(audit: GroupAudit, subject: GroupSubject) -> tuple[bool, str, str]:
    """Whether all is well, the headline, and the sentence below it."""
    who = _colluders(audit.collusion, subject.owners)
    rounds = "in all rounds together" if subject.lasting else "in one round"
    tried = f"All {sum(tested.possible for tested in audit.sizes):,} coalitions were considered"
    if audit.exposed:
        count = sum(tested.exposing for tested in audit.sizes)
        return False, f"Not safe against {who}.", f"{tried}; {count:,} of them can compute somebody's values."
    return (
        True,
        f"Safe against {who}, {rounds}.",
        f"{tried}, exactly: none can compute anybody's values from all its sums, whatever is selected and whoever drops out.",
    )


def _colluders(k: int, owners: Owners) -> str:
    one = "owner" if owners else "participant"
    return f"a single curious {one}" if k == 1 else f"up to {k} {one}s who pool what they know"


def _owned(subject: Subject | GroupSubject) -> list[str]:
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
    who = f"node {coalition[0]} alone" if len(coalition) == 1 else f"nodes {_listed(coalition)} together"
    at = f"at {percent(finding.reached)} of the positions"
    common = math.lcm(*(factor.denominator for _, factor in way))
    terms = sorted(((r, int(factor * common)) for r, factor in way), key=lambda term: (term[1] < 0, term[0]))
    if len(terms) == 1:
        return f"{who}: apart from their own values the sum at {terms[0][0]} holds only node {victim}'s, {at}"
    words = "".join(_term(k, r, factor) for k, (r, factor) in enumerate(terms))
    left = f"node {victim}" if common == 1 else f"{common} times node {victim}"
    return f"{who}: {words} leaves {left}, {at}"


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


def _listed(nodes: tuple[int, ...]) -> str:
    *most, last = map(str, nodes)
    return f"{', '.join(most)} and {last}"


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
            f"Safe against {group}.",
            (
                f"Proven for every selection on this graph: it needs {safe} mask(s) per value, and {audit.masks} are used. "
                f"The audit tried {sum(t.tested for t in audit.sizes):,} groups and found nothing."
            ),
        )
    tried = "every group" if audit.exhaustive else "a sample of the groups"
    return (
        False,
        f"Nothing found against {group}, but not proven.",
        (
            f"{tried.capitalize()} was tried on {audit.positions:,} positions and read nothing. A proof for all selections "
            f"needs {safe} mask(s) per value; {audit.masks} are used."
        ),
    )


def write_statement(audit: Audit, subject: Subject, out: Path) -> Path:
    """Write the page for a data-protection officer; where it lies."""
    degrees = sorted({degree for _, degree in subject.graph.degree})
    return write_page(
        out,
        "statement.html",
        title="What this network protects",
        version=cesar.__version__,
        audit=audit,
        subject=subject,
        neighbours=f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}",
        owned=_owned(subject),
        verdict=verdict(audit, subject),
        safe=strict_requirement(subject.graph, audit.collusion, subject.owners),
        alone=audit.sizes[0],
        together=max((tested.worst for tested in audit.sizes[1:]), default=0.0),
        figures=_figures(audit, subject),
        percent=percent,
        sentence=sentence,
    )


def write_group_statement(audit: GroupAudit, subject: GroupSubject, out: Path) -> Path:
    """Write the page about fixed groups; where it lies."""
    marked = audit.findings[0].coalition if audit.findings else ()
    caption = (
        f"A group that can read somebody is marked: {', '.join(map(subject.name, marked))}."
        if marked
        else "Point at a node to see its neighbours."
    )
    plain = nx.convert_node_labels_to_integers(subject.graph, ordering="sorted", label_attribute="id")
    spec = _graph(plain, tuple(node for node in plain if plain.nodes[node]["id"] in marked))
    return write_page(
        out,
        "groups.html",
        title="What this network protects",
        version=cesar.__version__,
        audit=audit,
        subject=subject,
        owned=_owned(subject),
        verdict=group_verdict(audit, subject),
        promises={subject.name(node): subject.promises(node) for node in sorted(subject.groups)},
        figures=[Figure(title="Who averages with whom", caption=caption, spec=spec, wide=True)],
        percent=percent,
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
