"""Trips of a round among distant peers, counted in network namespaces with a delay; as root, where the kernel has netem."""

import asyncio
import contextlib
import subprocess
import time

import pytest

from cesar.base.errors import ConfigError
from cesar_lab.bench import latency
from cesar_lab.bench.peers import free_ports
from cesar_lab.bench.relay import relaying
from support.lan import no_namespaces


def why_not():
    """What is missing on this machine; empty if nothing is."""
    try:
        with latency._lines(1) as (name,):
            latency._run(*latency.delayed(name, 0.001))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_round_takes_whole_trips():
    """Agree, scatter and gather at the least; a busy machine adds to it."""
    if why := why_not():
        pytest.skip(why)
    found = latency.bench_latency(4, 1000, cells=4, rounds=3, latency=0.1)
    assert found.round_seconds > found.local_seconds
    assert 2.5 <= found.trips <= 12


def test_peers_in_namespaces_without_a_delay(monkeypatch):
    """All but netem, which few kernels of virtual machines have: real peers, each in a namespace of its own."""
    if why := no_namespaces():
        pytest.skip(why)
    monkeypatch.setattr(latency, "delayed", lambda *_: ("true",))
    found = latency.bench_latency(4, 1000, cells=4, rounds=2, latency=0.05)
    assert found.round_seconds > 0
    assert found.local_seconds > 0
    assert found.trips == pytest.approx((found.round_seconds - found.local_seconds) / 0.05)


def test_what_stands_in_the_way_is_said(monkeypatch):
    monkeypatch.setattr(latency.shutil, "which", lambda tool: None if tool == "tc" else tool)
    monkeypatch.setattr(latency.os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="needs tc; install iproute2"), latency._lines(2):
        pass
    monkeypatch.setattr(latency.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="root on Linux"), latency._lines(2):
        pass
    with pytest.raises(ConfigError, match="fails here: no netem"):
        latency._run("sh", "-c", "echo no netem >&2; exit 2")


def test_only_one_cell_is_measured():
    with pytest.raises(ConfigError, match="fewer than 8 peers"):
        latency.bench_latency(8, 1000, cells=4, rounds=1, latency=0.1)


def test_trips_are_what_the_delay_adds(monkeypatch):
    """Without namespaces: lines that do nothing, and rounds that take five trips and 10 ms."""
    delays, networks = [], []
    monkeypatch.setattr(
        latency, "_lines", lambda peers: contextlib.nullcontext([f"n{k}" for k in range(peers)])
    )
    monkeypatch.setattr(latency, "_run", lambda *words: delays.append(words[-1]))

    def measure(folder, names, *_):
        networks.append(sorted(path.name for path in folder.glob("peer-*")))
        return 0.01 + (0.25 if delays[-1] == "50000us" else 0.0)

    monkeypatch.setattr(latency, "_measure", measure)
    found = latency.bench_latency(4, 1000, cells=4, rounds=1, latency=0.05)
    assert found.trips == pytest.approx(5)
    assert found.means == "netem"
    assert delays == ["0us"] * 8 + ["50000us"] * 4
    assert networks == [[f"peer-{k}" for k in range(4)]] * 2


def test_no_namespace_is_left(monkeypatch):
    """Also where the second of them cannot be made."""
    calls = []

    def run(*words):
        calls.append(words)
        if len(calls) == 2:
            raise ConfigError("no")

    removed = []
    monkeypatch.setattr(latency, "_run", run)
    monkeypatch.setattr(latency.os, "geteuid", lambda: 0)
    monkeypatch.setattr(latency.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(subprocess, "run", lambda words, **_: removed.append(words[-1]))
    with pytest.raises(ConfigError, match="no"), latency._lines(2):
        pass
    assert removed == [calls[0][-1]]


def test_where_there_is_no_netem_a_relay_delays(monkeypatch):
    """Three trips at the least: agree, scatter and gather. A busy machine adds to both times."""

    @contextlib.contextmanager
    def none(_):
        raise ConfigError("no netem")
        yield

    said = []
    monkeypatch.setattr(latency, "_lines", none)
    found = latency.bench_latency(3, 1000, cells=3, rounds=3, latency=0.1, progress=said.append)
    assert found.means == "relay"
    assert 2.0 <= found.trips <= 12
    assert said[0] == "no netem: a relay delays instead"


def test_a_relay_keeps_the_order_and_takes_its_time():
    async def talk(relay, port):
        relay.seconds = 0.05
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begin = time.monotonic()
        for k in range(50):
            writer.write(bytes([k]))
            await asyncio.sleep(0)
        got = await reader.readexactly(50)
        took = time.monotonic() - begin
        writer.close()
        assert not await reader.read()
        await writer.wait_closed()
        return got, took

    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def run():
        first = free_ports(2)
        server = await asyncio.start_server(echo, "127.0.0.1", first + 1)
        with relaying({first: first + 1}) as relay:
            got, took = await talk(relay, first)
        await asyncio.sleep(0.1)  # the other end sees that it is over
        server.close()
        return got, took

    got, took = asyncio.run(run())
    assert got == bytes(range(50))
    assert took >= 0.1
