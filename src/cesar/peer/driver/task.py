"""What a peer averages, and how: the layout of its model, its method, and what top-k compares with.

A peer trains or settles. At the end of training peers average without training for some rounds, by another rule than in
training (`Method.settled`), so the two must never meet in one sum: each has a session of its own, and
neighbours learn from a peer's status which of them it is in (`messages.Status`).
"""

from __future__ import annotations

import hashlib
import logging
import struct
import time

import numpy as np

from cesar.base.errors import DataError
from cesar.base.types import Vector
from cesar.graph.cells import CELLS
from cesar.graph.neighbourhood import mean_degree
from cesar.methods import Method
from cesar.node import Node
from cesar.peer.driver.membership import Membership
from cesar.peer.net.messages import TRAINS, Hello, Status, share_in
from cesar.peer.trust.config import PeerConfig, Purpose, session_of
from cesar.peer.trust.roster import Roster

log = logging.getLogger("cesar.peer")

PARTS = 1_000_000
"""A share is told to neighbours in millionths, so that it is the same number at both ends."""


def mode_of(share: float) -> int:
    """What neighbours are told of a peer that settles with this share."""
    if not 0.0 < share <= 1.0:
        raise DataError(f"share is {share}, but the fraction to settle with must be above 0 and at most 1")
    return max(1, round(share * PARTS))


class Task:
    """What one peer brings to rounds.

    Attributes:
        in_cells: peers average in cells (`driver.cells`).
        method: how it averages while it trains.
        mode: whether it trains, settles and with what share, or has settled (`messages.Status`).
        made_for: what the node that was made last shares; see `messages.share_in`.
        tensors: the sizes of the model's tensors, once there is one; each gets a scale of its own.
        reference: the model after the last round, or the first one; top-k ranks what changed since.
        memory: what was last sent, for top-k with memory. It never leaves the peer.
    """

    def __init__(self, config: PeerConfig, roster: Roster, purpose: Purpose, session: bytes | None) -> None:
        self._config, self._purpose, self._fixed_session = config, purpose, session
        self.in_cells = config.tables.method.name == CELLS and purpose != "check"
        self.method = self.usable(roster)
        self.mode = self.made_for = TRAINS
        self.tensors: tuple[int, ...] | None = None
        self.reference: Vector | None = None
        self.memory: Vector | None = None
        self._warned = False

    def usable(self, roster: Roster) -> Method:
        """The method on this roster's graph; raises where they do not go together."""
        return self._config.cells(roster) if self.in_cells else self._config.method(roster, self._purpose)

    @property
    def remembers(self) -> bool:
        """Whether the method ranks by what was last sent."""
        return self.method.sparsifier.memory

    def session(self, roster: Roster, mode: int) -> bytes:
        """What peers that average with one another in this mode have in common."""
        assert self.tensors is not None
        return self._fixed_session or session_of(roster, self.tensors, self._purpose, mode)

    @property
    def sent(self) -> Vector | None:
        """What counts as sent so far, for a checkpoint; None where the method does not ask or nothing is known."""
        if not self.remembers:
            return None
        return self.reference if self.memory is None else self.memory

    @property
    def ranks(self) -> bool:
        """Whether the method compares the model with an earlier one."""
        return self.method.sparsifier.ranks

    def start_from(self, vector: Vector) -> None:
        """The model before training, unless an earlier one is known: what top-k compares the first round with."""
        if self.ranks and self.reference is None:
            self.reference = vector.copy()

    def enter(self, vector: Vector, tensors: tuple[int, ...] | None) -> tuple[int, ...]:
        """The sizes of this model's tensors.

        Raises:
            DataError: it is no vector, or not of the layout that was averaged so far.
        """
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.flags.c_contiguous:
            raise DataError(
                "a model is one contiguous float32 vector; use numpy.ascontiguousarray(v, numpy.float32)"
            )
        sizes = tensors or (len(vector),)
        if sum(sizes) != len(vector):
            raise DataError(f"the sizes of the tensors do not add up to {len(vector)} parameters")
        if self.tensors is not None and sum(self.tensors) != len(vector):
            raise DataError(
                f"the model has {len(vector)} parameters, but had {sum(self.tensors)} in earlier rounds"
            )
        if self.tensors is not None and self.tensors != sizes:
            raise DataError(
                f"the model has {len(sizes)} tensor(s) and had {len(self.tensors)} in earlier rounds, or of other sizes; "
                "average it in the same way every time"
            )
        for kept, what in ((self.reference, "compares with"), (self.memory, "remembers")):
            if kept is not None and len(kept) != len(vector):
                raise DataError(
                    f"the model has {len(vector)} parameters, but what this peer {what} has {len(kept)}; "
                    "is the checkpoint that of another model?"
                )
        if self.mode == TRAINS and self.ranks and self.reference is None and not self._warned:
            self._warned = True
            log.warning(
                "top-k ranks this round by size: peer.start_from(model) before training tells it the first model"
            )
        return sizes

    def node(self, membership: Membership, first_round: int) -> Node:
        """A node that averages in this mode, on the roster that holds now."""
        assert self.tensors is not None
        roster, method, share = membership.roster, self.method.edges, share_in(self.mode)
        assert method is not None, "cells have nodes of their own"
        if share:
            method = method.settled(share / PARTS, mean_degree(roster.graph))
        session = self.session(roster, share)
        node = Node(
            membership.hood.node,
            method,
            sum(self.tensors),
            session=session,
            keys=membership.keys(session),
            first_round=first_round,
            tensors=self.tensors,
            scale_bits=self._config.tables.rounds.scale_bits or method.scale_bits,
        )
        node.memory, self.made_for = self.memory, share
        return node

    def ended(self, node: Node, out: Vector) -> None:
        """A round of this node has brought a new model."""
        if self.ranks:
            self.reference = out
        if self.remembers:
            self.memory = node.memory

    def greeting(self, membership: Membership, status: Status, *, satisfied: bool) -> Hello:
        """Who this is and what must be the same at both ends."""
        return Hello(
            node=membership.hood.node,
            network=membership.roster.network_id.hex(),
            roster=membership.roster.version,
            purpose=self._purpose,
            digest=membership.roster.digest.hex(),
            size=None if self.tensors is None else sum(self.tensors),
            layout=None if self.tensors is None else layout_of(self.tensors),
            status=status,
            time=time.time(),
            satisfied=satisfied,
        )


def layout_of(tensors: tuple[int, ...]) -> str:
    """How a model is cut into tensors, in words that differ where it does."""
    digest = hashlib.sha256(struct.pack(f"<{len(tensors)}Q", *tensors)).hexdigest()[:8]
    return f"{len(tensors)} tensor{'s' if len(tensors) > 1 else ''} (layout {digest})"
