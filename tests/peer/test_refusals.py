"""Whoever has no business here is refused with a clear line, and the round of the others goes on as if nothing was.

Five peers know each other. Node 0 is the enemy's: `Enemy` speaks to an honest peer with raw messages, with
node 0's keys or others. Nodes 1 to 4 are honest and must go on averaging, with one another and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.crypto.keys import VERSION
from cesar.peer.api.peer import on_loop
from cesar.peer.driver import reception
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.transcript import read
from cesar.peer.net import link, transport
from cesar.peer.net.chunks import CHUNK, Message
from cesar.peer.net.messages import Status
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.config import session_of
from cesar.peer.trust.roster import Roster
from cesar.protocol import wire
from cesar.protocol.sender import Partner
from support.enemy import Enemy, frames, issue, keys_of
from support.lan import Lines, edit, make_network, met, one_round, running
from support.waiting import until

SIZE = 400
HONEST = [1, 2, 3, 4]
GRAPH = nx.complete_graph(5)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", GRAPH, transcript=True)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """Nobody has ten seconds to say hello here, and whoever was sent away may come back at once."""
    monkeypatch.setattr(link, "LEFT_OUT", (0.0, 0.0))
    monkeypatch.setattr(transport, "HELLO_SECONDS", 1.0)
    quick = {"grpc.server_handshake_timeout_ms": 1000}
    monkeypatch.setattr(
        transport, "OPTIONS", tuple((key, quick.get(key, value)) for key, value in transport.OPTIONS)
    )


def models(seed=0, size=SIZE):
    return np.random.default_rng(seed).normal(size=(len(HONEST), size)).astype(np.float32)


async def averages(peers, rounds=1, seed=0, size=SIZE):
    """Honest rounds: each of the four ends with the mean of the four, and says so."""
    for t in range(rounds):
        vectors = models(seed + t, size)
        mean = vectors.mean(0)
        reports = await one_round(peers, vectors)
        for peer, report in zip(peers, reports, strict=True):
            assert report.contributors == tuple(i for i in HONEST if i != peer.id)
            assert report.missing == (0,)
            assert report.lost == 0
        np.testing.assert_allclose(vectors, np.broadcast_to(mean, vectors.shape), atol=1e-6)


# ── who is let in ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", ["nobody", "another authority", "expired"])
def test_tls_refuses(who, network, tmp_path, capfd):
    now = datetime.now(UTC)
    match who:
        case "nobody":
            keys = None
        case "another authority":
            keys = issue(Authority.create("lan", now=now), tmp_path / "keys", 0, now)
        case _:
            keys = issue(network.authority, tmp_path / "keys", 0, now - timedelta(days=5))

    async def attack():
        async with running(network, HONEST) as peers, Enemy(keys, peers[3]) as enemy:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await enemy.hello()
            await enemy.fate()
            assert await enemy.call.code() == grpc.StatusCode.UNAVAILABLE
            await averages(peers)
            assert not peers[3].transport.links[0].up

    on_loop(attack())
    assert "andshak" in capfd.readouterr().err  # the library says so on its own


def test_a_certificate_is_good_for_its_own_id_only(network):
    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.hello(node=2)
                    told = await enemy.fate()
                assert told == "its certificate is that of node 0, but it says that it is node 2"
                await log.says("node 0: its certificate is that of node 0", "node 2")
                await averages(peers, 2)

    on_loop(attack())


def test_a_node_that_the_roster_does_not_list(network, tmp_path):
    keys = issue(network.authority, tmp_path / "keys", 9, datetime.now(UTC))

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                async with Enemy(keys, peers[3]) as enemy:
                    assert "CN=node-9.lan.cesar is not in version 1 of the roster" in await enemy.fate()
                await log.says("refused", "node-9.lan.cesar is not in version 1")
                await averages(peers)

    on_loop(attack())


def test_a_node_that_is_not_a_neighbour(tmp_path):
    graph = nx.complete_graph(5)
    graph.add_edges_from([(5, 0), (5, 1), (5, 2)])
    network = make_network(tmp_path / "net", graph)

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                async with Enemy(keys_of(network, 5), peers[3]) as enemy:
                    assert "not a neighbour" in await enemy.fate()
                await log.says("refused", "node 5 is in the roster, but not a neighbour of this peer")

    on_loop(attack())


def test_a_revoked_node(network):
    """The peer that holds the newer roster refuses the old certificate, tells the others, and none goes back."""
    old = network.roster.raw

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers, Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.enter()
                network.remove(0, connect=True, now=datetime.now(UTC))
                for peer in peers[:3]:  # only node 4 has it
                    (peer.config.folder / "roster.json").write_bytes(old)
                await one_round(peers, models())
                assert peers[3].roster.version == 2
                await enemy.fate()
                await until(lambda: all(peer.membership.newer is not None for peer in peers[:3]))
                await one_round(peers, models())  # the others adopt it; node 4 hears of that meanwhile
                vectors = models(1)
                mean = vectors.mean(0)
                reports = await one_round(peers, vectors)
                assert [report.missing for report in reports] == [()] * 4
                np.testing.assert_allclose(vectors, np.broadcast_to(mean, vectors.shape), atol=1e-6)
                assert {peer.roster.version for peer in peers} == {2}
                async with Enemy(keys_of(network, 0), peers[3]) as again:
                    assert "not in version 2 of the roster: revoked" in await again.fate()
                await log.says("refused", "node-0.lan.cesar is not in version 2 of the roster")
                async with Enemy(keys_of(network, 1), peers[3]) as neighbour:
                    await neighbour.hello(node=1)
                    await neighbour.send(Message.ROSTER, struct.pack("<Q", len(old)) + old)
                    await neighbour.send(99)
                    assert (
                        "not a message of this protocol" in await neighbour.fate()
                    )  # so it has read the roster
                    assert peers[3].membership.newer is None
                await one_round(peers, models())
                assert peers[3].roster.version == 2

    on_loop(attack())
    folder = network.folder / "peer-4"
    (folder / "roster.json").write_bytes(old)
    with pytest.raises(ConfigError, match="version 1, which is older than version 2"):
        AsyncPeer.load(folder)


# ── who speaks the same language ────────────────────────────────────────────────────────────────────────


STRANGE_HELLOS = [
    ({"protocol": 77, "cesar": "9.9"}, "it speaks protocol version 77 (cesar 9.9)"),
    ({"network": "00" * 16}, "it belongs to another network"),
    ({"size": SIZE + 1}, f"its model has {SIZE + 1} parameters, and this peer's has {SIZE}"),
    ({"digest": None}, "its hello cannot be read"),
    ({"status": [2**31, 2**31, 0, 0]}, "a status that cannot be"),
    ({"status": [1, 1, 2**31, 0]}, "a mode that cannot be"),
    ({"status": "x" * 70_000}, "it does not begin with a hello"),
]


def test_another_version_or_network(network):
    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers)
            for changes, expected in STRANGE_HELLOS:
                with Lines() as log:
                    async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                        await enemy.hello(**changes)
                        told, _ = await asyncio.gather(enemy.fate(), averages(peers))
                    assert expected in told
                    await log.says("node 0: ", expected)

    on_loop(attack())


DIFFERENCES = [
    ("masks = 1", "masks = 2", "masks is 1 there and 2 here"),
    ("ring_bits = 32", "ring_bits = 16", "ring_bits is 32 there and 16 here"),
    ('"random"', '"topk"', "sparsifier is 'random' there and 'topk' here"),
    ("alpha = 0.9", "alpha = 0.8", "alpha is 0.9 there and 0.8 here"),
    (r"floor = 0.5", 'buffers = "average"\nfloor = 0.5', "buffers is 'local' there and 'average' here"),
]


def test_other_settings_than_were_signed_are_named(tmp_path):
    method = 'name = "cesar"\nsparsifier = "random"\nalpha = 0.9\nmasks = 1\nring_bits = 32'
    folder = make_network(tmp_path / "net", GRAPH, method).folder / "peer-0"
    text = (folder / "peer.toml").read_text()
    for was, changed, words in DIFFERENCES:
        (folder / "peer.toml").write_text(text)
        edit(folder, was, changed)
        with pytest.raises(ConfigError, match=f"signed for other settings.*{words}"):
            AsyncPeer.load(folder)


def test_two_rosters_of_one_version(network):
    """Somebody was given another promise under the same number: it is refused by name, and shares no session."""
    old = network.roster
    other = Roster.sign(
        network.authority,
        old.members.values(),
        old.graph,
        network_id=old.network_id,
        version=1,
        now=old.issued,
        settings={**old.settings, "ring_bits": 16},
    )
    folder = network.folder / "peer-0"
    (folder / "roster.json").write_bytes(other.raw)
    edit(folder, 'name = "secagg"', 'name = "secagg"\nring_bits = 16')

    async def meet():
        odd = AsyncPeer.load(folder)
        try:
            with Lines() as log:
                async with running(network, HONEST) as peers:
                    await odd.start()
                    await log.says("node 0: it has another roster of version 1", "Two were signed")
                    await averages(peers)
                    assert not any(peer.transport.links[0].up for peer in peers)
                    assert session_of(other, (SIZE,), "train") != session_of(old, (SIZE,), "train")
        finally:
            await odd.close()

    on_loop(meet())


def test_another_model_size_is_named_at_both_ends(network):
    async def meet():
        with Lines() as log:
            async with running(network, [0, *HONEST]) as (odd, *peers):
                job = asyncio.create_task(odd.average_vector(np.zeros(SIZE + 1, np.float32)))
                await averages(peers)
                await job
                await log.says("its model has 401 parameters, and this peer's has 400")
                await log.says("its model has 400 parameters, and this peer's has 401")
                await averages(peers)

    on_loop(meet())


# ── what neighbours may say ─────────────────────────────────────────────────────────────────────────────


ATTACKS = {
    "an unknown kind": (lambda e: e.send(99, b"x"), "not a message of this protocol"),
    "nothing": (lambda e: e.call.write(b""), "not a message of this protocol"),
    "random bytes": (lambda e: e.call.write(b"\xff" + os.urandom(5000)), "not a message of this protocol"),
    "more of nothing": (lambda e: e.send(Message.MORE, b"x" * 1000), "a MORE message where none can be"),
    "a frame without a length": (lambda e: e.send(Message.FRAME, b"abc"), "begins without its length"),
    "a huge frame": (
        lambda e: e.send(Message.FRAME, struct.pack("<Q", 2**62) + b"x"),
        "a FRAME of 4611686018427387904 bytes; none here has over",
    ),
    "a frame in small pieces": (
        lambda e: e.send(Message.FRAME, struct.pack("<Q", 1000) + b"x"),
        "a FRAME that does not come in whole chunks",
    ),
    "a huge roster": (
        lambda e: e.send(Message.ROSTER, struct.pack("<Q", 2**40)),
        "a ROSTER of 1099511627776 bytes; none here has over",
    ),
    "a roster for a hundred thousand": (
        lambda e: e.send(Message.ROSTER, struct.pack("<Q", 60 << 20) + bytes(CHUNK)),
        "a ROSTER of 62914560 bytes; none here has over 1",
    ),
    "a false roster": (lambda e: e.send(Message.ROSTER, struct.pack("<Q", 2) + b"{}"), "cannot be used"),
    "a short status": (lambda e: e.send(Message.STATUS, b"abc"), "a status of the wrong length"),
    "an impossible status": (
        lambda e: e.send(Message.STATUS, struct.pack("<IIII", 9, 3, 0, 0)),
        "a status that cannot be",
    ),
    "a hello that is none": (lambda e: e.send(Message.HELLO, b"[" * 60_000), "its hello cannot be read"),
}


def test_garbage_ends_the_conversation_and_nothing_else(network):
    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers)
            for send, expected in ATTACKS.values():
                with Lines() as log:
                    async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                        await enemy.enter()
                        await send(enemy)
                        told, _ = await asyncio.gather(enemy.fate(), averages(peers))
                    assert expected in told
                    await log.says("node 0: ", expected)

    on_loop(attack())


def test_frames_that_are_no_frames(network):
    """Bad frames are refused one by one; after many the neighbour is sent away, whatever hellos it says between."""

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                await averages(peers)
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.enter()

                    async def flood():
                        for _ in range(reception.MOST_REFUSALS):
                            await frames(enemy, [os.urandom(200), b""])
                            await enemy.hello()

                    job = asyncio.create_task(flood())
                    await averages(peers, 2)
                    await enemy.fate()  # the words may not reach it: it sends faster than it reads
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await job
                await log.says("this is not a cesar frame")
                await log.says("frames that had to be refused")
                await averages(peers)

    on_loop(attack())


def test_replayed_frames_of_earlier_rounds(network):
    """Node 0 takes part for two rounds; then its own frames, and those of others, come again."""

    async def attack():
        with Lines() as log:
            async with running(network, [0, *HONEST]) as (honest_once, *peers):
                for t in range(2):
                    vectors = np.random.default_rng(t).normal(size=(5, SIZE)).astype(np.float32)
                    mean = vectors.mean(0)
                    await one_round([honest_once, *peers], vectors)
                    np.testing.assert_allclose(vectors, np.broadcast_to(mean, vectors.shape), atol=1e-6)
                recorded = [e for e in read(network.folder / "peer-4" / "frames") if not e.sent]
                own = [entry.payload for entry in recorded if entry.peer == 0]
                of_others = [entry.payload for entry in recorded if entry.peer == 1]
                assert own
                assert of_others
                await honest_once.transport.close()
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.enter()
                    for _ in range(3):
                        await frames(enemy, own + of_others)
                        await averages(peers)
                    assert peers[3].transport.links[0].up
                    await log.says("from node 0 was ignored: that round is over")
                    # The same bytes as if they were of the coming round, under node 0's name and under node 1's.
                    for payload in own + of_others:
                        coming = peers[3].next_round
                        forged = payload[:4] + struct.pack("<I", coming) + payload[8:]
                        await frames(enemy, [forged])
                    vectors = models(7)
                    await one_round(peers, vectors)
                    await averages(peers)
                await log.says("node 0", "sender")

    on_loop(attack())


def test_a_round_that_cannot_have_come_yet(network):
    """The lie neither spreads nor stays: not in a status, not in a greeting, not on disk."""
    far = (1 << 31) - 4

    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers)
            async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.enter()
                await enemy.send(Message.STATUS, struct.pack("<IIII", far, far, 0, 0))
                told = await enemy.fate()
            assert told == f"it says that it is in round {far}, which cannot have come yet"
            async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.hello(status=[far, far, 0, 0])
                assert "cannot have come yet" in await enemy.fate()
            await averages(peers, 2)

    on_loop(attack())
    for i in HONEST:
        assert json.loads((network.folder / f"peer-{i}" / "state.json").read_text())["next_round"] <= 4


@pytest.mark.parametrize("ahead", [1, 2, 90_000])
def test_one_liar_moves_nobody(network, ahead):
    """However little it says to be ahead: whoever followed it would skip the round that the others are in."""
    far = 1 + ahead

    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers)
            async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.enter()
                await enemy.send(Message.STATUS, struct.pack("<IIII", far, far, 0, 0))
                await until(lambda: peers[3].neighbours[0].status.current == far, 10)
                await averages(peers, 4)
                assert [peer.next_round for peer in peers] == [5] * 4

    on_loop(attack())


def test_another_roster_is_the_way_back_from_a_round_that_liars_drove_up(network):
    """Two that lie together take a peer away from the others. Under the next roster all count from 0 again."""

    async def attack():
        async with running(network, HONEST[1:]) as peers:
            await one_round(peers, models()[1:])
            async with (
                Enemy(keys_of(network, 0), peers[2]) as one,
                Enemy(keys_of(network, 1), peers[2], node=1) as two,
            ):
                for enemy in (one, two):
                    await enemy.enter()
                    await enemy.send(Message.STATUS, struct.pack("<IIII", 90_000, 90_000, 0, 0))
                await until(lambda: peers[2].next_round == 90_000, 10)
                report = await peers[2].average_vector(models()[0])
                assert (report.round, report.contributors) == (90_000, ())
            old = network.roster.raw
            network.remove(0, connect=True, now=datetime.now(UTC))
            for t in range(6):  # on a busy machine one may miss a round; then there is another
                reports = await one_round(peers, models(t)[1:])
                if t >= 2 and all(len(report.contributors) == 2 for report in reports):
                    break
            assert [report.round for report in reports] == [t] * 3
            assert [len(report.contributors) for report in reports] == [2] * 3
        state = json.loads((network.folder / "peer-4" / "state.json").read_text())
        assert (state["next_round"], state["roster"]) == (t + 1, 2)
        (network.folder / "peer-4" / "roster.json").write_bytes(old)
        with pytest.raises(ConfigError, match="older than version 2"):
            AsyncPeer.load(network.folder / "peer-4")

    on_loop(attack())


FAULTS = [ValueError("boom"), MemoryError(), RecursionError(), ZeroDivisionError()]
BOOM = b"BOOM" * 20


def exploding(monkeypatch, owner, name, error):
    """A decoder that has a fault, which certain bytes bring out."""
    real = getattr(owner, name)

    def decode(data, *others, **named):
        if bytes(data[:4]) == BOOM[:4]:
            raise error
        return real(data, *others, **named)

    monkeypatch.setattr(owner, name, decode)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_that_a_frame_brings_out_costs_its_sender_the_link(network, error, monkeypatch):
    """Ahead of its round or in it: nothing is raised where models are averaged, and the round of the others goes on."""
    exploding(monkeypatch, wire.Announce, "decode", error)
    name = type(error).__name__

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                await averages(peers)
                entry = next(iter(read(network.folder / "peer-4" / "frames")))
                for _ in range(2):
                    async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                        await enemy.enter()
                        head = struct.pack("<2sBBII", b"CE", VERSION, 1, peers[3].next_round, 0)
                        await frames(enemy, [head + entry.payload[12:28] + BOOM])
                        await averages(peers)
                        await until(lambda: not peers[3].transport.links[0].up, 10)
                        assert name in peers[3].neighbours[0].last_error
                await log.says("node 0", f"refused (fault): it could not be used: {name}")
                await averages(peers)

    on_loop(attack())


def test_a_fault_while_a_frame_is_answered_costs_its_sender_the_link(network, monkeypatch):
    """What was announced passes for an announcement, and fails when it is to be answered: no training loop sees that."""
    real = Partner.of

    def of(token, *sets):
        if token.seed == BOOM[:16]:
            raise ZeroDivisionError
        return real(token, *sets)

    monkeypatch.setattr(Partner, "of", of)

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                await averages(peers)
                entry = next(e for e in read(network.folder / "peer-4" / "frames") if e.sent)
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.enter()
                    head = struct.pack("<2sBBII", b"CE", VERSION, 1, peers[3].next_round, 0)
                    await frames(enemy, [head + entry.payload[12:28] + BOOM[:16] + entry.payload[44:]])
                    await averages(peers)
                    await until(lambda: not peers[3].transport.links[0].up, 10)
                    assert "ZeroDivisionError" in peers[3].neighbours[0].last_error
                await log.says(
                    "frame from node 0", "refused (fault): it could not be used: ZeroDivisionError"
                )
                await averages(peers, 2)

    on_loop(attack())


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_that_a_status_or_a_roster_brings_out(network, error, monkeypatch):
    exploding(monkeypatch, Status, "from_bytes", error)
    exploding(monkeypatch, Roster, "parse", error)

    async def attack():
        async with running(network, HONEST) as peers:
            for kind, head in ((Message.STATUS, b""), (Message.ROSTER, struct.pack("<Q", len(BOOM)))):
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.enter()
                    await enemy.send(kind, head + BOOM)
                    assert await enemy.fate() == f"what it sent could not be read: {type(error).__name__}"
                assert "could not be read" in peers[3].neighbours[0].last_error
                await averages(peers)

    on_loop(attack())


LONG = 400_000
"""Parameters of a model whose shares take more than one message."""


def begun(length: int) -> bytes:
    return struct.pack("<Q", length) + bytes(CHUNK)


def test_a_stream_that_never_ends(network):
    """MORE after MORE: as far as the announced length, not a byte further; and the memory is that of one frame."""

    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                await averages(peers, size=LONG)
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                    await enemy.enter()
                    await enemy.send(Message.FRAME, begun(CHUNK + 1000))

                    async def endless():
                        while True:
                            await enemy.send(Message.MORE, b"x" * 1000)

                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await asyncio.gather(averages(peers, size=LONG), endless())
                    assert not peers[3].transport.links[0].up
                await log.says("node 0: a MORE message where none can be")
                await averages(peers, size=LONG)

    on_loop(attack())


def test_endless_chatter_of_a_neighbour(network):
    """Statuses and hellos without end are allowed and cost the others nothing but time."""

    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers)
            async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.enter()

                async def chatter():
                    while True:
                        await enemy.send(Message.STATUS, bytes(8))
                        await enemy.hello()

                job = asyncio.create_task(chatter())
                await averages(peers, 3)
                job.cancel()
                await asyncio.gather(job, return_exceptions=True)

    on_loop(attack())


# ── slow and many ───────────────────────────────────────────────────────────────────────────────────────


def test_whoever_says_nothing_is_sent_away(network):
    async def attack():
        with Lines() as log:
            async with running(network, HONEST) as peers:
                host, port = peers[3].config.tables.peer.listen.split(":")
                reader, writer = await asyncio.open_connection(host, int(port))  # TCP and nothing
                async with Enemy(keys_of(network, 0), peers[3]) as enemy:  # TLS and no hello
                    job = asyncio.create_task(enemy.fate())
                    await averages(peers, 2)
                    assert await job == "say hello first"
                await log.says("said nothing for 1 seconds and was sent away")
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()

    on_loop(attack())


def test_a_frame_that_is_never_finished(network):
    async def attack():
        async with running(network, HONEST) as peers:
            await averages(peers, size=LONG)
            async with Enemy(keys_of(network, 0), peers[3]) as enemy:
                await enemy.enter()
                await enemy.send(Message.FRAME, begun(CHUNK + 1000))
                await averages(peers, 4, size=LONG)
                # The first of these rounds waited for it until the deadline, the others did not.
                assert peers[3].totals.recent[-1].seconds < 0.4 * peers[3].patience

    on_loop(attack())


def test_a_large_frame_that_drips_does_not_keep_others_out(monkeypatch):
    """One large frame comes in at a time, but whoever sends it slowly has the place for a while only."""
    monkeypatch.setattr(link, "PLACE_SECONDS", 0.3)

    async def attack():
        room = link.Room()
        assert await room.enter(0, link.LARGE)

        loop, begin = asyncio.get_running_loop(), asyncio.get_running_loop().time()

        def drip():
            nonlocal next_drop
            room.beat()
            next_drop = loop.call_later(0.02, drip)

        next_drop = loop.call_soon(drip)
        assert await asyncio.wait_for(room.enter(1, link.LARGE), 20)
        assert loop.time() - begin >= link.PLACE_SECONDS
        room.leave(1)
        monkeypatch.setattr(link, "PLACE_SECONDS", 3600.0)  # from now on nobody waits for it
        assert await asyncio.wait_for(room.enter(1, link.LARGE), 20)
        room.leave(1)
        room.leave(0)
        assert await asyncio.wait_for(room.enter(0, link.LARGE), 20)
        assert await asyncio.wait_for(room.enter(1, link.LARGE), 20)
        next_drop.cancel()

    on_loop(attack())


def test_many_streams_of_one_neighbour_do_not_keep_others_out(network):
    """Each neighbour can have one stream that has not said hello."""

    async def attack():
        async with running(network, HONEST[:3]) as peers:
            target = AsyncPeer.load(network.folder / "peer-4")
            await target.start()
            try:
                async with contextlib.AsyncExitStack() as stack:
                    for _ in range(150):
                        await stack.enter_async_context(Enemy(keys_of(network, 0), target))
                    await met(target, set(HONEST))
                    for last in (False, False, True):  # so many handshakes may disturb a round
                        try:
                            await averages([*peers, target], 1)
                            break
                        except AssertionError:
                            if last:
                                raise
            finally:
                await target.close()

    on_loop(attack())


def test_garbage_on_the_port(network):
    async def attack():
        async with running(network, HONEST) as peers:
            address = tuple(peers[3].config.tables.peer.listen.split(":"))
            lines = [
                b"GET / HTTP/1.1\r\n\r\n",
                os.urandom(4096),
                b"\x16\x03\x01\xff\xff" + bytes(70_000),
                b"\0",
            ]

            async def throw(data):
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(*address)
                    writer.write(data)
                    await asyncio.wait_for(reader.read(), 10)
                    writer.close()

            await asyncio.gather(averages(peers, 3), *(throw(data) for data in lines * 10))

    on_loop(attack())


CROWD = textwrap.dedent(
    """
    import resource, socket, sys, time
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 11_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    host, port, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    held, made, end = [], 0, time.monotonic() + 60
    while made < wanted and time.monotonic() < end:
        for _ in range(min(500, wanted - made)):
            if len(held) > most - 200:
                held.pop(0).close()
            one = socket.socket()
            one.settimeout(5)
            try:
                one.connect((host, port))
            except OSError:
                one.close()
            else:
                held.append(one)
                made += 1
        print(made, flush=True)
    print("made", made, "held", len(held), flush=True)
    sys.stdin.read()
    """
)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_ten_thousand_connections(network, record_property):
    """Existing links live on, rounds go on, the peer keeps few of the strangers, and afterwards all is as before."""

    async def attack(crowd):
        async with running(network, HONEST) as peers:
            host, port = peers[3].config.tables.peer.listen.split(":")
            before = descriptors()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CROWD, host, port, str(crowd),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            most, rounds, line = 0, 0, b""
            try:
                await process.stdout.readline()
                while not line.startswith(b"made"):
                    reading = asyncio.create_task(process.stdout.readline())
                    while not reading.done():
                        await averages(peers, 1, seed=rounds)
                        rounds += 1
                        most = max(most, descriptors() - before)
                    line = await reading
                await averages(peers)
            finally:
                process.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 10)
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            words = line.split()
            record_property("connections", line.decode())
            print(line.decode(), "rounds", rounds, "most descriptors", most)
            assert int(words[1]) == crowd
            assert rounds > 0
            assert most <= transport.MOST_CONNECTIONS + 50
            # A neighbour that comes back afterwards is let in.
            await peers[0].close()
            again = AsyncPeer.load(network.folder / "peer-1")
            peers[0] = again
            await again.start()
            await met(again, set(HONEST), 20)
            await averages(peers)

    on_loop(attack(10_000))
