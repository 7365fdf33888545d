"""A link to one neighbour: what is to be sent to it, and what it says.

Memory. A frame is cut into chunks as it is sent; gRPC's flow control holds the sender back. A receiver knows how
long a frame can be, and takes in large ones one after the other (`Room`), as long as they flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import grpc

from cesar.base.errors import CesarError, Refusal
from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.peer.net import chunks
from cesar.peer.net.chunks import Assembly, Message
from cesar.peer.trust.foreign import MOST, escaped

log = logging.getLogger("cesar.peer")

HELLO_LIMIT = 64 << 10
LARGE = 8 << 20
STALLED_SECONDS, PLACE_SECONDS, SLOW_SECONDS = 2.0, 20.0, 600.0
LEFT_OUT, FORGIVEN_SECONDS = (2.0, 300.0), 3600.0
"""A neighbour that was let in and broke a rule may come back at once. Then it is left out for the first number of seconds, twice as long every
time, up to the second number. After an hour without a fault it is as if nothing had been.
"""


class Hub(Protocol):
    """The owner of the links: decides whom to believe and what to do with what they say."""

    async def largest_frame(self) -> int:
        """No frame is longer; waits until that is known."""

    def largest_roster(self) -> int:
        """No roster that can be the next one is longer."""

    def hello(self, peer: NodeId | None = None) -> bytes:
        """What to say first, to this neighbour."""

    def hello_from(self, peer: NodeId, hello: bytes, where: str = "") -> None:
        """Look at what a neighbour says first, and when it knows more; raises `Refusal`."""

    async def frame(self, peer: NodeId, payload: Buffer) -> None:
        """Take in a frame; the link reads on when this returns. Raises `Refusal`."""

    def status(self, peer: NodeId, body: bytes) -> None:
        """A neighbour says where it stands; raises `Refusal`."""

    def roster_from(self, peer: NodeId, data: bytes) -> None:
        """A neighbour sends its roster; raises `Refusal`."""

    def connected(self, link: Link) -> None:
        """A conversation has begun; it may replace an older one."""

    def disconnected(self, link: Link) -> None:
        """The conversation has ended, and no other has begun."""

    def failed(self, peer: NodeId, why: str) -> None:
        """A link could not be made, or the other side has ended it for this reason."""

    def sent_away(self, peer: NodeId, why: str) -> None:
        """This side has ended a conversation for this reason."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    kind: Message
    payload: Buffer = field(repr=False)
    round_: RoundNo | None = None


class Room:
    """Lets one large frame come in at a time, as long as it flows.

    A neighbour that stops in the middle of a frame, or dawdles, does not keep the others out. Nobody waits for a neighbour that
    has dawdled lately.
    """

    def __init__(self) -> None:
        self._inside: set[NodeId] = set()
        self._slow: dict[NodeId, float] = {}  # until when
        self._left = asyncio.Event()
        self._pulse = 0

    def beat(self) -> None:
        """Some bytes of a large frame have come."""
        self._pulse += 1

    async def enter(self, peer: NodeId, length: int) -> bool:
        """Wait for a place for a frame of this length; whether one was taken, to be given back with `leave`.

        Three ways out of the waiting. All who are inside leave: then this frame has the room to itself. Or nothing at all came for
        `STALLED_SECONDS`: then those inside hang, and this frame comes in beside them. Or they flow, but take longer than
        `PLACE_SECONDS`: then they are slow, and nobody waits for them for `SLOW_SECONDS`. So a neighbour that drips bytes holds the
        others up for 20 seconds in ten minutes, and costs the memory of one more frame.
        """
        if length < LARGE:
            return False  # small frames need no place: many of them are less than one large frame
        clock = asyncio.get_running_loop().time
        end = clock() + PLACE_SECONDS
        while waited_for := {other for other in self._inside if self._slow.get(other, 0.0) < clock()}:
            # Several may wait. When one leaves, all of them wake and look again; the first to look comes in, and the others
            # find it inside. No task runs between the look and `add`, since neither of them awaits anything.
            pulse = self._pulse
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(STALLED_SECONDS, end - clock())):
                    await self._left.wait()
            if clock() >= end:  # those who were inside before, and still are, have had their time
                self._slow |= dict.fromkeys(waited_for & self._inside, clock() + SLOW_SECONDS)
            if (
                self._pulse == pulse
            ):  # no byte came meanwhile: those inside hang, or one of them has just left
                break
        self._inside.add(peer)
        return True

    def leave(self, peer: NodeId) -> None:
        self._inside.discard(peer)
        self._left.set()


