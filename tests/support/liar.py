"""A peer that has its place in the network and keeps no rule: what it sends is made from what an honest one would."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import struct
import time
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np

from cesar.base.errors import CesarError
from cesar.peer.api.peer import Peer
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net.chunks import Message
from support import worker


class Liar:
    """Stands between a peer and its links: frames are changed, repeated, held back and taken from other rounds; statuses,
    greetings and rosters say what is not so.
    """

    def __init__(self, peer: AsyncPeer, rng: np.random.Generator) -> None:
        self._peer, self._rng, self._old = peer, rng, deque(maxlen=60)
        self.lies = 0
        for link in peer.transport.links.values():
            link.send = partial(self._send, link.send)

    def _send(self, send, kind, payload, round_=None) -> None:
        payload = bytes(payload)
        said = list(self._said(kind, payload))
        self.lies += said != [(kind, payload)]
        for what, body in said:
            send(what, body, round_)

    def _said(self, kind, payload):
        draw = self._rng.random()
        if kind is Message.FRAME:
            yield from self._frames(payload, draw)
            if self._rng.random() < 0.1:
                yield Message.STATUS, self._status()
            if self._rng.random() < 0.01:  # these end the conversation, and it has to dial again
                yield Message.ROSTER, self._mutated(self._peer.roster.raw)
            if self._rng.random() < 0.01:
                yield Message.HELLO, self._mutated(self._peer.reception.hello())
        elif kind is Message.STATUS and draw < 0.3:
            yield kind, self._status()
        else:
            yield kind, payload

    def _frames(self, payload, draw):
        self._old.append(payload)
        if draw < 0.3:
            yield Message.FRAME, payload
        elif draw < 0.5:
            yield Message.FRAME, self._flipped(payload)
        elif draw < 0.65:
            yield Message.FRAME, self._mutated(payload)
        elif draw < 0.75:
            yield from [(Message.FRAME, self._flipped(payload)), (Message.FRAME, payload)]
        elif draw < 0.85:
            yield from [
                (Message.FRAME, payload),
                (Message.FRAME, self._old[self._rng.integers(len(self._old))]),
            ]
        elif draw < 0.95:
            ahead = int(self._rng.integers(-2, 4)) + struct.unpack_from("<I", payload, 4)[0]
            yield Message.FRAME, payload[:4] + struct.pack("<I", max(0, ahead)) + payload[8:]
            yield Message.FRAME, payload

    def _status(self) -> bytes:
        """Where it does not stand; now and then where nobody can."""
        here = self._peer.liveness.mine
        ahead = self._rng.choice(
            [1, 2, 3, 50, 10_000, 900_000, 2_000_000_000], p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.04, 0.01]
        )
        current = min(here.current + int(ahead), (1 << 31) - 2)
        return struct.pack("<IIII", current, current + int(self._rng.integers(2)), here.mode, 0)

    def _flipped(self, payload: bytes) -> bytes:
        """Another frame of the same length: other sets, seeds, scales, members or values."""
        changed = bytearray(payload)
        for _ in range(self._rng.integers(1, 4)):
            changed[self._rng.integers(28, max(29, len(changed))) % len(changed)] ^= int(
                self._rng.integers(1, 256)
            )
        return bytes(changed)

    def _mutated(self, payload: bytes) -> bytes:
        changed = bytearray(payload)
        at, count = int(self._rng.integers(len(changed) + 1)), int(self._rng.integers(1, 30))
        match self._rng.integers(4):
            case 0:
                changed[at : at + count] = self._rng.bytes(count)
            case 1:
                del changed[at : at + count]
            case 2:
                changed[at:at] = self._rng.bytes(count)
            case _:
                changed[at : at + 4] = b"\xff\xff\xff\xff"
        return bytes(changed)


def attack(folder: Path, _data: Path, last: Path, _namespace: str | None, pause: float) -> None:
    """Lie as a process of its own, until the test ends."""
    signal.alarm(3600)
    logging.basicConfig(filename=folder / "log", level=logging.INFO, format="%(asctime)s %(message)s")
    rng = np.random.default_rng(os.getpid())
    while worker.wanted(last, -1):
        with contextlib.suppress(CesarError), Peer.join(folder, resume=True, wait=5) as peer:
            liar = Liar(peer._peer, rng)
            while worker.wanted(last, -1):
                time.sleep(pause)
                peer.average_vector(rng.normal(size=worker.SIZE).astype(np.float32))
                with (folder / "lies").open(
                    "ab", buffering=0
                ) as file:  # killed at any moment, it has whole lines
                    file.write(f"{liar.lies}\n".encode())
