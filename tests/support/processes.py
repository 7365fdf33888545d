"""Peers as processes of their own, which a test kills, stops and starts again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from cesar.peer.trust.folder import Network


@dataclass
class Processes:
    """Of the peers of a network.

    Attributes:
        namespaces: the network namespace of a node, where it has one of its own.
        pause: seconds that a local step takes.
        kills: how many were killed.
    """

    network: Network
    namespaces: dict[int, str] = field(default_factory=dict)
    pause: float = 0.1
    kills: int = 0
    processes: dict[int, BaseProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["support.worker", "support.cell_worker"])
        os.environ |= {"CESAR_WORKER_WARM": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def job(self, node: int) -> tuple[Callable[..., None], tuple[object, ...]]:
        """What the process of a node runs, and with what."""
        raise AssertionError("a fleet says what its processes do")

    @property
    def nodes(self) -> list[int]:
        return sorted(self.network.roster.members)

    def folder(self, node: int) -> Path:
        return self.network.folder / f"peer-{node}"

    def start(self, node: int) -> None:
        target, arguments = self.job(node)
        self.processes[node] = self.context.Process(target=target, args=arguments, daemon=True)
        self.processes[node].start()

    def kill(self, node: int) -> None:
        self.processes[node].kill()
        self.processes[node].join()
        self.kills += 1

    def signal(self, node: int, number: signal.Signals) -> None:
        pid = self.processes[node].pid
        assert pid is not None
        os.kill(pid, number)

    def tails(self, nodes: Iterable[int] | None = None) -> str:
        """The last lines of their logs."""
        return "\n".join(
            f"-- {i}\n" + "\n".join((self.folder(i) / "log").read_text().splitlines()[-12:])
            for i in nodes or self.nodes
            if (self.folder(i) / "log").exists()
        )

    def __enter__(self) -> Self:
        for node in self.network.roster.members:
            self.start(node)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join()
