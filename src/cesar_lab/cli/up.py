"""`cesar network up`: all peers of a network as processes of this machine, beside the simulator."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cesar.base.errors import CesarError, ConfigError
from cesar.base.exits import Exit
from cesar.cli.options import AsJson, Net, Settle
from cesar.cli.output import notices
from cesar.cli.process import need, terminated
from cesar.methods import SETTLE_ROUNDS

if TYPE_CHECKING:
    from cesar.peer.ops.processes import LocalNetwork, Process

TRAINER, RESULT = "cesar_lab.run.peers:train", "result.json"
_LOOK_SECONDS = 0.5


def command(
    net: Net,
    dataset: Annotated[str, typer.Option(help="What to train on: digits needs no download.")] = "digits",
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to train and average.")] = 60,
    settle: Settle = SETTLE_ROUNDS,
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 8,
    seed: Annotated[int, typer.Option(help="Of partition, first model and batches.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Try a network out: all its peers as processes of this machine, and the same training in the simulator."""
    need("peers", "grpc", "pydantic", "prometheus_client", "jinja2")
    need("lab", "torch", "sklearn", "safetensors")
    from cesar.peer.driver.state import FILE, StateFile  # noqa: PLC0415
    from cesar.peer.ops.processes import LocalNetwork  # noqa: PLC0415

    if dataset != "digits":
        raise ConfigError(
            f"{dataset}: networks are tried out with digits; train on other data with `cesar peer run --train`"
        )
    settings = {
        "rounds": rounds,
        "settle": settle,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
    }
    with terminated(), LocalNetwork(net) as local:
        folders = [peer.config.folder for peer in local.peers]
        first = max(StateFile(folder / FILE).state.next_round for folder in folders)
        given = [f"--set={name}={value}" for name, value in {**settings, "first": first}.items()]
        for folder in folders:
            (folder / RESULT).unlink(missing_ok=True)
        local.start(["--train", TRAINER, *given])
        try:
            _follow(local, transient=as_json)
        except KeyboardInterrupt:
            local.stop()
            notices.print("Stopped; all peers have ended.")
            raise typer.Exit(Exit.INTERRUPTED) from None
    _compare(local, settings, as_json=as_json)
    worst = max(peer.ended for peer in local.peers)
    if worst is not Exit.FINE:
        short = ", ".join(str(peer.id) for peer in local.peers if peer.ended is worst)
        notices.print(
            escape(f"The run ends with code {worst.value}, as said by node(s) {short}: {worst.meaning}.")
        )
        raise typer.Exit(worst)


def _follow(local: LocalNetwork, *, transient: bool) -> None:
    """Show how everybody is doing, until nobody runs any more."""
    with Live(console=notices, auto_refresh=False, transient=transient) as live:
        runs = True
        while runs:
            runs = local.look()
            live.update(_table(local), refresh=True)
            if runs:
                time.sleep(_LOOK_SECONDS)
    if not notices.is_terminal:
        notices.print()  # in a file, the table ends without a line break


def _table(local: LocalNetwork) -> Table:
    table = Table(title=f"{local.roster.network}: {len(local.peers)} peers")
    table.add_column("peer", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("round", "links", "shared", "sent", "missing", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for peer in local.peers:
        name = escape(f"{peer.id} {local.roster.members[peer.id].name}")
        now = peer.seen
        outcome = _result(peer)
        if not now:
            table.add_row(name, peer.state)
            continue
        near = now["neighbours"]
        accuracy = outcome.get("accuracy", now["figures"].get("accuracy"))
        table.add_row(
            name,
            peer.state,
            str(outcome.get("round", now["round"])),
            f"{sum(neighbour['up'] for neighbour in near)}/{len(near)}",
            "" if now["shared"] is None else f"{now['shared']:.1%}",
            f"{outcome.get('bytes', sum(now['bytes'].values())) / 1e6:.2f} MB",
            str(outcome.get("dropouts", now["dropouts"])),
            "" if accuracy is None else f"{accuracy:.2%}",
        )
    return table


def _result(peer: Process) -> dict[str, Any]:
    """What the trainer has left in the folder; nothing before the end."""
    try:
        outcome: dict[str, Any] = json.loads((peer.config.folder / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return outcome


def _compare(local: LocalNetwork, settings: dict[str, Any], *, as_json: bool) -> None:
    """Beside what the simulator reaches on the same graph, with the same method and seed."""
    from cesar_lab.run.peers import Recipe, simulate  # noqa: PLC0415  (torch takes seconds)

    results = [_result(peer) for peer in local.peers if peer.state == "done"]
    if not results:
        raise CesarError("no peer reached the end")
    killed = [peer.id for peer in local.peers if peer.state == "killed"]
    config = local.peers[0].config
    with notices.status("simulating the same"):
        simulated = simulate(
            Recipe(**settings), local.roster.graph, config.method(local.roster), config.tables.rounds.every
        )
    accuracy = sum(result["accuracy"] for result in results) / len(results)
    if as_json:
        fields = {
            "accuracy": accuracy,
            "simulated_accuracy": simulated,
            "difference": accuracy - simulated,
            "killed": killed,
            "peers": results,
        }
        typer.echo(json.dumps(fields))
        return
    if killed:
        typer.echo(f"Killed on the way: {', '.join(map(str, killed))}")
    typer.echo(
        f"Accuracy, mean over the peers: {accuracy:.2%}; in the simulator: {simulated:.2%}; "
        f"difference: {100 * (accuracy - simulated):+.2f} points"
    )
