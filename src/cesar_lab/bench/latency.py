"""How many trips a round among distant peers takes: each in a network namespace of its own, with a delay on its line (netem). Where
that cannot be had all connections go through a relay in user space, which delays what it passes on.

A round of a small model is nothing but waiting. The last member of the cell comes later than all others in every round, and the clock runs from the
moment when it calls `average` until all members have the new model. What the same takes without a delay is taken off, and the rest is counted in
one-way trips.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
import numpy as np

from cesar.base.errors import CesarError, ConfigError
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.folder import Network, Plan
from cesar_lab.bench.peers import START_SECONDS, free_ports, settings
from cesar_lab.bench.relay import relaying

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
        means: what delays: "netem" or "relay".
    """

    latency: float
    round_seconds: float
    local_seconds: float
    trips: float
    means: str


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
        ConfigError: there would be several cells.
    """
    if peers >= 2 * cells:
        raise ConfigError(f"--latency measures one cell: use fewer than {2 * cells} peers, or larger --cells")
    with TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place) / "bench"
        given = {
            "name": "bench",
            "graph": nx.empty_graph(peers),
            "settings": settings(1.0, cells),
            "requests": {},
            "days": 1,
        }
        lines: Sequence[tuple[str, ...]] = [()] * peers
        try:
            names = stack.enter_context(_lines(peers))
            delay = partial(_delay_all, names)
            delay(0.0)
        except ConfigError as error:
            progress(f"{error}: a relay delays instead")
            first = free_ports(2 * peers)
            Network.create(folder, Plan(**given, host="127.0.0.1", port=first), datetime.now(UTC))
            relay = stack.enter_context(relaying({first + n: first + peers + n for n in range(peers)}))
            for node in range(peers):
                _listen_elsewhere(folder / f"peer-{node}", first + peers + node)
            means, delay = "relay", partial(setattr, relay, "seconds")
        else:
            Network.create(folder, _Apart(**given, host="", port=PORT), datetime.now(UTC))
            means, lines = "netem", [("ip", "netns", "exec", name) for name in names]
        taken = {}
        for seconds in (0.0, latency):
            progress(f"{rounds} rounds with {1000 * seconds:g} ms")
            delay(seconds)
            taken[seconds] = _measure(folder, lines, size, rounds, latency)
    return LatencyBenchmark(
        latency=latency,
        round_seconds=taken[latency],
        local_seconds=taken[0.0],
        trips=(taken[latency] - taken[0.0]) / latency,
        means=means,
    )


def _listen_elsewhere(folder: Path, port: int) -> None:
    """Others find this peer at the relay's port, so that it opens another."""
    path = folder / "peer.toml"
    text, found = re.subn(
        r'^listen = ".*"$', f'listen = "127.0.0.1:{port}"', path.read_text(), flags=re.MULTILINE
    )
    assert found == 1, "a peer of this network opens one port"
    path.write_text(text)


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


def _delay_all(names: list[str], seconds: float) -> None:
    for name in names:
        _run(*delayed(name, seconds))


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


def _measure(folder: Path, lines: Sequence[tuple[str, ...]], size: int, rounds: int, latency: float) -> float:
    """From the moment when the last has called `average` until all have returned, in the median of all rounds but the first.

    Args:
        lines: for each peer the command that puts it where its line is.
    """
    late = LATE_SECONDS + 4 * latency
    given = [str(size), str(rounds + 1)]
    workers = [
        subprocess.Popen(
            [
                *(*line, sys.executable, "-m", "cesar_lab.bench.latency"),
                *(str(folder / f"peer-{node}"), *given, str(late if node == len(lines) - 1 else 0.0)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for node, line in enumerate(lines)
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
