"""Cells with a member that lies: every frame that it sends passes through a function, which may change it, withhold it or add others."""

import hashlib
import struct

import numpy as np

import cesar
from cesar.cell_node import CellNode
from cesar.protocol.events import AggregateReady, Deadlines
from support.harness import SESSIONS, real_keys

AGREE, SCATTER, EXCHANGE, GATHER, MISSED, MODEL, VOUCH, OFFER, VOTE = range(6, 15)
HEAD = 28
SIZE = 256  # four words for four members


def header(kind, round_, sender, session=SESSIONS[0]):
    return struct.pack("<2sBBII16s", b"CE", 3, kind, round_, sender, session)


def slice_digest(body):
    return hashlib.sha256(b"cesar cell slice" + body).digest()


class Stage:
    """Honest nodes, and liars among them whose frames are changed on the way; one round after the other.

    Attributes:
        reports: node → how its last round has ended.
        refused: (node, error) of every frame that was refused in it.
    """

    def __init__(self, nodes, *, size=SIZE, seed=1, scale_bits=None, own_pace=False, **settings):
        self.method = cesar.Cells(**{"size": 4, "ring_bits": 32, **settings})
        self.plan, self.size = self.method.plan(nodes, seed=seed), size
        self.start = np.zeros(size, dtype=np.float32)
        self.scale_bits, self.own_pace, self.attempts, self.round_ = scale_bits, own_pace, 0, 0
        self.nodes = {n: self.node(n) for n in range(nodes)}
        self.models = {n: self.start.copy() for n in self.nodes}
        self.reports, self.refused = {}, []

    def node(self, n, state=None):
        return CellNode(
            n,
            self.method,
            self.size,
            session=SESSIONS[0],
            keys=real_keys(SESSIONS[0], n),
            first_round=self.round_,
            state=state,
            scale_bits=self.scale_bits,
            own_pace=self.own_pace,
        )

    def common(self, n):
        return self.nodes[n].state.common

    def unsent(self, n):
        return self.nodes[n].state.unsent

    def round(self, steps, lie=None, *, away=(), before=(), metrics=None):
        """Everybody trains by `steps` and averages.

        Args:
            steps: None if all go on with what they have not handed in.
            metrics: node → what it measures.
            lie: (sender, recipient, kind, payload) → the payloads that come in its place; None for the very same.
            away: who takes no part.
            before: (recipient, sender, payload) that come in first.
        """
        self.reports, self.refused, pool, now = {}, [], list(before), 0.0
        up = [n for n in self.nodes if n not in away]
        for n in up:
            self.attempts += 1
            entropy = np.random.default_rng((self.attempts, n)).bytes
            self.nodes[n].begin_round(
                self.round_,
                self.plan.place(n),
                None if steps is None else (self.models[n] + steps[n]).astype(np.float32),
                reference=self.start if self.nodes[n].fresh else None,
                metric=None if metrics is None else metrics[n],
                entropy=entropy,
                deadlines=Deadlines(announce=1.0, relay=2.0, share=3.0),
            )
        while len(self.reports) < len(up):
            for n in up:
                pool += self._collect(n, lie)
            if not pool:
                now += 0.5
                assert now < 5.0, "a round ends"
                for n in up:
                    self.nodes[n].tick(now)
                continue
            to, sender, payload = pool.pop(0)
            if to in up:
                try:
                    self.nodes[to].receive(sender, payload)
                except cesar.RemoteProtocolError as error:
                    self.refused.append((to, error))
        for n in up:
            self.nodes[n].close()
        self.round_ += 1

    def _collect(self, n, lie):
        node, found = self.nodes[n], []
        for out in node.outbound():
            for to in out.recipients:
                payload = bytes(out.frame.payload)
                told = None if lie is None else lie(n, to, int(out.frame.kind), payload)
                found += [(to, n, p) for p in ([payload] if told is None else told)]
        node.saved()
        while (event := node.next_event()) is not None:
            if isinstance(event, AggregateReady):
                self.reports[n], self.models[n] = event, event.vector.copy()
            else:
                self.refused.append((n, event.error))
        return found

    def cells(self, what, nodes=None):
        """One word of the reports of these nodes."""
        return {n: getattr(self.reports[n].cell, what) for n in (self.reports if nodes is None else nodes)}
