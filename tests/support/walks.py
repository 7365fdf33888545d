"""The way of one share, traced: which modules of ours it goes through, and how often it crosses a border between two.

A crossing is a call of a function in one module from a function in another. What a walk is cut out of is the list of
all calls of a thread, by task: from one call that is known (a frame is asked for, a frame has come) to the next such one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple, Self

import networkx as nx
import numpy as np
from numba.core.dispatcher import Dispatcher

import cesar
from cesar.sim import wires
from support.lan import make_network, met

OURS = str(Path(cesar.__file__).parent)
SIZE = 100


class Call(NamedTuple):
    """A function that was called: its module, and that of the function of ours that called it, if any did."""

    module: str
    name: str
    caller: str | None
    task: int


@dataclass(frozen=True, slots=True)
class Walk:
    """Part of a share's way.

    Attributes:
        stops: modules in the order in which it first comes to them, without the name of the package.
        crossings: how often it goes over a border between two of them.
    """

    stops: list[str]
    crossings: int

    @classmethod
    def of(cls, *parts: list[Call]) -> Walk:
        calls = [call for part in parts for call in part]
        stops = dict.fromkeys(
            name for call in calls for name in (call.caller, call.module) if name is not None
        )
        return cls([*stops], sum(call.caller not in (None, call.module) for call in calls))


# ── recording ───────────────────────────────────────────────────────────────────────────────────────────


class Trace:
    """All calls of functions of the library on this thread, while it is open."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._begun: set[FrameType] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._begun.clear()

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not is_ours(frame.f_code):
            return
        if frame.f_code.co_flags & RESUMED:
            if frame in self._begun:  # a generator or coroutine goes on
                return
            self._begun.add(frame)
        caller = frame.f_back
        while caller is not None and not is_ours(caller.f_code):
            caller = caller.f_back
        came_from = None if caller is None else module_of(caller.f_code)
        self.calls.append(Call(module_of(frame.f_code), frame.f_code.co_qualname, came_from, task_here()))


RESUMED = 0x20 | 0x80 | 0x200
"""Flags of generators, coroutines, and generators that are coroutines."""


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS)


def module_of(code: CodeType) -> str:
    return code.co_filename[len(OURS) + 1 :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def task_here() -> int:
    try:
        return id(asyncio.current_task())
    except RuntimeError:
        return 0


@contextlib.contextmanager
def kernels_in_sight() -> Iterator[None]:
    """Compiled functions are called through a function of Python in their module, for else no trace shows them."""
    changed: list[tuple[ModuleType, str, object]] = []
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "cesar":
            for key, value in [*vars(module).items()]:
                if isinstance(value, Dispatcher):
                    changed.append((module, key, value))
                    setattr(module, key, in_sight(value))
    try:
        yield
    finally:
        for module, key, value in changed:
            setattr(module, key, value)


def in_sight(kernel: Dispatcher) -> FunctionType:
    body = compile("def seen(*given): return kernel(*given)", kernel.py_func.__code__.co_filename, "exec")
    names: dict[str, object] = {"kernel": kernel}
    exec(body, names)
    seen = names["seen"]
    assert isinstance(seen, FunctionType)
    seen.__code__ = seen.__code__.replace(co_name=kernel.__name__, co_qualname=kernel.__name__)
    return seen


# ── cutting out ─────────────────────────────────────────────────────────────────────────────────────────


def part(calls: list[Call], holds: str, begins: str, ends: tuple[str, ...] = ()) -> list[Call]:
    """The first part that holds the call of this name: from a call that begins one to the next that begins or ends one."""
    task = next(call.task for call in calls if call.name == holds)
    ours = [call for call in calls if call.task == task]
    there = next(k for k, call in enumerate(ours) if call.name == holds)
    first = max(k for k in range(there + 1) if ours[k].name == begins)
    after = (k for k in range(first + 1, len(ours)) if ours[k].name in (begins, *ends))
    return ours[first : next(after, len(ours))]


def in_the_simulator() -> tuple[Walk, Walk]:
    """A share of a round, out of its sender and into its receiver."""
    method = cesar.Cesar(sparsifier=cesar.TopK(0.5))
    models = np.random.default_rng(0).standard_normal((5, SIZE)).astype(np.float32)
    ensemble = cesar.Ensemble(nx.complete_graph(5), method, SIZE, seed=1, workers=1)
    ensemble.round(models)  # kernels are compiled, and tables made
    batch, wires.BATCH_BYTES = wires.BATCH_BYTES, 1  # frame by frame
    trace = Trace()
    try:
        with kernels_in_sight():
            ensemble._pool.submit(trace.__enter__).result()  # nodes live on its only thread
            ensemble.round(models)
    finally:
        wires.BATCH_BYTES = batch
        ensemble.close()
    out = part(trace.calls, "Share.allocate", "Wires._send", ("Wires._serve",))
    into = part(trace.calls, "Share.decode", "Engine.receive", ("Wires._send",))
    return Walk.of(out), Walk.of(into)


def among_peers(folder: Path) -> tuple[Walk, Walk]:
    """A share of a round among five peers over TLS, out of node 0, and one into it. On a busy machine a peer can miss the round; then
    others meet.
    """
    for attempt in range(4):
        try:
            return _among_peers(folder / str(attempt))
        except (AssertionError, threading.BrokenBarrierError):
            continue
    raise AssertionError("in four attempts no round had all five peers")


def _among_peers(folder: Path) -> tuple[Walk, Walk]:
    """Every peer has a thread of its own."""
    settings = 'name = "cesar"\nsparsifier = "topk"\nalpha = 0.5'
    network = make_network(folder, nx.complete_graph(5), settings)
    traces: dict[int, list[Call]] = {}
    meeting = threading.Barrier(5, timeout=60)

    async def life(node: int) -> None:
        model = np.random.default_rng(node).standard_normal(SIZE).astype(np.float32)
        async with cesar.AsyncPeer.load(network.folder / f"peer-{node}") as peer:
            await peer.start()
            await met(peer, {*range(5)})
            await peer.average_vector(model)
            await asyncio.to_thread(meeting.wait)
            with kernels_in_sight() if node == 0 else contextlib.nullcontext(), Trace() as trace:
                report = await peer.average_vector(model)
                await asyncio.sleep(0)  # the last share is with its link
            assert len(report.contributors) == 4
            traces[node] = trace.calls
            await asyncio.to_thread(meeting.wait)

    def live(node: int) -> None:
        try:
            asyncio.run(life(node))
        except BaseException:
            meeting.abort()  # the others do not wait for this one
            raise

    with ThreadPoolExecutor(5) as pool:
        for ended in [pool.submit(live, node) for node in range(5)]:
            ended.result()
    calls = traces[0]
    made = part(calls, "Share.allocate", "Liveness.gone")
    sent = part(calls, "written", "Link._send_one")
    into = part(calls, "Share.decode", "read")
    return Walk.of(made, sent), Walk.of(into)


def shown(job: Callable[[], tuple[Walk, Walk]]) -> None:
    for name, walk in zip(("out", "in"), job(), strict=True):
        print(name, walk.crossings)
        for stop in walk.stops:
            print("   ", stop)
