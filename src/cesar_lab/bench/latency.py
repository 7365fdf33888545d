"""How many trips a round among distant peers takes: each in a network namespace of its own, with a delay on its line (netem).

A round of a small model is nothing but waiting. The last member of the cell comes later than all others in every round, and the clock runs from the
moment when it calls `average` until all members have the new model. What the same takes without a delay is taken off, and the rest is counted in
one-way trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
import numpy as np

from cesar.base.errors import CesarError, ConfigError
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.folder import Network, Plan
from cesar_lab.bench.peers import START_SECONDS, settings

PORT = 7400
LATE_SECONDS = 0.2
"""The last member comes this much later than the others, and four trips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBenchmark:
    """What `cesar bench peers --latency` measured.

    Attributes:
        latency: of one trip, in seconds.
        round_seconds: from the moment when the slowest member is done until all have the new model; median.
        local_seconds: the same without latency.
        trips: the difference, in one-way trips.
    """

    latency: float
    round_seconds: float
    local_seconds: float
    trips: float


def bench_latency(
    peers: int,
    size: int,
    *,
    cells: int,
    rounds: int,
    latency: float,
    progress: Callable[[str], None] = lambda _: None,
) -> LatencyBenchmark:
    """Time rounds with and without a delay of `latency` seconds on every line.

    Raises:
        ConfigError: namespaces or delays cannot be made here; says why.
    """
    if peers >= 2 * cells:
        raise ConfigError(f"--latency measures one cell: use fewer than {2 * cells} peers, or larger --cells")
    with TemporaryDirectory() as place, _lines(peers) as names:
        folder = Path(place) / "bench"
        plan = _Apart(
            name="bench",
            graph=nx.empty_graph(peers),
            settings=settings(1.0, cells),
            requests={},
            host="",
            port=PORT,
            days=1,
        )
        Network.create(folder, plan, datetime.now(UTC))
        taken = {}
        for seconds in (0.0, latency):
            progress(f"{rounds} rounds with {1000 * seconds:g} ms")
            for name in names:
                _run(*delayed(name, seconds))
            taken[seconds] = _measure(folder, names, size, rounds, latency)
    return LatencyBenchmark(
        latency=latency,
        round_seconds=taken[latency],
        local_seconds=taken[0.0],
        trips=(taken[latency] - taken[0.0]) / latency,
    )


class _Apart(Plan):
    """Every peer at an address of its own."""

    def address(self, node: int) -> str | None:
        return f"{_host(node)}:{PORT}"


def _host(node: int) -> str:
    return f"10.78.{node // 200}.{node % 200 + 1}"


def delayed(name: str, seconds: float) -> tuple[str, ...]:
    """The command that has all that leaves a namespace wait."""
    delay = f"{1e6 * seconds:.0f}us"
    return ("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", delay)


def _run(*words: str) -> None:
    """A command of the system that must work.

    Raises:
        ConfigError: it does not; says what it said.
    """
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(
            f"--latency needs network namespaces and netem, and `{' '.join(words)}` fails here: {done.stderr.strip() or done.returncode}"
        )


@contextlib.contextmanager
def _lines(peers: int) -> Iterator[list[str]]:
    """A namespace for each peer, all of them on one switch; gone with the block."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise ConfigError("--latency makes network namespaces, for which it must be root on Linux")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise ConfigError(f"--latency needs {' and '.join(missing)}; install iproute2")
    mark = f"cesarbench{os.getpid()}"
    hub, names = f"{mark}-hub", [f"{mark}-{node}" for node in range(peers)]
    with contextlib.ExitStack() as stack:
        for name in (hub, *names):
            _run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True)
        _run("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "switch", "up")
        for node, name in enumerate(names):
            port = f"port{node}"
            _run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", hub, "link", "set", port, "master", "switch", "up")
            _run("ip", "-n", name, "addr", "add", f"{_host(node)}/16", "dev", "eth0")
            for link in ("eth0", "lo"):
                _run("ip", "-n", name, "link", "set", link, "up")
        yield names


def _measure(folder: Path, names: list[str], size: int, rounds: int, latency: float) -> float:
    """From the moment when the last has called `average` until all have returned, in the median of all rounds but the first."""
    late = LATE_SECONDS + 4 * latency
    given = [str(size), str(rounds + 1)]
    workers = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", name, sys.executable, "-m", "cesar_lab.bench.latency"),
                *(str(folder / f"peer-{node}"), *given, str(late if node == len(names) - 1 else 0.0)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node, name in enumerate(names)
    ]
    try:
        seen = []
        for worker in workers:
            out, said = worker.communicate(timeout=START_SECONDS + 10 * rounds * (late + 1))
            if worker.returncode:
                raise CesarError(
                    f"a peer's process ended with code {worker.returncode}: {said.decode()[-500:]}"
                )
            seen.append(json.loads(out))
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    times = np.array(seen)  # (peers, rounds, 2), by a clock that all processes of a machine share
    return float(np.median(times[:, 1:, 1].max(axis=0) - times[:, 1:, 0].max(axis=0)))


async def _peer(folder: Path, size: int, rounds: int, late: float) -> list[tuple[float, float]]:
    """Calls and returns of `average`; every round must add up."""
    times = []
    async with AsyncPeer.load(folder) as peer:
        await peer.start()
        model = np.random.default_rng(peer.id).standard_normal(size, dtype=np.float32)
        await peer.start_from(np.zeros_like(model))
        await peer.wait_for_neighbours(START_SECONDS)
        for _ in range(rounds):
            await asyncio.sleep(late)
            model += 1
            begin = time.monotonic()
            report = await peer.average_vector(model)
            times.append((begin, time.monotonic()))
            if not report.summed:
                raise CesarError(f"round {report.round} was not added up; it waits for {report.missing}")
        peer.satisfy()
        others = peer.neighbours.values()
        await peer.reception.until(lambda: all(known.satisfied or not known.up for known in others), 30)
    return times


if __name__ == "__main__":
    _, where, parameters, count, seconds = sys.argv
    json.dump(asyncio.run(_peer(Path(where), int(parameters), int(count), float(seconds))), sys.stdout)
