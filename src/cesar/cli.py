"""The command line: arguments in, a table for people or JSON for machines out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import networkx as nx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import cesar
from cesar import bench, explain, theory
from cesar.cli_attack import attack_app
from cesar.cli_audit import audit_command, plan_collusion_command, plan_topology_command
from cesar.cli_data import data_app
from cesar.cli_peer import network_app, peer_app
from cesar.cli_reproduce import reproduce_app
from cesar.cli_run import bench_training_command, demo_command, report_command, run_command
from cesar.errors import CesarError
from cesar.methods import DPSGD, Cesar, Method, SecureAggregation
from cesar.sparsify import SparsifierName

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Train together with no server, and nobody sees anybody's parameters.",
)
plan_app = typer.Typer(no_args_is_help=True, help="Choose settings before you run anything.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure, against a floor from the same run.")
app.add_typer(plan_app, name="plan")
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")
app.add_typer(network_app, name="network")
app.add_typer(peer_app, name="peer")
app.add_typer(attack_app, name="attack")
app.add_typer(reproduce_app, name="reproduce")
app.command("run")(run_command)
app.command("report")(report_command)
app.command("demo")(demo_command)
app.command("audit")(audit_command)
plan_app.command("topology")(plan_topology_command)
plan_app.command("collusion")(plan_collusion_command)
bench_app.command("training")(bench_training_command)
console = Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Degree = Annotated[int, typer.Option(help="Neighbours of the receiver (δ).")]
Masks = Annotated[int, typer.Option(help="Masks that a parameter must carry to be sent (s).")]


class MethodName(StrEnum):
    """What `bench` can run."""

    CESAR = "cesar"
    SECAGG = "secagg"
    DPSGD = "dpsgd"


def main() -> None:
    """Run the command line; what cesar refuses is one clear line and exit code 2."""
    try:
        app()
    except CesarError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cesar {cesar.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _show(title: str, fields: dict[str, Any], *, as_json: bool) -> None:
    """A result as two columns, or as JSON."""
    if as_json:
        typer.echo(json.dumps(fields))
        return
    table = Table(title=title, show_header=False)
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)


@plan_app.command("alpha")
def plan_alpha(
    share: Annotated[float, typer.Option(help="Fraction of the parameters to be shared (β).")],
    degree: Degree,
    masks: Masks = 1,
    as_json: AsJson = False,
) -> None:
    """The fraction α that each node must select so that a fraction β is shared."""
    alpha = theory.required_alpha(share, degree, masks)
    fields = {"share": share, "degree": degree, "masks": masks, "alpha": alpha}
    _show("Select this fraction", fields, as_json=as_json)


@plan_app.command("share")
def plan_share(
    alpha: Annotated[float, typer.Option(help="Fraction that each node selects (α).")],
    degree: Degree,
    masks: Masks = 1,
    as_json: AsJson = False,
) -> None:
    """The fraction β of the parameters that is shared if each node selects a fraction α."""
    share = theory.expected_share(alpha, degree, masks)
    fields = {"alpha": alpha, "degree": degree, "masks": masks, "share": share}
    _show("This fraction is shared", fields, as_json=as_json)


Nodes = Annotated[int, typer.Option(min=2, help="Number of nodes.")]
Params = Annotated[int, typer.Option(min=1, help="Parameters of a model (d).")]
Share = Annotated[float, typer.Option(help="Fraction of the parameters to be shared (β).")]
RingBits = Annotated[int, typer.Option(help="Bits of a value on the wire: 16, 20, 24 or 32.")]
Seed = Annotated[int, typer.Option(help="Of the graph, the models and the keys.")]


def _regular_graph(nodes: int, degree: int, seed: int) -> nx.Graph:
    if degree >= nodes or nodes * degree % 2:
        raise cesar.ConfigError(
            f"there is no {degree}-regular graph of {nodes} nodes: the degree must be below the number of "
            "nodes, and one of the two must be even"
        )
    return nx.random_regular_graph(degree, nodes, seed=seed)


def _alpha(sparsifier: SparsifierName, share: float, degree: int, masks: int) -> float:
    """What CESAR selects to share that much; coordinated subsampling discards nothing."""
    if sparsifier is SparsifierName.COORDINATED:
        return share
    return theory.required_alpha(share, degree, masks)


def _method(
    name: MethodName, sparsifier: SparsifierName, share: float, degree: int, masks: int, ring_bits: int
) -> Method:
    match name:
        case MethodName.CESAR:
            alpha = _alpha(sparsifier, share, degree, masks)
            return Cesar(sparsifier=sparsifier.make(alpha), masking_requirement=masks, ring_bits=ring_bits)
        case MethodName.SECAGG:
            return SecureAggregation(ring_bits=ring_bits)
        case MethodName.DPSGD:
            return DPSGD(sparsifier=sparsifier.make(share) if share < 1 else None)


@bench_app.command("round")
def bench_round(
    nodes: Nodes = 48,
    degree: Degree = 6,
    params: Params = 89834,
    method: MethodName = MethodName.CESAR,
    sparsifier: SparsifierName = SparsifierName.RANDOM,
    share: Share = 0.30,
    masks: Masks = 1,
    ring_bits: RingBits = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time; the median counts.")] = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time a whole round of all nodes against the keystream alone.

    The floor makes one 32-bit keystream word per parameter for every (receiver, sender, partner) of the
    graph, with the cipher alone, on the same cores.
    """
    graph = _regular_graph(nodes, degree, seed)
    chosen = _method(method, sparsifier, share, degree, masks, ring_bits)
    with Console(stderr=True).status("starting") as status:
        result = bench.bench_round(graph, chosen, params, rounds=rounds, seed=seed, progress=status.update)
    fields = asdict(result)
    if not as_json:
        sent = fields.pop("bytes_per_node")
        fields |= {f"{name} bytes per node": f"{count:,.0f}" for name, count in sent.items()}
        fields["peak_rss_bytes"] = f"{result.peak_rss_bytes:,}"
    _show(f"{nodes} nodes, degree {degree}, {params:,} parameters", fields, as_json=as_json)