class Stream(Protocol):
    """What the two ends of a gRPC stream have in common."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


class Link:
    """What is to be sent to one neighbour, and the conversation with it, if there is one.

    Attributes:
        took: seconds in which the last payload of several messages left; 0 if none has.
        messages: how many payloads have left, of whatever kind.
        where: the address at the other end of the newest connection.
    """

    def __init__(self, peer: NodeId, room: Room, hub: Hub) -> None:
        self.peer, self._room, self._hub = peer, room, hub
        self.took, self.where = 0.0, ""
        self.messages = 0
        self._leaving: _Parcel | None = None
        self._began = self._moved = 0.0  # when what is leaving has begun to, and when a part of it last left
        self._queue: deque[_Parcel] = deque()
        self._wake = asyncio.Event()
        self._conversation: asyncio.Task[None] | None = None
        self._refused = ""
        self._silent: asyncio.Task[None] | None = None
        self._strikes, self._struck = 0, 0.0

    def left_out(self, now: float) -> float:
        """For how many seconds nobody talks to this neighbour, since it broke rules."""
        return max(0.0, self._struck + self._penalty() - now)

    def _penalty(self) -> float:
        first, most = LEFT_OUT
        return 0.0 if self._strikes < 2 else min(most, first * 2.0 ** min(self._strikes - 2, 20))

    def _strike(self, now: float) -> None:
        self._strikes = 1 if now - self._struck > FORGIVEN_SECONDS else self._strikes + 1
        self._struck = now

    @property
    def up(self) -> bool:
        return self._conversation is not None

    @property
    def busy(self) -> bool:
        """Whether something is queued or on its way."""
        return self._leaving is not None or bool(self._queue)

    def outstanding(self, round_: RoundNo, now: float, *, still: float, whole: float) -> int:
        """Bytes of a round's frames that are queued or on their way; 0 if its neighbour does not read what is on its way:
        some of it in `still` seconds, all of it in `whole`. Nobody waits for such a one.
        """
        leaving = self._leaving
        if leaving is not None and (now > self._moved + still or now > self._began + whole):
            return 0
        parcels = (*self._queue, *([] if leaving is None else [leaving]))
        return sum(len(parcel.payload) for parcel in parcels if parcel.round_ == round_)

    def send(self, kind: Message, payload: Buffer, round_: RoundNo | None = None) -> None:
        """Queue something; it is dropped if the link is down. Of statuses in a row only the last one counts."""
        if self.up:
            self._queue.append(_Parcel(kind, payload, round_))
            self._drop_old_statuses()
            self._wake.set()

    def forget_before(self, round_: RoundNo) -> None:
        """Drop frames of earlier rounds that have not begun to leave: nobody waits for them any more."""
        self._queue = deque(
            parcel for parcel in self._queue if parcel.round_ is None or parcel.round_ >= round_
        )
        self._drop_old_statuses()

    def forget_like(self, head: bytes) -> None:
        """Drop frames that begin in this way and have not begun to leave: a newer one says what holds now."""
        self._queue = deque(
            parcel
            for parcel in self._queue
            if parcel.kind is not Message.FRAME or bytes(parcel.payload[: len(head)]) != head
        )
        self._drop_old_statuses()

    def _drop_old_statuses(self) -> None:
        """Keep the last one of a row: a neighbour that does not read must not fill this peer's memory."""
        kinds = [parcel.kind for parcel in self._queue]
        last = [k for k, pair in enumerate(pairwise(kinds)) if pair == (Message.STATUS, Message.STATUS)]
        for k in reversed(last):
            del self._queue[k]

    async def first_message(self, stream: Stream, seconds: float) -> Any:
        """What a neighbour that has dialled says first. A newer stream replaces one that is still silent."""
        if self._silent is not None:
            self._silent.cancel()
        task = self._silent = asyncio.current_task()
        try:
            async with asyncio.timeout(seconds):
                return await stream.read()
        finally:
            if self._silent is task:
                self._silent = None

    def read_hello(self, message: object) -> None:
        """Look at the first message: it must be a greeting."""
        if not isinstance(message, bytes):
            raise Refusal("it ended the connection before it said who it is")
        kind, body = chunks.read(message)
        if kind is Message.REFUSED:
            raise Refusal(_refusal_of(body))
        if kind is not Message.HELLO or len(body) > HELLO_LIMIT:
            raise Refusal("it does not begin with a hello")
        with _blamed():
            self._hub.hello_from(self.peer, bytes(body), self.where)

    async def talk(self, stream: Stream, greet: Callable[[], Awaitable[None]]) -> bool:
        """Greet, then send and listen until the stream ends. A newer conversation replaces an older one.

        Returns whether it ended without a refusal by this side; the hub is told of one.
        """
        task = asyncio.current_task()
        assert task is not None
        reason = ""
        try:
            await greet()
            # Only now does it count: a stranger that cannot greet must not end a conversation that works. A neighbour that was
            # cut off may dial again long before this side learns that the old stream is dead, so the newer one wins.
            if self._conversation is not None:
                self._conversation.cancel()
            self._conversation = task
            self._empty()  # what was queued for the old conversation is of a time that the neighbour has missed
            self._refused = ""
            self._hub.connected(self)
            async with asyncio.TaskGroup() as group:
                # The group ends both halves together: if sending fails, listening is cancelled, and the other way round. Sending
                # never ends by itself, so it is cancelled when the neighbour has said its last word.
                sender = group.create_task(self._send_all(stream))
                await self._listen(stream)
                sender.cancel()
        except* Refusal as group:
            reason = str(group.exceptions[0])
            again, self._refused = reason == self._refused, reason  # it will dial again, and again
            level = logging.DEBUG if again else logging.WARNING
            log.log(level, "node %d: %s", self.peer, reason, extra={"peer_id": self.peer})
            if self._conversation is task:  # it was let in, so this is no difference of versions or settings
                self._strike(time.monotonic())
            self._hub.sent_away(self.peer, reason)
            # It is told why, if it still reads; if it does not, the reason stands in our log.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2):
                    await stream.write(bytes([Message.REFUSED]) + reason.encode())
        finally:
            if self._conversation is task:  # else a newer one has replaced this one, and the link is up
                self._over()
        return not reason

    def end(self) -> asyncio.Task[None] | None:
        """End the conversation, if there is one; its task is over a little later."""
        task = self._conversation
        if task is not None:
            self._over()
            task.cancel()
        return task

    def _over(self) -> None:
        self._conversation = None
        self._empty()
        self._hub.disconnected(self)

    def _empty(self) -> None:
        self._queue.clear()
        self._leaving = None

    async def _send_all(self, stream: Stream) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            await self._send_one(stream, self._queue.popleft())

    async def _send_one(self, stream: Stream, parcel: _Parcel) -> None:
        clock = asyncio.get_running_loop().time
        self._leaving, self._began, self._moved = parcel, clock(), clock()
        for message in chunks.written(parcel.kind, parcel.payload):
            await stream.write(message)
            self._moved = clock()
        self.messages += 1
        if len(parcel.payload) > chunks.CHUNK:
            self.took = self._moved - self._began
        self._leaving = None

    async def _listen(self, stream: Stream) -> None:
        """Take in messages until the stream ends.

        At most one long payload is under way on a stream, in order, and short messages may come between its pieces. This reads on
        only when the hub has taken a payload in, so gRPC's flow control holds the neighbour back meanwhile.
        """
        coming: Assembly | None = None
        inside = (
            False  # whether this link holds a place in the room, which must be given back whatever happens
        )
        try:
            while (message := await stream.read()) is not grpc.aio.EOF:
                kind, body = chunks.read(message)
                if kind in chunks.LONG and coming is None:
                    coming = Assembly(kind, body)
                    coming.check(await self._most(kind))
                    inside = await self._room.enter(self.peer, coming.length)
                    coming.begin()
                elif kind is Message.MORE and coming is not None:
                    coming.add(body)
                    self._room.beat()
                elif kind is Message.REFUSED:
                    log.warning("node %d: %s", self.peer, _refusal_of(body), extra={"peer_id": self.peer})
                    self._hub.failed(self.peer, _refusal_of(body))
                    return
                else:
                    with _blamed():
                        self._take_short(kind, body)
                if coming is not None and (payload := coming.whole) is not None:
                    with _blamed():
                        await self._take_long(coming.kind, payload)
                    coming = payload = None  # a frame can be large: nothing here may keep it
                    if inside:
                        inside = False
                        self._room.leave(self.peer)
        finally:
            if inside:
                self._room.leave(self.peer)

    async def _most(self, kind: Message) -> int:
        return self._hub.largest_roster() if kind is Message.ROSTER else await self._hub.largest_frame()

    def _take_short(self, kind: Message, body: memoryview) -> None:
        if kind is Message.STATUS:
            self._hub.status(self.peer, bytes(body))
        elif kind is Message.HELLO and len(body) <= HELLO_LIMIT:
            self._hub.hello_from(self.peer, bytes(body), self.where)
        else:
            raise chunks.misplaced(kind)

    async def _take_long(self, kind: Message, payload: memoryview) -> None:
        if kind is Message.ROSTER:
            self._hub.roster_from(self.peer, bytes(payload))
        else:
            await self._hub.frame(self.peer, payload)


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    """Whatever goes wrong here is what the neighbour's words did: it is sent away, and the round of the others goes on."""
    try:
        yield
    except CesarError:
        raise
    except Exception as error:
        log.exception("what a neighbour sent made this peer fail")
        raise Refusal(f"what it sent could not be read: {type(error).__name__}") from error


def _refusal_of(body: memoryview) -> str:
    said = bytes(body[: 4 * MOST]).decode(errors="replace")
    return f"it refuses this peer: {escaped(said, MOST)}"
