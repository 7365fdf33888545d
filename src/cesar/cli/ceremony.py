"""What an authority signs: requests that somebody has compared with what their sites read out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.cli.output import console
from cesar.peer.trust import certificates, keyfiles

Digests = Annotated[
    list[str] | None,
    typer.Option(
        "--sha256",
        metavar="HEX",
        help="What the site reads out of its request.json, once for each; else it is asked for on the terminal.",
    ),
]


def read_requests(paths: list[Path], agreed: list[str]) -> dict[NodeId, certificates.Request]:
    """Requests that were compared, each for a node of its own."""
    requests: dict[NodeId, certificates.Request] = {}
    for path in paths:
        made = read_request(path, agreed)
        if made.node.id in requests:
            raise ConfigError(
                f"{path}: there is another request for node {made.node.id}; each needs its own id"
            )
        requests[made.node.id] = made
    return requests


def read_request(path: Path, agreed: list[str]) -> certificates.Request:
    """A request that the person who signs has compared with what the site reads out.

    Raises:
        ConfigError: it is another, or nobody has compared it.
    """
    data = keyfiles.read_public(path)
    made, digest = certificates.Request.parse(data, str(path)), keyfiles.file_fingerprint(data)
    whose = "which is its own owner" if made.node.owner is None else f"a peer of {made.node.owner}"
    console.print(
        f"Request of {escape(made.node.host_name)}, {escape(whose)}; its SHA-256 must be the one that the site reads out:\n{digest}",
        soft_wrap=True,
    )
    if agreed:
        if digest not in {"".join(word.split()).lower() for word in agreed}:
            raise ConfigError(
                f"{path} has another SHA-256 than those given; ask its site to read it out again, and sign nothing else"
            )
    elif not sys.stdin.isatty():
        raise ConfigError(
            f"{path}: give the SHA-256 that its site reads out with --sha256, or sign at a terminal"
        )
    elif not typer.confirm("Does the site read out the same?"):
        raise ConfigError(f"{path} was not signed; ask its site to send it again")
    return made