@bench_app.command("peers")
def bench_peers(
    peers: Annotated[int, typer.Option(min=3, help="How many peers, all neighbours of one another.")] = 4,
    params: Annotated[int, typer.Option(min=1, help="d, the number of parameters.")] = 1_000_000,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="The fraction to share.")] = 0.30,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to time; the median counts.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Time real peers over mutual TLS on this machine, against the bytes and the keystream alone."""
    from cesar.peer.bench import bench_peers as measure  # noqa: PLC0415  (only this command needs gRPC)

    with Console(stderr=True).status("making a network") as status:
        result = measure(peers, params, share=share, rounds=rounds, progress=status.update)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    table = Table(title=f"{peers} peers, {params:,} parameters", show_header=False)
    for name, value in asdict(result).items():
        table.add_row(name.replace("_", " "), "unknown" if value is None else f"{value:,.3f}")
    Console().print(table)


@bench_app.command("bytes")
def bench_bytes(
    nodes: Nodes = 48,
    degree: Degree = 6,
    params: Params = 89834,
    sparsifier: SparsifierName = SparsifierName.TOPK,
    share: Share = 0.30,
    masks: Masks = 1,
    ring_bits: RingBits = 32,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's own exchange on both sides.")] = False,
    graphs: Annotated[int, typer.Option(min=1, help="Random graphs to average over.")] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare what CESAR sends with D-PSGD at the same measured share, on independent selections."""
    alpha = _alpha(sparsifier, share, degree, masks)
    with Console(stderr=True).status("counting") as status:
        result = bench.bench_bytes(
            [_regular_graph(nodes, degree, seed + k) for k in range(graphs)],
            Cesar.paper(sparsifier=sparsifier.make(alpha), masking_requirement=masks)
            if paper
            else Cesar(sparsifier=sparsifier.make(alpha), masking_requirement=masks, ring_bits=ring_bits),
            lambda measured: (DPSGD.paper if paper else DPSGD)(sparsifier=sparsifier.make(measured)),
            params,
            seed=seed,
            progress=status.update,
        )
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    table = Table(title=f"Bytes that a node sends per round, {graphs} graph(s)")
    for heading in ("", "CESAR", "D-PSGD"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, count in result.cesar.items():
        table.add_row(name, f"{count:,.0f}", f"{result.dpsgd[name]:,.0f}")
    table.add_section()
    table.add_row("all", f"{sum(result.cesar.values()):,.0f}", f"{sum(result.dpsgd.values()):,.0f}")
    console.print(table)
    low, high = min(result.ratios), max(result.ratios)
    console.print(f"share {result.shared:.4f}, ratio [bold]{result.ratio:.4f}[/] ({low:.4f} to {high:.4f})")


@app.command("explain")
def explain_round(as_json: AsJson = False) -> None:
    """One secure round of eight nodes: what each learned, what it saw, and what it cost."""
    result, learned, glimpse = explain.secure_round()
    compared = [(name, outcome.total_bytes, outcome.shared) for name, outcome in explain.compare()]
    crashed, _, _ = explain.secure_round(crashes={3: "after_coordination"})
    if as_json:
        rows = [{"method": name, "bytes": sent, "shared": shared} for name, sent, shared in compared]
        fields = {"learned": [asdict(row) for row in learned], "glimpse": asdict(glimpse), "methods": rows}
        typer.echo(json.dumps(fields))
        return
    console.print(
        f"\n[bold]{explain.NODES} nodes average their models of {explain.SIZE:,} parameters with CESAR; each has "
        f"{explain.DEGREE} neighbours.[/]\n"
        "Each selects parameters at random and shares those that another neighbour of the receiver\n"
        f"selected too ({result.shared:.1%} of all). Pairwise masks hide every value and cancel in the sum.\n",
        soft_wrap=True,
    )
    _show_learned(learned)
    _show_glimpse(glimpse)
    _show_crash(crashed, result)
    _show_costs(compared)


def _show_learned(learned: list[explain.Learned]) -> None:
    table = Table(title="What each node learned, and what it sent")
    table.add_column("node", justify="right", no_wrap=True)
    table.add_column("neighbours", no_wrap=True)
    for heading in ("averaged", "models", "error", "coord. B", "values B", "other"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in learned:
        sent = dict(row.sent)
        table.add_row(
            str(row.node),
            " ".join(map(str, row.neighbours)),
            f"{row.averaged:,}",
            f"{row.mean_group:.2f}",
            f"{row.largest_error:.0e}",
            f"{sent.pop('coordination'):,}",
            f"{sent.pop('values'):,}",
            f"{sum(sent.values()):,}",
        )
    console.print(table)
    console.print(
        "averaged: parameters that are now a mean, of so many models on average\n"
        "error: the largest difference to the same mean computed in the clear; B: bytes sent\n",
        style="dim",
    )


def _show_glimpse(glimpse: explain.Glimpse) -> None:
    table = Table(title=f"What node {glimpse.receiver} saw of node {glimpse.sender}'s model")
    table.add_column("true value (never sent)", justify="right")
    table.add_column("masked word on the wire", justify="right")
    for value, word in zip(glimpse.values, glimpse.words, strict=True):
        table.add_row(f"{value:+.6f}", f"0x{word:08x}")
    console.print(table)


def _show_crash(crashed: cesar.RoundResult, whole: cesar.RoundResult) -> None:
    graph, models = explain.network()
    hit = sorted(graph[3])
    before = (whole.vectors[hit] != models[hit]).mean()
    after = (crashed.vectors[hit] != models[hit]).mean()
    console.print(
        f"\nIf node 3 crashes after the coordination, its neighbours {', '.join(map(str, hit))} lose only\n"
        f"what it had selected: they average {after:.1%} of their parameters instead of {before:.1%}.\n"
    )


def _show_costs(compared: list[tuple[str, int, float]]) -> None:
    table = Table(title="What a round of all nodes costs")
    table.add_column("method")
    for heading in ("shared", "bytes", "of full"):
        table.add_column(heading, justify="right")
    for name, sent, shared in compared:
        table.add_row(name, f"{shared:.1%}", f"{sent:,}", f"{sent / compared[0][1]:.2f}")
    console.print(table)
