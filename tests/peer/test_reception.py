"""What a neighbour may say before it is sent away, and who learns of it."""

import asyncio
import json
import logging
import time
import tracemalloc

import grpc
import networkx as nx
import pytest

from cesar.base.errors import Reason, Refusal, RemoteProtocolError
from cesar.methods import SecureAggregation
from cesar.node import Node
from cesar.peer.driver import reception
from cesar.peer.driver.liveness import Liveness
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.node_runner import NodeRunner
from cesar.peer.driver.pace import Pace
from cesar.peer.driver.reception import Reception
from cesar.peer.driver.state import StateFile
from cesar.peer.net.chunks import CHUNK, Message
from cesar.peer.net.link import HELLO_LIMIT, Link, Room
from cesar.peer.net.messages import Hello, Status
from cesar.peer.trust.identity import Identity
from support.lan import make_network

SESSION = bytes(16)


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(3))


class Desk:
    """A reception of node 1, without links."""

    def __init__(self, network):
        folder = network.folder / "peer-1"
        self.state = StateFile(folder / "state.json")
        self.membership = Membership(Identity.load(folder), network.roster, folder, self.state)
        self.liveness = Liveness("train", Status(), self.membership.hood.view, 1)
        self.engine = NodeRunner("test")
        self.reception = Reception(
            self.greeting, self.liveness, self.membership, self.engine, Pace(1.0, 2.0), None
        )

    def greeting(self, node=1):
        roster = self.membership.roster
        return Hello(
            node=node, network=roster.network_id.hex(), roster=1, purpose="train", digest=roster.digest.hex(), size=None,
            status=Status(), time=0.0,
        )  # fmt: skip

    def begin(self):
        keys = self.membership.keys(SESSION)
        self.engine.use(Node(1, SecureAggregation(), 10, session=SESSION, keys=keys))


def bad(peer, reason):
    return RemoteProtocolError(peer, reason, "bad")


def test_bad_frames_that_were_kept_count_at_the_next_one(network):
    """Refusals that come to light in a round never end the round of the honest peer."""

    async def story():
        desk = Desk(network)
        desk.begin()
        desk.reception.hello_from(2, desk.greeting(2).to_bytes())
        desk.liveness.connected(2)
        for _ in range(reception.MOST_REFUSALS + 1):
            desk.reception.refused(bad(2, Reason.UNEXPECTED))
        with pytest.raises(
            Refusal, match="it sent 202 frames that had to be refused; the last: frame from node 2"
        ):
            await desk.reception.frame(2, b"this is no frame")
        await desk.engine.close()

    asyncio.run(story())


def test_what_an_honest_neighbour_can_cause_is_not_counted(network):
    async def story():
        desk = Desk(network)
        for reason in reception.HARMLESS:
            assert desk.reception.refused(bad(2, reason)) == 0
        assert desk.reception.refused(bad(2, Reason.MALFORMED)) == 1
        assert "malformed" in desk.liveness.neighbours[2].last_error
        await desk.engine.close()

    asyncio.run(story())


def test_a_greeting_under_another_name_changes_nothing(network):
    async def story():
        desk = Desk(network)
        with pytest.raises(Refusal, match="that of node 2, but it says that it is node 0"):
            desk.reception.hello_from(2, desk.greeting(0).to_bytes())
        assert desk.liveness.neighbours[2].purpose == ""
        desk.reception.hello_from(2, desk.greeting(2).to_bytes())
        assert desk.liveness.neighbours[2].purpose == "train"
        await desk.engine.close()

    asyncio.run(story())


def test_frames_wait_for_the_first_model(network):
    async def story():
        desk = Desk(network)
        waiting = asyncio.create_task(desk.reception.largest_frame())
        await asyncio.wait([waiting], timeout=0)
        assert not waiting.done()
        desk.begin()
        assert await waiting == desk.engine.node.largest_frame(desk.membership.hood)
        await desk.engine.close()

    asyncio.run(story())


def test_a_flood_of_bad_frames_does_not_fill_the_log(network, caplog):
    async def story():
        desk = Desk(network)
        for _ in range(1000):
            desk.reception.refused(bad(2, Reason.DUPLICATE))
        desk.reception.refused(bad(0, Reason.DUPLICATE))

    asyncio.run(story())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == reception.MOST_LINES + 2
    assert lines[-2] == "node 2: no more about its frames for a minute"
    assert "frame from node 0" in lines[-1]


class Saying:
    """A conversation in memory: one message, and no more."""

    def __init__(self, *messages):
        self.messages = list(messages)

    async def read(self):
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message):
        pass


def claims(most, largest_roster):
    """Of every kind of message one that asks for as much as it can, and how much its reader may take for it."""
    for kind in Message:
        for filling in (b"\0", b"\xff", b"[],", b'{"a":'):
            yield bytes([kind]) + (filling * HELLO_LIMIT)[:HELLO_LIMIT], 48 * HELLO_LIMIT
    for kind, largest in ((Message.FRAME, most), (Message.ROSTER, largest_roster)):
        for length in (largest, largest + 1, 1 << 33, (1 << 64) - 1):
            body = bytes(min(length, CHUNK))
            room = 3 * min(length, largest) + 2 * len(body)
            yield bytes([kind]) + length.to_bytes(8, "little") + body, room


def test_no_message_can_claim_memory(network, caplog):
    """Frames have a test of their own (tests/protocol/test_memory_of_frames.py); this is what carries them, and the rest."""
    caplog.set_level(logging.CRITICAL, "cesar")

    async def peak_of(desk, message):
        link = Link(2, Room(), desk.reception)

        async def greet():
            link.read_hello(bytes([Message.HELLO]) + desk.greeting(2).to_bytes())

        tracemalloc.start()
        try:
            await link.talk(Saying(message), greet)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    async def story():
        desk = Desk(network)
        desk.begin()
        most = await desk.reception.largest_frame()
        await peak_of(desk, b"\x02abc")  # imported and cached by now
        for message, room in claims(most, desk.reception.largest_roster()):
            peak = await peak_of(desk, message)
            assert peak < room + (256 << 10), (message[:10], len(message), peak)
        await desk.engine.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "changed", [{"cesar": "\ud800"}, {"purpose": "\udfff"}, {"time": float("nan")}, {"time": float("inf")}]
)
def test_a_greeting_that_cannot_be_shown_is_refused(network, changed):
    async def story():
        desk = Desk(network)
        words = {**json.loads(desk.greeting(2).to_bytes()), **changed}
        with pytest.raises(Refusal, match="its hello cannot be read"):
            desk.reception.hello_from(2, json.dumps(words).encode())

    asyncio.run(story())


def test_news_that_wake_one_are_not_hidden_from_another(network):
    """`average` and the round that it waits for look at the same news. The round looks, works and only then waits; what comes
    while it works must end that wait, although `average` has woken up meanwhile.
    """

    async def story():
        here, end = Desk(network).reception, time.monotonic() + 60.0
        looked = here.news
        other = asyncio.create_task(here.change(end, here.news))
        await asyncio.sleep(0)
        here.failed(2, "gone")
        assert await other
        assert await here.change(end, looked)
        assert time.monotonic() < end - 30.0, "both at once"
        assert not await here.change(time.monotonic() + 0.01, here.news), "old news wake nobody"

    asyncio.run(story())
