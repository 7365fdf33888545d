"""Peer: secure averaging in three lines of a training loop.

    with cesar.Peer.join("peer.toml") as peer:
        for batch in loader:
            train_step(model, batch)
            if peer.due():
                report = peer.average(model)

All peers of a process share one event loop on a thread of its own; the calls here wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from cesar.errors import DataError
from cesar.methods import SETTLE_ROUNDS, SETTLE_SHARE
from cesar.peer.report import Report
from cesar.peer.runtime import AsyncPeer
from cesar.peer.status import StatusPage, snapshot
from cesar.types import Vector

if TYPE_CHECKING:
    import torch
    from torch import nn

    from cesar.peer.model import Which

CHECKPOINT = "checkpoint.safetensors"
_T = TypeVar("_T")
_starting = threading.Lock()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="cesar peers", daemon=True).start()
    return loop


def on_loop(job: Coroutine[Any, Any, _T]) -> _T:
    """Run something on the peers' event loop and wait for it."""
    with _starting:  # two threads may join first peers at once, and all must share a loop
        loop = _loop()
    future = asyncio.run_coroutine_threadsafe(job, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # a signal ended the waiting: then nobody wants the rest either
        raise


def _answers() -> bool:
    """Whether the event loop of the peers does anything within two seconds."""
    job = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), _loop())
    try:
        job.result(2)
    except TimeoutError:
        job.cancel()
        return False
    return True


