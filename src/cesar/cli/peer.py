"""`cesar peer`: one peer of a network, that is its keys, checks before the real thing, and training."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from cesar.base import files
from cesar.base.errors import CanaryError, ConfigError
from cesar.base.exits import Exit
from cesar.base.types import NodeId
from cesar.cli.options import AsJson, Settle
from cesar.cli.output import console
from cesar.cli.process import need, terminated
from cesar.methods import SETTLE_ROUNDS
from cesar.peer.trust import certificates, changes, identity, keyfiles, passphrases
from cesar.peer.trust.address import check_address
from cesar.peer.trust.foreign import escaped

if TYPE_CHECKING:
    from cesar.peer.api.peer import Peer

app = typer.Typer(no_args_is_help=True, help="One peer of a network: keys, checks, training.")

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", envvar="CESAR_PEER", help="A peer's folder, or its peer.toml.")
]


@app.command("request")
def make_request(
    network_name: Annotated[str, typer.Option("--network", help="The network's name.")],
    node: Annotated[int, typer.Option("--id", help="This peer's id, as agreed with the authority.")],
    out: Annotated[Path, typer.Option(help="Folder for the keys; existing keys are never overwritten.")],
    name: Annotated[str | None, typer.Option(help="What people call this peer, such as hospital-x.")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="host:port where neighbours reach this peer; leave it out where no port can be opened."
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            help="Who runs this peer, such as hospital; the same for all peers of one owner, which count as one "
            "colluder. Leave it out if this is its owner's only peer."
        ),
    ] = None,
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase",
            help="Protect the keys by a passphrase: CESAR_PASSPHRASE_FILE, CESAR_PASSPHRASE, or it is asked for.",
        ),
    ] = False,
) -> None:
    """Make keys for this site, and a request that the network's authority can sign.

    The keys stay in the folder. Send request.json to the network's authority, and put its answer
    beside the keys with `cesar peer install`.
    """
    name = None if name is None else certificates.check_name(name)
    owner = None if owner is None else certificates.check_owner(owner)
    address = None if address is None else check_address(address)
    secret = passphrases.chosen(passphrases.PEER, "the new keys") if passphrase else None
    made = certificates.Request(
        csr=identity.make_keys(out, network_name, node, owner, secret), name=name, address=address
    ).to_bytes()
    _hand_over(out, made, f"Made keys in {escape(str(out))}; they stay there. ")


def _hand_over(folder: Path, request: bytes, before: str = "") -> None:
    """Write a request into a folder, and say what to do with it."""
    path = folder / keyfiles.REQUEST
    files.write(path, request)
    console.print(
        f"{before}Send {escape(str(path))} to the network's authority, and compare its SHA-256 over the telephone:\n"
        f"{keyfiles.file_fingerprint(request)}",
        soft_wrap=True,
    )


@app.command("renew")
def renew(folder: Folder) -> None:
    """Ask for a new certificate before the old one ends: new keys of both kinds beside the old, and a request for them.

    The running peer goes on with what it has. It shows the new certificate as soon as certificate.pem and the roster that
    lists it lie in the folder.
    """
    need("peers", "pydantic")
    from cesar.peer.trust.config import PeerConfig  # noqa: PLC0415

    keys = PeerConfig.load(folder).keys
    _hand_over(keys, identity.renewal(keys).to_bytes())


@app.command("install")
def install(
    folder: Folder,
    source: Annotated[
        Path, typer.Option("--from", metavar="SIGNED", help="The folder that came from the authority.")
    ],
    sha256: Annotated[
        str | None,
        typer.Option(
            "--sha256",
            metavar="HEX",
            help="The SHA-256 of ca.pem that the authority reads out; the first time.",
        ),
    ] = None,
) -> None:
    """Put what the authority signed beside the keys: certificate, ca.pem, roster and peer.toml, each checked, and nothing else.

    The certificate must be the one that this site's own request asked for. Keys are never touched.
    """
    need("peers", "pydantic")
    from cesar.peer.trust import install as installing  # noqa: PLC0415

    done = installing.install(folder, source, sha256)
    for name, said in done.taken.items():
        console.print(f"Took {name}: {escape(said)}", soft_wrap=True, highlight=False)
    for name in done.kept:
        console.print(f"Kept this site's own {name}; the one that came is another.", soft_wrap=True)
    if done.ignored:
        names = ", ".join(map(repr, done.ignored[:20]))
        console.print(f"Left alone what nobody asked for: {escape(names)}", soft_wrap=True, highlight=False)


@app.command("approve")
def approve(
    folder: Folder,
    sha256: Annotated[
        str | None,
        typer.Option(
            "--sha256", metavar="HEX", help="The digest of the roster to approve, instead of a question."
        ),
    ] = None,
) -> None:
    """See in words what a newer roster changes, and approve it; for peers with `approve = "ask"` in peer.toml.

    A running peer takes it up at its next round. Until then it goes on with the old one, and with those who have that.
    """
    need("peers", "pydantic")
    from cesar.peer.trust.config import PeerConfig  # noqa: PLC0415

    config = PeerConfig.load(folder)
    authority = keyfiles.read_public(config.keys / keyfiles.CA_CERTIFICATE)
    found = changes.waiting((config.state, config.folder), authority)
    if found is None:
        console.print("No roster waits for approval.")
        return
    old, new = found
    said = changes.differences(old, new, NodeId(config.tables.peer.id))
    console.print(
        f"Version {new.version} of the roster of {escape(new.network)}, after version {old.version}:"
    )
    for line in said:
        console.print(f"· {escape(line)}", soft_wrap=True, highlight=False)
    console.print(new.digest.hex(), style="dim", soft_wrap=True, highlight=False)
    if sha256 is not None and sha256.lower() != new.digest.hex():
        raise ConfigError(
            "the roster that waits has another digest than --sha256; look again at what it changes"
        )
    if sha256 is None and not sys.stdin.isatty():
        raise ConfigError("give the digest above with --sha256, or approve at a terminal")
    if sha256 is None and not typer.confirm("Approve it?"):
        raise typer.Exit(1)
    changes.approve(config.state, new)
    changes.append_to_log(config.state, "approved", new, said, datetime.now(UTC))
    console.print("Approved.")


@app.command("run")
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
    canary: Annotated[
        bool,
        typer.Option(
            "--canary",
            help="First make a test round with a random model of the same size, together with all of the cell; exit code 5 if it fails.",
        ),
    ] = False,
    settle: Settle = SETTLE_ROUNDS,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
) -> None:
    """Join the network and train with the function, which averages where it likes; ends at Ctrl-C and SIGTERM.

    The function gets a `cesar.Peer`. When it has returned, the module that it averaged last is settled with the neighbours'
    and saved as the peer's checkpoint, unless the function has called `peer.settle` itself. Logs go to standard error.
    """
    need("peers", "grpc", "pydantic", "prometheus_client", "jinja2")
    from cesar.peer.api.peer import Peer  # noqa: PLC0415
    from cesar.peer.net import grpc_errors  # noqa: PLC0415  (only these commands need gRPC)
    from cesar.peer.ops import logs  # noqa: PLC0415  (only these commands need gRPC)
    from cesar.peer.trust.config import PeerConfig  # noqa: PLC0415
    from cesar.peer.trust.identity import Identity  # noqa: PLC0415

    arguments, config = _arguments(settings or []), PeerConfig.load(folder)
    node = Identity.load(config.keys).id  # what is wrong here shows before a long import
    function = _function(train)
    joined: list[Peer] = []

    def current() -> int | None:
        return joined[0].round if joined else None

    begin, totals = time.monotonic(), None
    with (
        terminated(),
        grpc_errors.caught() as stream,
        logs.written(stream, node, current, as_json=log_json) as log,
    ):
        try:
            with Peer.join(folder, resume=resume, wait=wait, canary=canary) as peer:
                joined.append(peer)
                try:
                    function(peer, **arguments)
                    log.info("the training function has returned")
                    _settle(peer, settle)
                finally:
                    totals = peer.totals()
        except KeyboardInterrupt:
            log.info("stopped by a signal")
        except CanaryError as error:
            typer.echo(f"Training has not begun: {error}", err=True)
            raise typer.Exit(Exit.NO_CANARY) from None
    typer.echo(_summary(node, totals, time.monotonic() - begin))
    if joined and (ended := _ended(joined[0])) is not Exit.FINE:
        typer.echo(f"The run ends with code {ended.value}: {_remark(joined[0], ended)}.", err=True)
        raise typer.Exit(ended)


@app.command("check")
def check(
    folder: Folder,
    wait: Annotated[float, typer.Option(min=0, help="Seconds for the neighbours to come.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """See before the real thing whether this peer could train: files, dates, port, neighbours, a dummy secure round.

    Run it at several sites at the same time; it disturbs nobody who trains. Exit code 1 if something is wrong.
    """
    need("peers", "grpc", "pydantic", "prometheus_client", "jinja2")
    from cesar.peer.net import grpc_errors  # noqa: PLC0415
    from cesar.peer.ops.check import Check  # noqa: PLC0415

    waiting = f"waiting for neighbours, {wait:.0f} seconds at most"
    try:
        with grpc_errors.caught() as real, Console(file=real).status(waiting):
            findings = asyncio.run(Check(folder, wait).run())
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    fine = all(finding.ok is not False for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": fine, "findings": [asdict(finding) for finding in findings]}))
    else:
        marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]![/]"}
        for finding in findings:
            console.print(
                f"{marks[finding.ok]} [bold]{escape(escaped(finding.item))}[/]  {escape(escaped(finding.text))}",
                soft_wrap=True,
                highlight=False,
            )
    if not fine:
        raise typer.Exit(Exit.WRONG)


def _ended(peer: Peer) -> Exit:
    """How a run that has come to its end went."""
    if not peer.quorum:
        return Exit.NO_QUORUM
    return Exit.NOT_SETTLED if peer.alone else Exit.FINE


def _remark(peer: Peer, ended: Exit) -> str:
    if ended is Exit.NO_QUORUM and peer.present is not None:
        return f"{ended.meaning.replace('`', '')} ({peer.present:.0%})"
    return ended.meaning


def _settle(peer: Peer, rounds: int) -> None:
    """Average what was trained without training, and keep it."""
    if rounds and not peer.settled and peer.last is not None:
        model, parameters = peer.last
        peer.settle(model, rounds=rounds, parameters=parameters)
        peer.save(model)


def _summary(node: int, totals: dict[str, Any] | None, seconds: float) -> str:
    if totals is None:
        return f"node {node} was stopped before it had joined"
    figures = "".join(f", {name} {value:.4g}" for name, value in totals["figures"].items())
    return (
        f"node {node}: {totals['rounds_done']} rounds in {seconds:.1f} s, {sum(totals['bytes'].values()):,} bytes sent, "
        f"{totals['dropouts']} times a neighbour was missing{figures}"
    )


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
