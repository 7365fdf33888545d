"""`cesar peer run`, `cesar peer check` and `cesar network up`: peers that really talk to one another."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cesar.cli_network import AsJson, Net, network_app, peer_app
from cesar.errors import CesarError, ConfigError

if TYPE_CHECKING:
    from cesar.peer.local import LocalNetwork, Process

__all__ = ["network_app", "peer_app"]

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A peer's folder, or its peer.toml.")]
TRAINER, RESULT = "cesar.experiment.peers:train", "result.json"
_LOOK_SECONDS = 0.5


@peer_app.command("run")
def run(
    folder: Folder,
    train: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="The training loop; it is called with the peer.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="name=value for the function; may be given several times."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")
    ] = False,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait for neighbours; default rounds.ceiling.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
) -> None:
    """Join the network and train with the function, which averages where it likes; ends at Ctrl-C and SIGTERM.

    The function gets a `cesar.Peer`. Logs go to standard error.
    """
    _need("peers", "grpc", "pydantic", "prometheus_client")
    from cesar.peer import logs, troubles  # noqa: PLC0415  (only these commands need gRPC)
    from cesar.peer.config import PeerConfig  # noqa: PLC0415
    from cesar.peer.identity import Identity  # noqa: PLC0415
    from cesar.peer.peer import Peer  # noqa: PLC0415

    arguments, config = _arguments(settings or []), PeerConfig.load(folder)
    node = Identity.load(config.folder).id  # what is wrong here shows before a long import
    function = _function(train)
    joined: list[Peer] = []

    def current() -> int | None:
        return joined[0].round if joined else None

    begin, totals = time.monotonic(), None
    with (
        _terminated(),
        troubles.caught() as stream,
        logs.written(stream, node, current, as_json=log_json) as log,
    ):
        try:
            with Peer.join(folder, resume=resume, wait=wait) as peer:
                joined.append(peer)
                try:
                    function(peer, **arguments)
                    log.info("the training function has returned")
                finally:
                    totals = peer.totals()
        except KeyboardInterrupt:
            log.info("stopped by a signal")
    typer.echo(_summary(node, totals, time.monotonic() - begin))


@peer_app.command("check")
def check(
    folder: Folder,
    wait: Annotated[float, typer.Option(min=0, help="Seconds for the neighbours to come.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """See before the real thing whether this peer could train: files, dates, port, neighbours, a dummy secure round.

    Run it at several sites at the same time; it disturbs nobody who trains. Exit code 1 if something is wrong.
    """
    _need("peers", "grpc", "pydantic", "prometheus_client")
    from cesar.peer import troubles  # noqa: PLC0415
    from cesar.peer.check import Check  # noqa: PLC0415

    waiting = f"waiting for neighbours, {wait:.0f} seconds at most"
    try:
        with troubles.caught() as real, Console(file=real).status(waiting):
            findings = asyncio.run(Check(folder, wait).run())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    fine = all(finding.ok is not False for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": fine, "findings": [asdict(finding) for finding in findings]}))
    else:
        marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]![/]"}
        for finding in findings:
            Console().print(
                f"{marks[finding.ok]} [bold]{escape(finding.item)}[/]  {escape(finding.text)}",
                soft_wrap=True,
                highlight=False,
            )
    if not fine:
        raise typer.Exit(1)


def _need(extra: str, *modules: str) -> None:
    """Say what to install, before something is half done."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"this command needs {module}: pip install 'cesar[{extra}]'")


def _summary(node: int, totals: dict[str, Any] | None, seconds: float) -> str:
    if totals is None:
        return f"node {node} was stopped before it had joined"
    figures = "".join(f", {name} {value:.4g}" for name, value in totals["figures"].items())
    return (
        f"node {node}: {totals['rounds_done']} rounds in {seconds:.1f} s, {sum(totals['bytes'].values()):,} bytes sent, "
        f"{totals['dropouts']} times a neighbour was missing{figures}"
    )


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """While this lasts, SIGTERM and SIGINT end the program as Ctrl-C does, also where a shell had SIGINT ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _function(name: str) -> Callable[..., object]:
    """The function that package.module:function names; modules in the current folder are found too."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"--train takes package.module:function, not {name!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--train {name}: there is no module {error.name!r}; install it, or start where it lies"
        ) from None
    except AttributeError:
        raise ConfigError(f"--train {name}: {module} has no {attribute!r}") from None
    if not callable(function):
        raise ConfigError(f"--train {name}: that is not a function")
    return function  # type: ignore[no-any-return]


def _arguments(settings: list[str]) -> dict[str, object]:
    arguments: dict[str, object] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"--set takes name=value, for example rounds=60; not {setting!r}")
        try:
            arguments[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            arguments[name] = text
    return arguments


@network_app.command("up")
def up(
    net: Net,
    dataset: Annotated[str, typer.Option(help="What to train on: digits needs no download.")] = "digits",
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds to average.")] = 60,
    learning_rate: Annotated[float, typer.Option(help="Of SGD.")] = 0.1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 8,
    seed: Annotated[int, typer.Option(help="Of partition, first model and batches.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Try a network out: all its peers as processes of this machine, and the same training in the simulator."""
    _need("peers", "grpc", "pydantic", "prometheus_client")
    _need("sim", "torch", "sklearn", "safetensors")
    from cesar.peer.local import LocalNetwork  # noqa: PLC0415
    from cesar.peer.state import FILE, StateFile  # noqa: PLC0415

    if dataset != "digits":
        raise ConfigError(
            f"{dataset}: networks are tried out with digits; train on other data with `cesar peer run --train`"
        )
    with _terminated(), LocalNetwork(net) as local:
        folders = [peer.config.folder for peer in local.peers]
        first = max(StateFile(folder / FILE).state.next_round for folder in folders)
        settings = {"rounds": rounds, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed}
        given = [f"--set={name}={value}" for name, value in {**settings, "first": first}.items()]
        for folder in folders:
            (folder / RESULT).unlink(missing_ok=True)
        local.start(["--train", TRAINER, *given])
        screen = Console(stderr=True)
        try:
            with Live(console=screen, auto_refresh=False, transient=as_json) as live:
                while local.look():
                    live.update(_table(local), refresh=True)
                    time.sleep(_LOOK_SECONDS)
                live.update(_table(local), refresh=True)
            if not screen.is_terminal:
                screen.print()  # in a file, the table ends without a line break
        except KeyboardInterrupt:
            local.stop()
            screen.print("Stopped; all peers have ended.")
            raise typer.Exit(130) from None
    _compare(local, settings, as_json=as_json)


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
    from cesar.experiment.peers import Recipe, simulate  # noqa: PLC0415  (torch takes seconds)

    results = [_result(peer) for peer in local.peers if peer.state == "done"]
    if not results:
        raise CesarError("no peer reached the end")
    killed = [peer.id for peer in local.peers if peer.state == "killed"]
    config = local.peers[0].config
    with Console(stderr=True).status("simulating the same"):
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
