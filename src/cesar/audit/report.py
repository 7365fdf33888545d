"""The statement for a data-protection officer: what a configuration protects against whom, and what it does not."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import networkx as nx
import numpy as np

import cesar
from cesar.audit.collusion import Estimate, Risk
from cesar.audit.exposure import Audit, Finding
from cesar.audit.sources import Subject
from cesar.page import Spec, figure, graph_figure, json_number, plot_axis, plot_layout, whole_page
from cesar.topology import strict_requirement

EXTRA = """<style>
.verdict { border-left: 6px solid var(--c2); padding: 12px 20px; margin: 24px 0; } .verdict.bad { border-color: var(--c1); }
.verdict b { font-size: 20px; display: block; margin-bottom: 4px; } .verdict p { margin: 0; }
.facts td { text-align: left; white-space: normal; } .facts th { width: 240px; } .facts td:nth-child(2) { width: 90px; } td.yes { color: var(--c2); } td.no { color: var(--c1); }
li { margin-bottom: 8px; max-width: 800px; } section h2 { margin-top: 40px; }
</style>"""


def as_dict(audit: Audit, subject: Subject) -> dict[str, object]:
    """Everything for machines."""
    return {
        "source": subject.source,
        "nodes": audit.nodes,
        "links": subject.graph.number_of_edges(),
        "sparsifier": subject.sparsifier,
        "alpha": subject.alpha,
        "masks": audit.masks,
        "strict_masks": strict_requirement(subject.graph, audit.collusion),
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
        "notes": list(subject.notes),
    }


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
    k, safe = audit.collusion, strict_requirement(subject.graph, audit.collusion)
    group = "a single curious participant" if k == 1 else f"up to {k} participants who pool what they know"
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
    """Write the page; where it lies."""
    good, headline, detail = verdict(audit, subject)
    parts = [
        EXTRA,
        "<h1>What this network protects</h1>",
        f"<p>{html.escape(_setting(audit, subject))}</p>",
        f'<div class="verdict{"" if good else " bad"}"><b>{html.escape(headline)}</b><p>{html.escape(detail)}</p></div>',
        _who(audit, subject),
        _findings(audit),
        f"<section><div class=figures>{''.join(_figures(audit, subject))}</div></section>",
        _limits(subject),
        _method(audit, subject),
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    body = "".join(parts).replace(" %", "\N{NO-BREAK SPACE}%")
    out.write_text(whole_page("What this network protects", body, cesar.__version__), encoding="utf-8")
    return out


def _setting(audit: Audit, subject: Subject) -> str:
    degrees = sorted({degree for _, degree in subject.graph.degree})
    each = f"{degrees[0]}" if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    chosen = {
        "random": f"a random {percent(subject.alpha)} of its parameters",
        "topk": f"the {percent(subject.alpha)} of its parameters that changed most",
        "coordinated": f"a random {percent(subject.alpha)} of its parameters, the same for all who send to one receiver",
        "full": "all of its parameters",
    }[subject.sparsifier]
    return (
        f"{audit.nodes} participants train a model together without a server. Each has {each} neighbours and in every "
        f"round selects {chosen}. A value is sent only if at least {audit.masks} other neighbour(s) of the receiver hide "
        f"it with a shared mask. ({subject.source})"
    )


def _who(audit: Audit, subject: Subject) -> str:
    safe, k = strict_requirement(subject.graph, audit.collusion), audit.collusion
    singles = audit.sizes[0]
    rows = [
        (
            "Somebody on the network",
            "yes",
            "Sees only masked values, and no plain text at all if the transport encrypts.",
        ),
        (
            "One curious participant",
            "yes" if singles.exposing == 0 else "no",
            f"Learns sums over at least {audit.masks + 1} neighbours, never a single value."
            if singles.exposing == 0
            else f"Reads single values at up to {percent(singles.worst)} of the parameters.",
        ),
    ]
    if k > 1:
        together = audit.sizes[1:]
        worst = max(t.worst for t in together)
        if worst:
            what = (
                "no",
                f"The worst group reads single values at {percent(worst)} of the parameters in one round.",
            )
        elif audit.masks >= safe:
            what = ("yes", "Proven for this graph, whatever is selected, and whoever drops out.")
        else:
            what = ("not shown", f"Nothing was found, but the proof asks for {safe} masks.")
        rows.append((f"Up to {k} participants together", *what))
    rows += [
        (f"More than {k} together", "not shown", "Audit again with a larger coalition."),
        (
            "A participant that lies",
            "partly",
            "It cannot read single values this way, but it can spoil averages.",
        ),
        ("Whoever sees the trained model", "no", "A model says something about the data it was trained on."),
    ]
    body = "".join(
        f'<tr><th>{html.escape(who)}<td class="{answer.split()[0]}">{answer}<td>{html.escape(why)}'
        for who, answer, why in rows
    )
    return (
        "<section><h2>Are a participant's parameters protected?</h2><div class=scroll><table class=facts>"
        f"<thead><tr><th>against<th style='text-align:left'>protected<th style='text-align:left'>why<tbody>{body}</table></div></section>"
    )


def _findings(audit: Audit) -> str:
    if not audit.findings:
        return ""
    items = "".join(
        f"<li>{html.escape(sentence(f)[:1].upper() + sentence(f)[1:])}. In all it reads somebody at "
        f"{percent(f.fraction)} of the positions; {len(f.victims)} participant(s) are hit."
        for f in audit.findings
    )
    return (
        "<section><h2>The groups that read most</h2><p>Each sum is known to one member of the group. Subtracting "
        f"sums leaves a single value.</p><ol>{items}</ol></section>"
    )


def _figures(audit: Audit, subject: Subject) -> list[str]:
    found = []
    if audit.pairs is not None and audit.pairs.max() > 0:
        found.append(
            figure(
                "What each pair reads",
                "Positions at which two participants together read somebody.",
                _pairs(audit),
            )
        )
    if audit.exposed:
        caption = "By the group that reads most of it."
        found.append(figure("How much of each participant is read", caption, _victims(audit), wide=not found))
    marked = audit.findings[0].coalition if audit.findings else ()
    caption = (
        f"The group that reads most is marked: {', '.join(map(str, marked))}."
        if marked
        else "Point at a node to see its neighbours."
    )
    found.append(figure("Who averages with whom", caption, _graph(subject.graph, marked), wide=True))
    return found


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


def _limits(subject: Subject) -> str:
    sets = {
        "topk": "Which parameters a participant selected is visible to its neighbours. With this selection it says where "
        "training changed the model most, which can say something about the data.",
        "coordinated": "Which parameters are sent is public, and drawn at random: it says nothing about the data.",
        "random": "Which parameters a participant selected is visible to its neighbours, but drawn at random: it says "
        "nothing about the data.",
        "full": "All parameters are sent, so nothing can be learned from which.",
    }[subject.sparsifier]
    rounds = (
        "Every sum of a receiver has the same members in every round, as long as nobody drops out and the graph stays, so "
        "rounds cannot be played off against each other."
        if subject.sparsifier in ("coordinated", "full")
        else "Sums of different rounds have different members. Models change little from round to round, so many rounds "
        "together can say more than this audit, which looks at one."
    )
    points = [
        (
            "The averages themselves.",
            (
                "Each participant learns averages of its neighbours' models; that is the purpose. An "
                "average of few models resembles each of them. Whoever needs more adds noise (differential privacy) to the models."
            ),
        ),
        ("Which parameters were sent.", sets),
        ("Many rounds.", rounds),
        (
            "Active attacks.",
            (
                "Participants are assumed to follow the protocol. One that sends wrong values spoils averages, "
                "and nobody can tell. Keys must belong to whom they claim to belong."
            ),
        ),
        (
            "The past.",
            "Whoever steals a participant's key later, and has recorded the traffic, can take its masks off.",
        ),
        ("Traffic.", "Who talks to whom, when, and how much, is visible on the network."),
    ]
    items = "".join(f"<li><b>{head}</b> {html.escape(text)}" for head, text in points)
    return f"<section><h2>What is not protected</h2><ul>{items}</ul></section>"


def _method(audit: Audit, subject: Subject) -> str:
    rows = "".join(
        f"<tr><th>{t.size}<td>{t.tested:,} of {t.possible:,}<td>{t.exposing:,}<td>{percent(t.worst)}"
        for t in audit.sizes
    )
    sample = (
        "Every group was tried."
        if audit.exhaustive
        else "Where not all groups were tried, they were drawn at random, and the worst smaller ones were extended by one."
    )
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in subject.notes)
    return (
        "<section><h2>How this was found out</h2><p>For every group and position the audit takes all sums that the group "
        "receives, without the group's own values, and decides by exact arithmetic whether a single value follows from "
        f"them. {audit.positions:,} positions with {audit.patterns:,} different patterns of who selected; seed "
        f"{subject.seed}. {sample}</p><div class=scroll><table><thead><tr><th>group size<th>tried<th>read somebody"
        f"<th>worst<tbody>{rows}</table></div>{notes}</section>"
    )


def write_risks(risks: Sequence[Risk], out: Path, title: str) -> Path:
    """The page with the plot of collusion risks."""
    counts = sorted({risk.adversaries for risk in risks})
    body = (
        f"<h1>Collusion risk</h1><p>{html.escape(title)}</p><section><div class=figures>"
        + figure(
            "Graphs at risk",
            "Solid: the paper's criterion, an adversary with at least s adversarial neighbours. Dashed: a selection exists at which "
            "one sum, or the difference of two, is a single honest value. Zero is left out; whiskers are 95 % intervals.",
            _risk_plot(risks, counts, (("paper", "solid"), ("at_least", "dash"))),
            wide=True,
        )
        + figure(
            "Positions at risk",
            "Probability that the adversaries read somebody at a random position, all sums considered; α follows from the share.",
            _risk_plot(risks, counts, (("at_random", "solid"),)),
            wide=True,
        )
        + "</div></section>"
        + "".join(_risk_table(risks, count) for count in counts)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(whole_page("Collusion risk", body, cesar.__version__), encoding="utf-8")
    return out


def _risk_plot(risks: Sequence[Risk], counts: list[int], lines: tuple[tuple[str, str], ...]) -> Spec:
    data = []
    for number, count in enumerate(counts):
        for name, dash in lines:
            shown = [(risk.masks, getattr(risk, name)) for risk in risks if risk.adversaries == count]
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


def _risk_table(risks: Sequence[Risk], count: int) -> str:
    rows = "".join(
        f"<tr><th>{risk.masks}<td>{_shown(risk.paper)}<td>{_shown(risk.at_least)}<td>{_shown(risk.at_most)}"
        f"<td>{risk.alpha:.3f}<td>{_shown(risk.at_random)}"
        for risk in risks
        if risk.adversaries == count
    )
    return (
        f"<section><h2>{count} adversaries</h2><div class=scroll><table><thead><tr><th>s<th>paper<th>some selection: at least"
        f"<th>at most<th>α<th>random position<tbody>{rows}</table></div></section>"
    )


def _shown(estimate: Estimate) -> str:
    low, high = estimate.interval
    return f"{percent(estimate.value)} <small>{percent(low)} to {percent(high)}</small>"
