"""`cesar plan`: settings before anything runs, that is fractions, graphs, groups and the risk of collusion."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar import files, graphs, theory
from cesar.audit import planning, report
from cesar.audit.collusion import Estimate, Risk, plan_collusion
from cesar.audit.report import percent
from cesar.cli.options import (
    Alpha,
    AsJson,
    Degree,
    GroupSize,
    Masks,
    Nodes,
    SampleSeed,
    Share,
)
from cesar.cli.output import console, counting, show
from cesar.errors import ConfigError
from cesar.grouping import check_group_size, group_sizes, hears
from cesar.seeds import SeedTree
from cesar.sparsify import RandomSubsampling

app = typer.Typer(no_args_is_help=True, help="Choose settings before you run anything.")


class Selecting(StrEnum):
    """How a node selects, which matters to groups: they send what any member selected, or what is drawn for them."""

    TOPK = "topk"
    RANDOM = "random"


Sparsifier = Annotated[Selecting, typer.Option(help="How nodes select; groups send the union of TopK.")]


@app.command("alpha")
def plan_alpha(
    share: Share,
    degree: Degree,
    masks: Masks = None,
    group_size: GroupSize = None,
    sparsifier: Sparsifier = Selecting.TOPK,
    as_json: AsJson = False,
) -> None:
    """The fraction α that each node must select so that a fraction β is shared."""
    fields = _hiding(degree, masks, group_size, sparsifier)
    if group_size is None:
        alpha = theory.required_alpha(share, degree, masks or 1)
    elif sparsifier is Selecting.RANDOM:
        alpha = RandomSubsampling(share).alpha
    else:
        alpha = theory.required_union_alpha(share, group_sizes(degree, group_size))
    show("Select this fraction", {"share": share, **fields, "alpha": alpha}, as_json=as_json)


@app.command("share")
def plan_share(
    alpha: Alpha,
    degree: Degree,
    masks: Masks = None,
    group_size: GroupSize = None,
    sparsifier: Sparsifier = Selecting.TOPK,
    as_json: AsJson = False,
) -> None:
    """The fraction β of the parameters that is shared if each node selects a fraction α."""
    fields = _hiding(degree, masks, group_size, sparsifier)
    if group_size is None:
        share = theory.expected_share(alpha, degree, masks or 1)
    elif sparsifier is Selecting.RANDOM:
        share = RandomSubsampling(alpha).alpha
    else:
        share = theory.expected_union(alpha, group_sizes(degree, group_size))
    show("This fraction is shared", {"alpha": alpha, **fields, "share": share}, as_json=as_json)


def _hiding(
    degree: int, masks: int | None, group_size: int | None, sparsifier: Selecting
) -> dict[str, object]:
    """How values are hidden, for the table.

    Raises:
        ConfigError: in two ways, or in none.
    """
    if group_size is None:
        return {"degree": degree, "masks": 1 if masks is None else masks}
    if masks is not None:
        raise ConfigError("--group-size decides how many masks a value carries (one less); leave --masks out")
    check_group_size(group_size)
    if degree < group_size:
        raise ConfigError(f"a receiver with {degree} neighbour(s) has no group of {group_size}")
    sizes = ", ".join(map(str, group_sizes(degree, group_size)))
    return {"degree": degree, "group_size": group_size, "members": sizes, "sparsifier": sparsifier.value}


@app.command("groups")
def plan_groups(
    group_size: Annotated[int, typer.Option(help="Members that a group has at least (m).")] = 3,
    collusion: Annotated[int, typer.Option(min=1, help="Colluders to be stopped in all rounds (k).")] = 2,
    nodes: Nodes = 48,
    degree: Annotated[int, typer.Option(min=1, help="Neighbours of every node.")] = 6,
    graph: Annotated[Path | None, typer.Option(help="Edge list instead: 'i j' per line.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the edge list here, with the groups as remarks.")
    ] = None,
    seed: SampleSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Divide every receiver's neighbours into groups for good, so that no k nodes read anybody in all rounds together.

    All coalitions are looked at. Receivers that take part in a leak draw their groups again. Simulations with this seed
    have this graph and these groups; a network of peers plans its own when it is made, because they depend on its id.
    """
    draw = SeedTree(seed).generator("graph")
    drawn = graphs.from_file(graph) if graph is not None else graphs.parse(f"regular:{degree}", nodes, draw)
    plan = planning.plan_groups(drawn, group_size, collusion)
    words = [hears(f"node {r}", groups) for r, groups in plan.groups.items()]
    if out is not None:
        origin = f"--graph {graph}" if graph else f"--nodes {nodes} --degree {degree} --seed {seed}"
        head = [f"cesar plan groups --group-size {group_size} --collusion {collusion} {origin}", *words]
        edges = sorted(tuple(sorted(edge)) for edge in drawn.edges)
        text = "".join(f"# {line}\n" for line in head) + "".join(f"{i} {j}\n" for i, j in edges)
        files.write(out, text)
    if as_json:
        fields = asdict(plan) | {"drew_again": sorted(plan.draws), "file": None if out is None else str(out)}
        typer.echo(json.dumps(fields))
        return
    for line in words:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"\n{_outcome(plan)}", highlight=False, soft_wrap=True)


