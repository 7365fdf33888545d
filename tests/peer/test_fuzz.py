"""Random mutations of all that a neighbour can say, through the door that it comes in by: refused or taken, never raised.

A link reads from a stream in memory; behind it are a real reception, membership and engine. Each message is made from one
that an honest neighbour could send. The time that each takes and the memory that all of them take are bounded. Nothing here waits:
the engine runs where the link does, so that the time of a message is all that it costs, and a million take minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import time

import grpc
import networkx as nx
import pytest

from cesar.peer.driver.liveness import Liveness
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.node_runner import NodeRunner
from cesar.peer.driver.pace import Pace
from cesar.peer.driver.reception import Reception
from cesar.peer.driver.state import StateFile
from cesar.peer.net import chunks
from cesar.peer.net.chunks import Message
from cesar.peer.net.link import Link, Room
from cesar.peer.net.messages import Hello, Status
from cesar.peer.trust.identity import Identity
from support.bench import ME, METHODS, Bench
from support.lan import make_network

LONGEST_SECONDS, MOST_BYTES = 0.5, 64 << 20
CONVERSATION = 500
KINDS, WEIGHTS = [Message.FRAME, Message.ROSTER, Message.STATUS, Message.HELLO], [93, 3, 2, 2]


class Here(NodeRunner):
    """Runs calls at once."""

    async def call(self, job, work=None):
        return job(await self.ready())


class Fuzz:
    """What one neighbour says, in so many messages."""

    def __init__(self, rng, network, bench, neighbour):
        self.rng, self.neighbour = rng, neighbour
        self.frames = [payload for sender, payload in bench.frames if sender == neighbour]
        self.frames += [payload for _, payload in bench.frames]
        self.roster = network.roster.raw
        self.hello = greeting(network, neighbour).to_bytes()

    def message(self):
        [kind] = self.rng.choices(KINDS, WEIGHTS)
        match kind:
            case Message.FRAME:
                payload = self.rng.choice(self.frames)
            case Message.ROSTER:
                payload = self.roster
            case Message.STATUS:
                payload = Status(*sorted(self.rng.choices(range(3), k=2)), 0).to_bytes()
            case _:
                payload = self.hello
        payload = self.mutated(payload)
        if kind in chunks.LONG and self.rng.random() > 0.002:
            return bytes([kind]) + len(payload).to_bytes(8, "little") + payload[: chunks.CHUNK]
        return bytes([kind]) + payload

    def mutated(self, payload):
        changed = bytearray(payload)
        for _ in range(self.rng.randrange(4)):
            at, count = self.rng.randrange(len(changed) + 1), self.rng.randrange(1, 9)
            match self.rng.randrange(6):
                case 0:
                    changed[at : at + count] = self.rng.randbytes(count)
                case 1:
                    del changed[at : at + count]
                case 2:
                    changed[at:at] = self.rng.randbytes(count)
                case 3:
                    changed[at : at + 4] = b"\xff\xff\xff\xff"
                case 4:
                    del changed[at:]
                case 5:
                    changed += changed[at:] * self.rng.randrange(1, 4)
        return bytes(changed[:200_000])


class Stream:
    """A conversation in memory, and how long the other side took for each message."""

    def __init__(self, fuzz, count):
        self.fuzz, self.left = fuzz, count
        self.count, self.longest, self._asked = 0, 0.0, None

    async def read(self):
        now = time.thread_time()
        if self._asked is not None:
            self.longest = max(self.longest, now - self._asked)
        if not self.left:
            return grpc.aio.EOF
        self.left -= 1
        self.count += 1
        message = self.fuzz.message()
        self._asked = time.thread_time()
        return message

    async def write(self, message):
        pass


def greeting(network, node):
    return Hello(
        node=node, network=network.roster.network_id.hex(), roster=1, purpose="train", digest="ab", size=None,
        status=Status(), time=time.time(),
    )  # fmt: skip


async def converse(network, name, seed, messages):
    """Let all neighbours of node 0 say so many messages in all; how many were taken in without a refusal, and more."""
    folder = network.folder / f"peer-{ME}"
    state = StateFile(folder / "state.json")
    membership = Membership(Identity.load(folder), network.roster, folder, state)
    liveness = Liveness("train", Status(), membership.hood.view, 1)
    engine = Here("fuzz")
    reception = Reception(lambda: greeting(network, ME), liveness, membership, engine, Pace(1.0, 2.0), None)
    bench, rng = Bench.of(name), random.Random(seed)
    neighbours = sorted(bench.case.graph[ME])
    done = ended = 0
    longest = 0.0
    while done < messages:
        node = bench.node(rng.randrange(len(bench.frames) + 1))
        engine.use(node)
        neighbour = rng.choice(neighbours)
        link, stream = (
            Link(neighbour, Room(), reception),
            Stream(Fuzz(rng, network, bench, neighbour), CONVERSATION),
        )

        async def greet(link=link, neighbour=neighbour):
            link.read_hello(bytes([Message.HELLO]) + greeting(network, neighbour).to_bytes())

        ended += not await link.talk(stream, greet)
        assert "could not be" not in liveness.neighbours[neighbour].last_error, (
            "a fault of ours was brought out"
        )
        done += stream.count
        longest = max(longest, stream.longest)
        while (deadline := node.next_deadline()) is not None:  # whatever it has taken, its round ends
            node.tick(deadline)
            list(node.outbound())
    await engine.close()
    assert membership.newer is None
    assert liveness.next_round(0, 0) < 1 << 20
    return done, ended, longest


@pytest.mark.parametrize("name", ["relay", "random", "secure"])
@pytest.mark.parametrize("messages", [1500, pytest.param(250_000, marks=pytest.mark.slow)])
def test_anything_is_refused_or_taken(name, messages, tmp_path, caplog):
    assert name in METHODS
    caplog.set_level(logging.CRITICAL, "cesar")  # a million lines would be the memory that is measured
    network = make_network(tmp_path / "net", nx.complete_graph(6))
    asyncio.run(converse(network, name, 0, 300))  # compiled by now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    done, ended, longest = asyncio.run(converse(network, name, 1, messages))
    assert done >= messages
    assert ended > 0, "no conversation was ended by a refusal"
    assert longest < LONGEST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < MOST_BYTES
    assert json.loads(network.roster.raw)["roster"]["version"] == 1
