"""`cesar network watch`: one live page of peers at their sites, from their status pages."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cesar.cli.options import WebPort
from cesar.cli.output import console
from cesar.cli.process import need, terminated
from cesar.errors import ConfigError

if TYPE_CHECKING:
    from cesar.peer.watch import Place

TOKEN_VARIABLE = "CESAR_STATUS_TOKEN"  # noqa: S105  (the name of the variable)


def command(
    peers: Annotated[
        str,
        typer.Option(help="Addresses of status pages, such as http://127.0.0.1:7500,https://b.example.org."),
    ],
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="A private file with `ADDRESS TOKEN` on each line, for pages that want a token. The file that "
            f"${TOKEN_VARIABLE} names has one token for all others."
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Send tokens over http:// to other machines, too: whoever is on the way reads them.",
        ),
    ] = False,
    port: WebPort = 0,
) -> None:
    """Show a network live, on a page for this machine: who is there, in which round, which groups wait, and curves.

    It asks the peers' status pages once a second, and ends at Ctrl-C. Curves begin when it is started.
    """
    need("peers", "grpc", "pydantic", "prometheus_client", "jinja2")
    from cesar.peer.board import Board  # noqa: PLC0415
    from cesar.peer.watch import LivePage, Watcher  # noqa: PLC0415

    places = _places(peers, tokens)
    exposed = [place.url for place in places if place.exposed]
    if exposed and not plain:
        raise ConfigError(
            f"the token for {exposed[0]} would travel in clear; use https:// or a tunnel, or accept that with --plain"
        )
    board = Board([place.url for place in places])
    with terminated(), LivePage(board, port) as page:
        watcher = Watcher(places, board)
        console.print(f"{len(places)} peer(s), live at {page.url} until Ctrl-C", soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            watcher.close()


def _places(peers: str, tokens: Path | None) -> list[Place]:
    from cesar.peer.watch import Place  # noqa: PLC0415

    urls = [Place.parse(word).url for word in map(str.strip, peers.split(",")) if word]
    if not urls or len(set(urls)) < len(urls):
        raise ConfigError(
            "--peers needs the address of each peer's status page once, with commas between them"
        )
    known = {} if tokens is None else _read(tokens)
    if not known.keys() <= set(urls):
        raise ConfigError(f"{tokens}: {min(known.keys() - set(urls))} is not among the addresses of --peers")
    named = os.environ.get(TOKEN_VARIABLE)
    common = "" if named is None else _text(Path(named)).strip()
    return [Place(url, _check(known.get(url, common))) for url in urls]


def _read(tokens: Path) -> dict[str, str]:
    """The file's lines; what is wrong with one is said without what it holds."""
    from cesar.peer.watch import Place  # noqa: PLC0415

    found = {}
    for number, line in enumerate(_text(tokens).splitlines(), 1):
        words = line.split()
        if words and not line.startswith("#"):
            if len(words) != 2:
                raise ConfigError(f"{tokens}, line {number}: write the address, a space and the token")
            found[Place.parse(words[0]).url] = words[1]
    return found


def _text(path: Path) -> str:
    from cesar.peer.keyfiles import read_private  # noqa: PLC0415

    return read_private(path).decode(errors="replace")


def _check(token: str) -> str:
    """A header can carry it."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            "a token has characters that no header can carry; make one with `openssl rand -hex 32`"
        )
    return token
