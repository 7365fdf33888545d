"""`cesar plan`: settings before anything runs, that is fractions, graphs and the risk of collusion."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cesar.audit import planning, statement
from cesar.audit.collusion import Estimate, Risk, plan_collusion
from cesar.audit.statement import percent
from cesar.cli.options import Alpha, AsJson, Degree, Masks, SampleSeed, Share
from cesar.cli.output import console, counting, show
from cesar.graph import named as graphs
from cesar.graph import shares as theory

app = typer.Typer(no_args_is_help=True, help="Choose settings before you run anything.")


@app.command("alpha")
def plan_alpha(share: Share, degree: Degree, masks: Masks = None, as_json: AsJson = False) -> None:
    """The fraction α that each node must select so that a fraction β is shared."""
    s = 1 if masks is None else masks
    alpha = theory.required_alpha(share, degree, s)
    fields = {"share": share, "degree": degree, "masks": s, "alpha": alpha}
    show("Select this fraction", fields, as_json=as_json)


@app.command("share")
def plan_share(alpha: Alpha, degree: Degree, masks: Masks = None, as_json: AsJson = False) -> None:
    """The fraction β of the parameters that is shared if each node selects a fraction α."""
    s = 1 if masks is None else masks
    share = theory.expected_share(alpha, degree, s)
    fields = {"alpha": alpha, "degree": degree, "masks": s, "share": share}
    show("This fraction is shared", fields, as_json=as_json)


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
        statement.write_risks(risks, out, title)
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