def _outcome(plan: planning.GroupPlan) -> str:
    """What was looked at and what it took, in words."""
    overlap = f"Of {plan.possible:,} coalitions of up to {plan.collusion} node(s), {plan.looked_at:,} have sums that overlap"
    leaked = f"{len(plan.leaks):,} could read somebody with the first draw, none can now"
    lines = [f"{overlap}; all of these were looked at. {leaked}."]
    if plan.leaks:
        lines.append(f"For example, {plan.leaks[0]}.")
    if plan.draws:
        again = [f"{r} ({count} time{'s' if count > 1 else ''})" for r, count in sorted(plan.draws.items())]
        lines.append(f"Drew again: {', '.join(again)}.")
    lines.append(f"[bold]Safe against {plan.collusion} colluder(s) in all rounds together.[/]")
    return "\n".join(lines)


@app.command("topology")
def plan_topology(
    nodes: Annotated[int, typer.Option(min=2, help="Number of nodes.")],
    degree: Annotated[int, typer.Option(min=1, help="Neighbours of every node.")],
    collusion: Annotated[int, typer.Option(min=1, help="Colluders that s masks are to stop (k).")] = 2,
    masks: Annotated[int | None, typer.Option(min=1, help="s; default k, the least possible.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the edge list here.")] = None,
    seed: SampleSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Make a regular connected graph on which s = k masks stop k colluders, and say what that costs in mixing."""
    with counting() as progress:
        plan = planning.plan_topology(
            lambda draw: graphs.regular(nodes, degree, draw),
            collusion,
            masks=masks,
            seed=seed,
            progress=lambda done, total: progress("attempts", done, total),
        )
    if out is not None:
        head = (
            f"# {nodes} nodes, degree {degree}; masking_requirement = {plan.masks} stops {collusion} colluders\n"
            f"# cesar plan topology --nodes {nodes} --degree {degree} --collusion {collusion} --masks {plan.masks} --seed {seed}\n"
        )
        out.write_text(head + "".join(f"{i} {j}\n" for i, j in sorted(plan.graph.edges)), encoding="utf-8")
    fields: dict[str, object] = {
        "nodes": nodes,
        "degree": degree,
        "collusion": collusion,
        "masks": plan.masks,
        "swaps": plan.swaps,
        "masks_of_the_random_graph": plan.masks_before,
        "spectral_gap_of_the_random_graph": plan.gap_before,
        "spectral_gap": plan.gap,
        "file": None if out is None else str(out),
    }
    if as_json:
        fields["edges"] = sorted(map(sorted, plan.graph.edges))
    show("A graph for few masks", fields, as_json=as_json)


@app.command("collusion")
def plan_risk(
    nodes: Annotated[int, typer.Option(min=4, help="Number of nodes.")] = 100,
    degree: Annotated[int, typer.Option(min=3, help="Neighbours of every node.")] = 25,
    adversaries: Annotated[
        list[int] | None, typer.Option(help="Colluders; may be given several times. Default 5, 10, 15, 20.")
    ] = None,
    graph_count: Annotated[int, typer.Option("--graphs", min=1, help="Random graphs.")] = 250_000,
    share: Annotated[float, typer.Option(help="Fraction to be shared (β), which fixes α at each s.")] = 0.30,
    out: Annotated[Path | None, typer.Option(help="Write a page with the plot here.")] = None,
    seed: SampleSeed = 0,
    as_json: AsJson = False,
) -> None:
    """The risk that colluders read somebody on a random regular graph, for every s (the paper's Fig. 5b)."""
    wanted = adversaries or [5, 10, 15, 20]
    with counting() as progress:
        risks = plan_collusion(
            nodes,
            degree,
            wanted,
            graphs=graph_count,
            share=share,
            seed=seed,
            progress=lambda done, total: progress("graphs", done, total),
        )
    title = f"{graph_count:,} random {degree}-regular graphs of {nodes} nodes, seed {seed}, share {share:g}"
    if out is not None:
        report.write_risks(risks, out, title)
    if as_json:
        rows = [_risk_fields(risk) for risk in risks]
        settings = {"nodes": nodes, "degree": degree, "graphs": graph_count, "share": share, "seed": seed}
        typer.echo(json.dumps(settings | {"risks": rows, "report": None if out is None else str(out)}))
        return
    for count in sorted(set(wanted)):
        console.print(_risk_table(risks, count, title))
    console.print(
        "paper: an adversary has s adversarial neighbours; at least: one sum or the difference of two is a single value\n"
        "for some selection; at most: not ruled out by the proof; random position: all sums, exact; ( ): 95 % interval",
        style="dim",
    )
    if out is not None:
        console.print(f"report: [bold]{out}[/]")


def _risk_fields(risk: Risk) -> dict[str, object]:
    fields: dict[str, object] = {"adversaries": risk.adversaries, "masks": risk.masks, "alpha": risk.alpha}
    for name in ("paper", "at_least", "at_most", "at_random"):
        estimate: Estimate = getattr(risk, name)
        fields[name] = asdict(estimate) | {"value": estimate.value, "interval": estimate.interval}
    return fields


def _risk_table(risks: list[Risk], count: int, title: str) -> Table:
    table = Table(title=f"{count} adversaries; {title}")
    for heading in ("s", "paper", "at least", "at most", "α", "random position"):
        table.add_column(heading, justify="right")
    for risk in risks:
        if risk.adversaries == count:
            figures = [risk.paper, risk.at_least, risk.at_most, risk.at_random]
            cells = [
                f"{percent(e.value)} ({percent(e.interval[0])}–{percent(e.interval[1])})" for e in figures
            ]
            table.add_row(str(risk.masks), *cells[:3], f"{risk.alpha:.3f}", cells[3])
    return table
