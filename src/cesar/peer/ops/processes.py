"""All peers of a network's folder as processes of this machine, for trying it out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, Self

from cesar.base.errors import CesarError, ConfigError
from cesar.base.exits import Exit
from cesar.base.types import NodeId
from cesar.peer.trust import roster as rosters
from cesar.peer.trust.address import split
from cesar.peer.trust.config import ENVIRONMENT, PeerConfig
from cesar.peer.trust.keyfiles import AGREEMENT_KEY, CA_CERTIFICATE, TLS_KEY, read_public
from cesar.peer.trust.roster import Roster

LOG = "run.log"
TAIL_LINES = 15
STOP_SECONDS = 15.0
ENDED = (Exit.FINE, Exit.NOT_SETTLED, Exit.NO_QUORUM)
"""Codes of a peer that has trained to its end, with whomever."""


@dataclass(slots=True)
class Process:
    """One peer: its settings, its process, and what its status page said last."""

    config: PeerConfig
    running: subprocess.Popen[bytes] | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> NodeId:
        return NodeId(self.config.tables.peer.id)

    @property
    def ended(self) -> Exit:
        """How it has ended, if it has."""
        code = None if self.running is None else self.running.poll()
        return Exit(code) if code in ENDED else Exit.FINE

    @property
    def state(self) -> str:
        """In a word."""
        code = None if self.running is None else self.running.poll()
        if code is None:
            return "starts" if not self.seen else "runs"
        return "done" if code in ENDED else "killed" if code == -signal.SIGKILL else "failed"

    def look(self) -> None:
        """Ask its status page."""
        address = self.config.tables.peer.status
        if address is None or self.state not in {"starts", "runs"}:
            return
        with (
            contextlib.suppress(OSError, HTTPException, ValueError),
            contextlib.closing(HTTPConnection(address, timeout=1)) as page,
        ):
            page.request("GET", "/status.json")
            self.seen = json.load(page.getresponse())

    def tail(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            text = (self.config.folder / LOG).read_text(encoding="utf-8", errors="replace")
            return "\n".join(text.splitlines()[-TAIL_LINES:])
        return ""


class LocalNetwork:
    """The peers of a folder; start them in a `with` block, at whose end none of them runs any more."""

    def __init__(self, net: Path) -> None:
        """Read everything and see whether it can run here.

        Raises:
            ConfigError: says what stands in the way.
        """
        authority = net / "ca" / CA_CERTIFICATE
        if not authority.is_file():
            raise ConfigError(f"{net} holds no network; `cesar network init --out {net}` makes one")
        self.roster = Roster.load(net / rosters.FILE, read_public(authority))
        self.peers = [Process(self._config(net, node)) for node in self.roster.members]
        self._check_environment()
        self._check_ports()

    def _config(self, net: Path, node: NodeId) -> PeerConfig:
        folder = net / f"peer-{node}"
        if not all((folder / key).is_file() for key in (TLS_KEY, AGREEMENT_KEY)):
            raise ConfigError(
                f"{folder} has no private keys: node {node} made its own, and runs at its own site with `cesar peer "
                "run`; only a network whose keys were all made here can be tried out here"
            )
        return PeerConfig.load(folder)

    def _check_ports(self) -> None:
        """Take every port for a moment: all must be free, and all different."""
        with contextlib.ExitStack() as stack:
            for peer in self.peers:
                for key in ("listen", "status"):
                    address = getattr(peer.config.tables.peer, key)
                    if address is None:
                        continue
                    host, port = split(address)
                    held = stack.enter_context(
                        socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                    )
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        held.bind((host, port))
                        held.listen()
                    except OSError as error:
                        raise ConfigError(
                            f"peer.{key} of node {peer.id}: {address} cannot be used ({error.strerror}); end what runs "
                            "there, perhaps an earlier `network up`, or make the network with another --port"
                        ) from None

    def _check_environment(self) -> None:
        """What names one peer's folders cannot hold for many."""
        named = [name for name in ENVIRONMENT.values() if os.environ.get(name)]
        if named and len(self.peers) > 1:
            raise ConfigError(f"{', '.join(named)} would hold for all peers of this network; unset it here")

    def start(self, arguments: Sequence[str]) -> None:
        """`cesar peer run` for each, with these further arguments; its output goes to a log in its folder."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for peer in self.peers:
            command = [sys.executable, "-m", "cesar", "peer", "run", str(peer.config.folder), *arguments]
            with _new_log(peer.config.folder / LOG) as log:
                peer.running = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches this process only, and it ends them in good order
                )

    def look(self) -> bool:
        """See how everybody is doing; whether somebody still runs.

        Raises:
            CesarError: a peer has failed; shows the end of its log.
        """
        for peer in self.peers:
            peer.look()
        for peer in self.peers:
            if peer.state == "failed":
                assert peer.running is not None
                raise CesarError(
                    f"node {peer.id} ended with code {peer.running.returncode}; the end of "
                    f"{peer.config.folder / LOG}:\n{peer.tail()}"
                )
        return any(peer.state in {"starts", "runs"} for peer in self.peers)

    def stop(self) -> None:
        """End all processes that were started here: kindly, and after a while not so kindly."""
        ours = [peer.running for peer in self.peers if peer.running is not None]
        for process in ours:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in ours:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _new_log(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
