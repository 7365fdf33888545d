"""A member of a cell as a process, whose training can be told apart in every model.

The t-th local phase of a site adds 1 at a place that nobody else touches, its *atom*. An atom that is in one sum over m members has at
most 1/m in any model, however cells average. It may have more if its sum was in doubt and it was handed in again, among the same
members, after another cell had heard of the first sum. Zeros show what is missing. A site writes down which of its atoms its own model has lost, and when: in a crash, or because the cell threw them away.

An atom can also fade: a cell that hears cells which have not heard it gives half of its model up each time. An atom that vanishes from
one round to the next was thrown away; one that was tiny before has faded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import signal
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import CesarError
from cesar.peer.api.peer import Peer, on_loop
from support import worker
from support.liar import Liar

ATOMS = 1500
"""Local phases of one site that a model has room for."""

PHASE, NOTES, FINAL, CLOCK = "phase", "cell.jsonl", "final.npy", "clock"
AGAIN = 0.2501
"""More than an atom has that was handed in once, in a cell of four."""

THERE = 1e-6
"""Less than an atom has in any model that has it."""

FAINT = 16 * THERE
"""An atom that had less than this has faded; two sums and what they hear leave a quarter of it."""


def take_part(folder: Path, nodes: int, last: Path, namespace: str | None, pause: float) -> None:
    """Train until the file `last` is there, then settle. Killed at any moment, it goes on from what the peer kept."""
    signal.alarm(3600)
    if namespace is not None:
        worker.enter(namespace)
    logging.basicConfig(filename=folder / "log", level=logging.INFO, format="%(asctime)s %(message)s")
    with Peer.join(folder, wait=5.0) as peer:
        own = slice(ATOMS * peer.id, ATOMS * (peer.id + 1))
        model = np.zeros(ATOMS * nodes, np.float32)
        trained = phases(folder)
        peer.start_from(model)
        note(folder, event="started", lost=missing(model[own], trained, known_lost(folder)))
        while worker.wanted(last, -1) or trained < 1:
            time.sleep(pause)
            if trained < ATOMS:
                count(folder, trained + 1)  # before it is trained: no place is used twice
                model[own][trained] += 1
                trained += 1
            before = model[own].copy()
            report = peer.average_vector(model)
            note(
                folder,
                event="round",
                **gone(model[own], before, trained, known_lost(folder)),
                held=held(peer),
                report=dataclasses.asdict(report),
            )
        before = model[own].copy()
        reports = peer.settle(model)
        np.save(folder / FINAL, model)
        note(
            folder,
            event="settled",
            **gone(model[own], before, trained, known_lost(folder)),
            settled=bool(reports and reports[-1].settled),
            handed_in=all(report.summed or not report.unsent for report in reports),
        )


def take_part_by_another_clock(folder: Path, *arguments: object) -> None:
    """The same, with a clock that is off by as many seconds as the file `clock` in the folder says."""

    def off() -> float:
        path = folder / CLOCK
        return float(path.read_text() or 0) if path.exists() else 0.0

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=off())

    right = time.time
    time.time = lambda: right() + off()
    for module in [module for name, module in sys.modules.items() if name.startswith("cesar.peer.")]:
        if getattr(module, "datetime", None) is datetime:
            module.datetime = Jumping  # type: ignore[attr-defined]
    try:
        take_part(folder, *arguments)  # type: ignore[arg-type]
    except CesarError:
        logging.getLogger("cesar.peer").exception("ended")
        raise SystemExit(1) from None


def lie(folder: Path, nodes: int, last: Path, _namespace: str | None, pause: float) -> None:
    """A member that changes, repeats, withholds and invents what it says, until the test ends."""
    signal.alarm(3600)
    logging.basicConfig(filename=folder / "log", level=logging.INFO, format="%(asctime)s %(message)s")
    rng = np.random.default_rng(os.getpid())
    while worker.wanted(last, -1):
        try:
            with Peer.join(folder, wait=5.0) as peer:
                model = np.zeros(ATOMS * nodes, np.float32)
                peer.start_from(model)
                liar = Liar(peer._peer, rng)
                while worker.wanted(last, -1):
                    time.sleep(pause)
                    model += rng.normal(size=model.size).astype(np.float32)
                    peer.average_vector(model)
                    note(folder, event="lied", lies=liar.lies)
        except CesarError:
            time.sleep(pause)


def held(peer: Peer) -> dict[str, object]:
    """The common model that this member holds: of which round, what names it, its hash, and the largest atom in it."""

    async def look() -> dict[str, object]:  # where the node works: a round may be going on
        assert peer._peer.cells is not None
        node = peer._peer.cells._node
        if node is None or node.fresh or not all(node.state.claim.digests):
            return {}
        claim, common = node.state.claim, node.state.common
        return {
            "round": claim.round_,
            "chain": claim.chain().hex(),
            "hash": hashlib.sha256(common.tobytes()).hexdigest(),
            "most": float(common.max()),
            "again": int((common > AGAIN).sum()),
            "finite": bool(np.isfinite(common).all()),
        }

    return on_loop(look())


def phases(folder: Path) -> int:
    """How many local phases a site has begun, in all its lives."""
    path = folder / PHASE
    return int(path.read_text()) if path.exists() else 0


def count(folder: Path, phases: int) -> None:
    """Write down how many local phases were begun; whoever is killed here leaves the old number, not an empty file."""
    draft = folder / f"{PHASE}.new"
    draft.write_text(str(phases))
    draft.replace(folder / PHASE)


def missing(own: NDArray[np.float32], trained: int, known: set[int]) -> list[int]:
    """Atoms that the model lacks and that were not known to be lost."""
    return [int(t) for t in np.flatnonzero(own[:trained] < THERE) if int(t) not in known]


def gone(
    own: NDArray[np.float32], before: NDArray[np.float32], trained: int, known: set[int]
) -> dict[str, list[int]]:
    """Atoms that the model lacks now: those that were lost in this step, and those that had faded before it."""
    found = missing(own, trained, known)
    return {
        "lost": [t for t in found if before[t] >= FAINT],
        "faded": [t for t in found if before[t] < FAINT],
    }


def note(folder: Path, **fields: object) -> None:
    """Append a line as a whole."""
    with (folder / NOTES).open("ab", buffering=0) as file:
        file.write((json.dumps({**fields, "pid": os.getpid()}) + "\n").encode())


def notes(folder: Path) -> list[dict]:
    path = folder / NOTES
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def known_lost(folder: Path) -> set[int]:
    return {atom for line in notes(folder) for atom in (*line.get("lost", ()), *line.get("faded", ()))}
