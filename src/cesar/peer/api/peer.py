"""Peer: secure averaging in a few lines of a training loop.

    with cesar.Peer.join(folder) as peer:
        peer.start_from(model)  # every site passes the same first model
        for batch in loader:
            train_step(model, batch)
            if peer.due():  # every few steps, as peer.toml says
                peer.average(model)  # in place
        peer.settle(model)  # last rounds without training: all end with one model

All peers of a process share one event loop on a thread of its own; the calls here wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from cesar.base import files
from cesar.base.errors import CanaryError, DataError
from cesar.base.types import Vector
from cesar.methods import SETTLE_ROUNDS, SETTLE_SHARE
from cesar.peer.driver.best import Best
from cesar.peer.driver.report import Report
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops import canary as canaries
from cesar.peer.ops.canary import Canary
from cesar.peer.ops.status import StatusPage, snapshot

if TYPE_CHECKING:
    import torch
    from torch import nn

    from cesar.peer.api.model import Which

log = logging.getLogger("cesar.peer")

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
    """One participant. Make it with `Peer.join`, and close it when training is over: `with` does so."""

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
        self.alone = False
        """Whether the last `settle` had to do without a cell that it hears, or its own cell did not add up."""
        self.present: float | None = None
        """The share of all cells that are in the model of the last `settle`, where the network asks for a quorum."""
        self.canary: Canary | None = None
        """What the test round before training has shown, if `join` was asked for one."""
        self._to_start: tuple[str | Path, float | None] | None = None
        self.resumed = False
        """Whether there was a checkpoint to go on from, and `join` was asked to do so."""

    @classmethod
    def join(
        cls,
        path: str | Path,
        *,
        resume: bool = False,
        wait: float | None = None,
        samples: int | None = None,
        canary: bool = False,
    ) -> Self:
        """Take the place that a peer.toml describes, and wait for the neighbours.

        ```python
        with cesar.Peer.join("net/peer-0") as peer:
            print(peer.id, peer.peers)
        ```

        Args:
            path: a peer.toml, or the folder in which it lies.
            resume: go on from the checkpoint in the folder, if there is one; see `save` and `restore`.
            wait: seconds to wait for neighbours; by default the ceiling of a deadline, or its floor to resume.
            samples: how many samples this site trains on, in a network with `weight = "samples"`. It stays the same as long as the
                roster does.
            canary: make a test round first, as soon as the model is known (`start_from`, or the first `average`): one round of the cell with a random
                model of the same size, which leaves no trace. All members of the cell do so together. `peer.canary` has what it showed, and the log says it.

        Raises:
            ConfigError: a file is wrong or missing; says what to do.
        """
        inner = on_loop(_load(path, samples) if canary else _start(path, samples))
        try:
            peer = cls(inner)
        except BaseException:
            on_loop(inner.close())
            raise
        try:
            rounds = inner.config.tables.rounds
            patience = (rounds.floor if resume else rounds.ceiling) if wait is None else wait
            if canary:
                peer._to_start = path, wait
            else:
                on_loop(inner.wait_for_neighbours(patience))
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
        """What the status page shows, as a dictionary: rounds, bytes, neighbours, figures.

        ```python
        print(peer.totals()["rounds_done"])
        ```
        """
        return snapshot(self._peer)

    def show(self, **figures: float) -> None:
        """Put figures on the status page and among the metrics.

        ```python
        peer.show(accuracy=0.93)
        ```
        """
        self._peer.totals.figures.update({name: float(value) for name, value in figures.items()})

    def due(self) -> bool:
        """Count a local step, and say whether it is time to average (`rounds.every` in peer.toml).

        ```python
        if peer.due():
            peer.average(model)
        ```
        """
        self._steps += 1
        return self._steps % self.every == 0

    def start_from(self, model: nn.Module | Vector, *, parameters: Which = "all") -> None:
        """Say what the model is before training. All sites begin with the same one.

        ```python
        torch.manual_seed(0)  # the same first model at every site
        model = build_model()
        peer.start_from(model)
        ```

        In a network of cells this is the first common model. A peer that has been here before gets the model that its
        cell had then: it is written into `model`. Top-k ranks the first round by the changes since this call. Later calls change
        nothing, nor does one after a checkpoint was restored. Other methods do not need it.
        """
        if isinstance(model, np.ndarray):
            self._fly((len(model),))
            on_loop(self._peer.start_from(model))
        elif self._peer.task.ranks or self._peer.cells is not None:
            from cesar.peer.api import model as models  # noqa: PLC0415  (vectors need no torch)

            parts = _tensors(self._peer, model, parameters)
            self._fly(models.lengths(parts))
            vector = models.pack(parts)
            if on_loop(self._peer.start_from(vector)):
                models.unpack(vector, parts)

    def _fly(self, tensors: tuple[int, ...]) -> None:
        """The canary, if one was asked for and has not been; the peer itself starts after it.

        Raises:
            CanaryError: it has failed. Nothing was begun, and the next call tries again.
        """
        if self._to_start is None:
            return
        path, wait = self._to_start
        self.canary = found = on_loop(canaries.fly(path, tensors, wait))
        for line in found.lines():
            log.log(logging.INFO if found.ok else logging.ERROR, "%s", line)
        if not found.ok:
            raise CanaryError("; ".join(line.removeprefix("canary: ") for line in found.lines()))
        self._to_start = None
        on_loop(self._peer.start())
        patience = self._peer.config.tables.rounds.ceiling if wait is None else wait
        on_loop(self._peer.wait_for_neighbours(patience))

    def average(self, model: nn.Module, *, metric: float | None = None, parameters: Which = "all") -> Report:
        """Average a module with the neighbours', in place.

        ```python
        report = peer.average(model)
        if not report.summed:
            print("waiting for", report.missing)  # training goes on; a later call finds the sum
        ```

        In a network of cells this offers what was trained since the last sum, and waits for the cell for about as long as
        the local steps take.

        Args:
            metric: how good this model is on validation data of this site, in a network with `metric = true`; None if it was not
                measured. Nobody learns it: `report.metric` is the mean over all members of the cell, once all have handed one in.
            parameters: "trainable" leaves frozen parameters out, for adapters of a large model; the same at
                all peers.

        Raises:
            DataError: the model or the metric holds NaN or infinity, or the model has another layout than before; nothing was sent.
        """
        from cesar.peer.api import model as models  # noqa: PLC0415

        parts = _tensors(self._peer, model, parameters)
        self._fly(models.lengths(parts))
        vector = models.pack(parts)
        report = on_loop(self._peer.average_vector(vector, models.lengths(parts), metric=metric))
        models.unpack(vector, parts)
        self.last = (model, parameters)
        return report

    @property
    def best(self) -> Best | None:
        """The common model with the best metric so far, its round and its metric; None as long as none was measured.

        ```python
        if peer.best is not None:
            print(peer.best.round, peer.best.metric, len(peer.best.vector))
        ```

        It is kept in the peer's folder, `best.npz`, from start to start.
        """
        return self._peer.best

    def load_best(self, model: nn.Module, *, parameters: Which = "all") -> bool:
        """Put the best common model so far into a module; False, and nothing changes, if there is none.

        ```python
        if peer.load_best(model):
            print("the model of round", peer.best.round)
        ```

        Raises:
            DataError: it is of a model with another number of parameters, or its file is damaged.
        """
        best = self.best
        if best is None:
            return False
        from cesar.peer.api import model as models  # noqa: PLC0415

        parts, vector = _tensors(self._peer, model, parameters), best.vector
        if len(vector) != sum(models.lengths(parts)):
            raise DataError(
                f"the best model has {len(vector)} parameters, and this one {sum(models.lengths(parts))}; load it into the model that was averaged"
            )
        models.unpack(vector, parts)
        return True

    def average_vector(self, vector: Vector, *, metric: float | None = None) -> Report:
        """Average a contiguous float32 vector with the neighbours', in place; it needs no PyTorch.

        ```python
        vector = np.zeros(1000, dtype=np.float32)
        peer.average_vector(vector)
        ```
        """
        self._fly((len(vector),))
        return on_loop(self._peer.average_vector(vector, metric=metric))

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
        """Average without training, in place: at the end all sites have one model.

        ```python
        reports = peer.settle(model)
        print("all cells came:", not peer.alone)
        ```

        In a network of cells a peer hands in what is left, and then averages with other cells as often as their number
        asks for. It waits for cells that still train, up to `rounds.settle_minutes`; `rounds`, `share` and `tolerance` do
        not matter there. Along a graph, neighbours that still train are awaited at first, and can come in later.

        Args:
            rounds: how many at most; fewer if nobody is left who settles.
            share: the fraction of the model to send.
            tolerance: end as soon as a round changes the model by less than this, in relation to its length.
            wait: seconds for others that still train; by default `rounds.settle_minutes` in cells, and else `rounds.ceiling`.
        """
        self.settled = True
        if isinstance(model, np.ndarray):
            vector, parts, sizes = model, None, None
        else:
            from cesar.peer.api import model as models  # noqa: PLC0415

            parts = _tensors(self._peer, model, parameters)
            vector, sizes = models.pack(parts), models.lengths(parts)
        self._fly((len(vector),) if sizes is None else sizes)
        job = self._peer.settle(vector, sizes, rounds=rounds, share=share, tolerance=tolerance, wait=wait)
        reports = on_loop(job)
        self.alone = bool(reports) and reports[-1].settled is False
        self.present = reports[-1].present if reports else None
        if parts is not None:
            models.unpack(vector, parts)
        return reports

    @property
    def quorum(self) -> bool:
        """Whether as many cells as the network asks for (`rounds.settle_quorum`) are in the model of the last `settle`.

        ```python
        if not peer.quorum:
            print("only", peer.present, "of all cells are in this model")
        ```
        """
        return self.present is None or self.present >= self._peer.config.tables.rounds.settle_quorum

    def save(self, model: nn.Module | None = None) -> Path:
        """Write a checkpoint into the peer's folder: the model, and what this peer needs to go on.

        ```python
        peer.save(model)  # as often as you can afford to lose
        ```

        On a full disk the last one stays, and the log says so: training goes on.
        """
        from cesar.peer.api import model as models  # noqa: PLC0415

        task = self._peer.task
        self._checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            models.save(self._checkpoint, model, models.Kept(task.reference, task.sent, self._steps))
        except OSError as error:
            if not files.is_about_disk(error):
                raise
            log.error("no checkpoint: cannot write to %s: %s", self._checkpoint.parent, error.strerror)  # noqa: TRY400
        return self._checkpoint

    def restore(self, model: nn.Module | None) -> bool:
        """Load the checkpoint into the model; False if there is none.

        ```python
        with cesar.Peer.join("net/peer-0", resume=True) as peer:
            if peer.resumed:
                peer.restore(model)
        ```

        Raises:
            DataError: it is that of another model, or lacks what this peer's method needs.
        """
        from cesar.peer.api import model as models  # noqa: PLC0415

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
        """Send what is still to be sent, close the port and end. `with` calls it.

        ```python
        peer.close()
        ```
        """
        if self._page is not None:
            self._page.close()
        on_loop(self._peer.close())


def _tensors(peer: AsyncPeer, model: nn.Module, parameters: Which) -> list[torch.Tensor]:
    """What is averaged of a module."""
    from cesar.peer.api import model as models  # noqa: PLC0415

    return models.tensors(model, parameters, peer.config.tables.rounds.buffers == "average")


async def _load(path: str | Path, samples: int | None) -> AsyncPeer:
    return AsyncPeer.load(path, samples=samples)


async def _start(path: str | Path, samples: int | None) -> AsyncPeer:
    peer = await _load(path, samples)
    await peer.start()
    return peer
