"""The canary: one round with a random model of the real size, before hours of training.

It goes through everything that a round of a cell has: links, agree, scatter, exchange and gather, with the real settings and the real
number of parameters. Vectors are those of the check, which everybody can compute, so nothing secret is in it. Purpose and session are its own, and
all that a peer writes goes to a folder that is gone afterwards: the common model, what is not handed in yet, counters and state stay as they are. Those who
train neither take part nor wait for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from cesar.base.errors import ConfigError
from cesar.base.types import NodeId
from cesar.graph.cells import CELLS
from cesar.peer.driver import state as states
from cesar.peer.driver.membership import newest
from cesar.peer.driver.report import Report
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.driver.state import StateFile
from cesar.peer.ops.check import absence, vector_of
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.config import PeerConfig, session_of
from cesar.peer.trust.identity import Identity
from cesar.protocol.cell_round import CellPhase

PURPOSE: Final = "canary"
Trace = list[tuple[float, CellPhase, frozenset[NodeId]]]
_PAUSE = 0.2
_SLOW = 0.5
"""A member that this peer waited for longer than this part of the round is called slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What a test round has shown.

    Attributes:
        parameters: of the model.
        members: who was in the sum, this peer among them; nobody if it did not come about.
        absent: members of the cell that did not take part, and why.
        heard: other cells that were heard.
        bytes: what this peer sent.
        seconds: from the moment when all had agreed until the new model was there.
        phases: what these were spent on.
        waited: member or keeper of another cell → for how many of these seconds this peer waited for it.
    """

    parameters: int
    members: tuple[int, ...] = ()
    absent: dict[int, str] = field(default_factory=dict)
    heard: tuple[int, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the whole cell has added up."""
        return bool(self.members) and not self.absent

    @property
    def slow(self) -> tuple[int, ...]:
        """Whom this peer waited for during most of the round, the slowest first."""
        late = [node for node, seconds in self.waited.items() if seconds > _SLOW * self.seconds]
        return tuple(sorted(late, key=lambda node: -self.waited[node]))

    def lines(self) -> list[str]:
        """For people."""
        size = f"{self.parameters:,} parameters, {4 * self.parameters / 1e6:,.1f} MB"
        if not self.members:
            said = [f"canary: the round did not come about ({size})"]
        else:
            spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.phases.items())
            slow = ", ".join(f"node {node} ({self.waited[node]:.2f} s)" for node in self.slow)
            said = [
                f"canary: {len(self.members)} members added up {size}; this peer sent {self.bytes / 1e6:,.1f} MB",
                f"canary: {self.seconds:.2f} s after all had agreed: {spent}; heard {len(self.heard)} other cell(s)",
                f"canary: waited longest for {slow}" if slow else "canary: nobody kept this peer waiting",
            ]
        return said + [f"canary: node {node} did not take part: {why}" for node, why in self.absent.items()]


async def fly(path: str | Path, tensors: tuple[int, ...], wait: float | None = None) -> Canary:
    """Make the test round with a model that is cut into these tensors.

    Args:
        wait: seconds for the other members of the cell to come; by default the ceiling of a deadline.

    Raises:
        ConfigError: a file is wrong, another process runs this peer, or it is in no cell.
    """
    config = PeerConfig.load(path)
    if config.tables.method.name != CELLS:
        raise ConfigError(
            "a canary is a round of a cell, and this network has none; `cesar peer check` makes a round of another kind"
        )
    identity = Identity.load(config.keys)
    roster = newest(
        config.folder,
        StateFile(config.state / states.FILE),
        identity,
        Consent(config.tables.peer.approve),
    )
    held = states.lock(config.state)  # the folder is not touched, but a peer runs once
    try:
        with TemporaryDirectory(prefix="cesar-canary-") as scratch:
            peer = AsyncPeer(
                replace(config, scratch=Path(scratch)),
                identity,
                roster,
                purpose=PURPOSE,
                # Everybody counts alike here: what a site really has is in one sum, that of training.
                samples=1 if config.tables.method.weight == "samples" else None,
            )
            try:
                await peer.start()
                patience = config.tables.rounds.ceiling if wait is None else wait
                return await _round(peer, tensors, time.monotonic() + patience)
            finally:
                await peer.close()
    finally:
        os.close(held)


async def _round(peer: AsyncPeer, tensors: tuple[int, ...], deadline: float) -> Canary:
    assert peer.cells is not None
    assert peer.roster.plan is not None
    partners = peer.roster.plan.place(peer.id).view
    size = sum(tensors)
    model = vector_of(session_of(peer.roster, tensors, PURPOSE), peer.id, size)
    metric = 0.0 if peer.config.tables.method.metric else None
    await peer.start_from(np.zeros(size, dtype=np.float32))
    trace: Trace = []
    peer.cells.trace = trace
    while True:
        report = await peer.average_vector(model, tensors, metric=metric)
        now = time.monotonic()
        if report.summed or now >= deadline:
            break
        await asyncio.sleep(_PAUSE)
    absent = {int(node): _why(peer, node) for node in partners if node not in report.contributors}
    if report.summed:
        peer.satisfy()  # partners may still lack an answer
        await peer.reception.until(
            lambda: all(_done(peer, node) for node in partners), max(_PAUSE, deadline - now)
        )
    return _result(size, peer.id, report, absent, trace, now)


def _done(peer: AsyncPeer, node: NodeId) -> bool:
    known = peer.neighbours[node]
    return known.satisfied or not known.there_for(PURPOSE)


def _why(peer: AsyncPeer, node: NodeId) -> str:
    """Why a member of the cell was not in the sum."""
    known = peer.neighbours[node]
    if not known.up:
        return absence(peer, peer.roster.members[node], known.last_error)
    if known.purpose != PURPOSE:
        doing = "trains" if known.purpose == "train" else "checks"
        return f"it is there, and {doing}; start it with a canary, too (`cesar peer run --canary`)"
    return "it is there, and waits for others"


def _result(
    size: int,
    node: int,
    report: Report,
    absent: dict[int, str],
    trace: Trace,
    end: float,
) -> Canary:
    if not report.summed:
        return Canary(parameters=size, absent=absent)
    phases: dict[str, float] = {}
    waited: dict[int, float] = {}
    # Waiting for everybody to come is not part of a round. What follows the last agreement is.
    first = max((k for k, (_, phase, _) in enumerate(trace) if phase is CellPhase.AGREE), default=-1) + 1
    times = [*(then for then, _, _ in trace[first:]), end]
    for (_, phase, awaiting), begin, until in zip(trace[first:], times, times[1:], strict=False):
        name = phase.name.lower()
        phases[name] = phases.get(name, 0.0) + until - begin
        for other in awaiting:
            waited[int(other)] = waited.get(int(other), 0.0) + until - begin
    return Canary(
        parameters=size,
        members=tuple(sorted((node, *report.contributors))),
        absent=absent,
        heard=tuple(sorted(report.heard)),
        bytes=report.total_bytes,
        seconds=end - times[0],
        phases=phases,
        waited=waited,
    )