class Peer:
    """One participant. Make it with `Peer.join`."""

    def __init__(self, peer: AsyncPeer) -> None:
        self._peer = peer
        self._steps = 0
        self.every = peer.config.tables.rounds.every
        """How many local steps lie between two averages (`rounds.every` in peer.toml)."""
        self._checkpoint = peer.config.checkpoints / CHECKPOINT
        self._page = None if peer.config.tables.peer.status is None else StatusPage(peer, _answers)
        self.last: tuple[nn.Module, Which] | None = None
        """The module that was averaged last, and which of its parameters."""
        self.settled = False
        """Whether `settle` was called."""
        self.resumed = False
        """Whether there was a checkpoint to go on from, and `join` was asked to do so."""

    @classmethod
    def join(cls, path: str | Path, *, resume: bool = False, wait: float | None = None) -> Self:
        """Take the place that a peer.toml describes, and wait for the neighbours.

        Args:
            path: a peer.toml, or the folder in which it lies.
            resume: go on from the checkpoint in the folder, if there is one; see `save` and `restore`.
            wait: seconds to wait for neighbours; by default the ceiling of a deadline, or its floor to resume.

        Raises:
            ConfigError: a file is wrong or missing; says what to do.
        """
        inner = on_loop(_start(path))
        try:
            peer = cls(inner)
        except BaseException:
            on_loop(inner.close())
            raise
        try:
            rounds = inner.config.tables.rounds
            patience = rounds.floor if resume else rounds.ceiling
            on_loop(inner.wait_for_neighbours(patience if wait is None else wait))
            peer.resumed = resume and peer.restore(None)
        except BaseException:
            peer.close()
            raise
        return peer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Peer(id={self.id}, round={self.round}, neighbours={sorted(self._peer.neighbours)})"

    @property
    def id(self) -> int:
        """This peer's number in the roster."""
        return self._peer.id

    @property
    def peers(self) -> int:
        """How many peers the network has."""
        return len(self._peer.roster.members)

    @property
    def round(self) -> int:
        """The round that comes next, as far as this peer knows."""
        return self._peer.next_round

    @property
    def folder(self) -> Path:
        """Where this peer keeps its state, by default beside peer.toml; a good place for results."""
        return self._peer.config.state

    @property
    def place(self) -> int:
        """This peer's position among all by id, from 0: which part of a shared data set is its own."""
        return sorted(self._peer.roster.members).index(self._peer.id)

    def totals(self) -> dict[str, Any]:
        """What the status page shows, as a dictionary: rounds, bytes, neighbours, figures."""
        return snapshot(self._peer)

    def show(self, **figures: float) -> None:
        """Put figures on the status page and among the metrics, such as `peer.show(accuracy=0.9)`."""
        self._peer.totals.figures.update({name: float(value) for name, value in figures.items()})

    def due(self) -> bool:
        """Count a local step; whether it is time to average (`rounds.every` in peer.toml)."""
        self._steps += 1
        return self._steps % self.every == 0

    def start_from(self, model: nn.Module | Vector, *, parameters: Which = "all") -> None:
        """Say what the model is before training: top-k then ranks the first round by what training changes, too.

        Later calls change nothing, nor does one after a checkpoint was restored; other methods do not ask.
        """
        if isinstance(model, np.ndarray):
            self._peer.task.start_from(model)
        elif self._peer.task.ranks:
            from cesar.peer import model as models  # noqa: PLC0415  (vectors need no torch)

            self._peer.task.start_from(models.pack(_tensors(self._peer, model, parameters)))

    def average(self, model: nn.Module, *, parameters: Which = "all") -> Report:
        """Average a module with the neighbours', in place.

        Args:
            parameters: "trainable" leaves frozen parameters out, for adapters of a large model; the same at
                all peers.

        Raises:
            DataError: the model holds NaN or infinity, or has another layout than before; nothing was sent.
        """
        from cesar.peer import model as models  # noqa: PLC0415

        parts = _tensors(self._peer, model, parameters)
        vector = models.pack(parts)
        report = on_loop(self._peer.average_vector(vector, models.lengths(parts)))
        models.unpack(vector, parts)
        self.last = (model, parameters)
        return report

    def average_vector(self, vector: Vector) -> Report:
        """Average a contiguous float32 vector with the neighbours', in place."""
        return on_loop(self._peer.average_vector(vector))

    def settle(
        self,
        model: nn.Module | Vector,
        *,
        rounds: int = SETTLE_ROUNDS,
        share: float = SETTLE_SHARE,
        tolerance: float = 0.0,
        wait: float | None = None,
        parameters: Which = "all",
    ) -> list[Report]:
        """Average without training, in place: at the end, when every model is worse than the mean of all.

        Neighbours take part that settle with the same share, too. Those that still train are awaited at first, and can
        come in later; nobody averages with a peer that trains meanwhile.

        Args:
            rounds: how many at most; fewer if nobody is left who settles.
            share: the fraction of the model to send.
            tolerance: end as soon as a round changes the model by less than this, in relation to its length.
            wait: seconds for neighbours that still train; by default `rounds.ceiling`.
        """
        self.settled = True
        if isinstance(model, np.ndarray):
            vector, parts, sizes = model, None, None
        else:
            from cesar.peer import model as models  # noqa: PLC0415

            parts = _tensors(self._peer, model, parameters)
            vector, sizes = models.pack(parts), models.lengths(parts)
        job = self._peer.settle(vector, sizes, rounds=rounds, share=share, tolerance=tolerance, wait=wait)
        reports = on_loop(job)
        if parts is not None:
            models.unpack(vector, parts)
        return reports

    def save(self, model: nn.Module | None = None) -> Path:
        """Write a checkpoint into the peer's folder: the model, and what this peer needs to go on."""
        from cesar.peer import model as models  # noqa: PLC0415

        task = self._peer.task
        self._checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        models.save(self._checkpoint, model, models.Kept(task.reference, task.sent, self._steps))
        return self._checkpoint

    def restore(self, model: nn.Module | None) -> bool:
        """Load the checkpoint into the model; False if there is none.

        Raises:
            DataError: it is that of another model, or lacks what this peer's method needs.
        """
        from cesar.peer import model as models  # noqa: PLC0415

        if not self._checkpoint.exists():
            return False
        kept = models.restore(self._checkpoint, model)
        task = self._peer.task
        if task.remembers and kept.memory is None:
            raise DataError(
                f"{self._checkpoint} was saved without the memory that this network's method ranks by (memory = true); "
                "start anew without --resume, or resume with a checkpoint that was saved under these settings"
            )
        self._steps, task.memory = kept.steps, kept.memory
        if kept.reference is not None:
            task.reference = kept.reference
        return True

    def close(self) -> None:
        """Send what is still to be sent, close the port and end."""
        if self._page is not None:
            self._page.close()
        on_loop(self._peer.close())


def _tensors(peer: AsyncPeer, model: nn.Module, parameters: Which) -> list[torch.Tensor]:
    """What is averaged of a module."""
    from cesar.peer import model as models  # noqa: PLC0415

    return models.tensors(model, parameters, peer.config.tables.rounds.buffers == "average")


async def _start(path: str | Path) -> AsyncPeer:
    peer = AsyncPeer.load(path)
    await peer.start()
    return peer
