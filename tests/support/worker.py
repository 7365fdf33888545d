"""One peer as a process: softmax regression on its part of the digits, averaged after every local step.

It writes down what a test needs to work out its rounds again: the model before and after each one, what the peer
reported, and how much of the transcript there was by then. Killed at any moment, it goes on from what it wrote.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import cesar
from cesar.peer.api.peer import Peer

PIXELS, CLASSES = 64, 10
SIZE = PIXELS * CLASSES + CLASSES
NOTES, DUMPS = "rounds.jsonl", "models"
RATE = 0.5
_NEW_NETWORK = 0x40000000


def local_step(
    model: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """One step of gradient descent on all of a node's images."""
    weights, bias = model[:-CLASSES].reshape(PIXELS, CLASSES), model[-CLASSES:]
    scores = np.exp(images @ weights + bias - (images @ weights + bias).max(1, keepdims=True))
    error = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES, dtype=np.float32)[labels]
    gradient = np.concatenate([(images.T @ error).ravel(), error.sum(0)]) / len(images)
    return (model - np.float32(RATE) * gradient).astype(np.float32)


def accuracy(model: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    scores = images @ model[:-CLASSES].reshape(PIXELS, CLASSES) + model[-CLASSES:]
    return float((scores.argmax(1) == labels).mean())


def bounded_step(
    model: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The same from weights of a size that training gives: what came in may be poison."""
    return local_step(np.clip(model, -50, 50), images, labels)


def train(folder: Path, data: Path, last: Path, namespace: str | None, pause: float, step=local_step) -> None:
    """Take part until the round that the file `last` names, once there is one; a local step takes `pause` seconds."""
    signal.alarm(3600)  # whatever happens
    if namespace is not None:
        enter(namespace)
    logging.basicConfig(filename=folder / "log", level=logging.INFO, format="%(asctime)s %(message)s")
    (folder / DUMPS).mkdir(exist_ok=True)
    part = np.load(data)
    notes = read_notes(folder)
    if notes:
        text = (folder / NOTES).read_bytes()
        os.truncate(folder / NOTES, text.rfind(b"\n") + 1)
    model = np.load(folder / DUMPS / notes[-1]["file"])[1] if notes else np.zeros(SIZE, np.float32)
    with Peer.join(folder, resume=bool(notes)) as peer:
        reached = notes[-1]["report"]["round"] if notes else -1
        while wanted(last, reached):
            time.sleep(pause)
            model = step(model, part["images"], part["labels"])
            before, patience, begin = model.copy(), peer._peer.patience, time.monotonic()
            report = peer.average_vector(model)
            end, reached = time.monotonic(), report.round
            file = f"{report.round}.npy"
            np.save(folder / DUMPS / file, np.stack([before, model]))
            note(
                folder, file=file, patience=patience, begin=begin, end=end, report=dataclasses.asdict(report)
            )


def note(folder: Path, **fields: object) -> None:
    """Append a line as a whole: what is killed before this has not happened."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sizes = {"frames": (folder / "frames").stat().st_size, "memory": pages * os.sysconf("SC_PAGESIZE")}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    line = json.dumps({**fields, "pid": os.getpid(), "load": load, **sizes}) + "\n"
    with (folder / NOTES).open("ab", buffering=0) as file:
        file.write(line.encode())


def read_notes(folder: Path) -> list[dict]:
    """Whole lines: the last one may be on its way, or was cut short when its process was killed."""
    path = folder / NOTES
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def wanted(last: Path, reached: int) -> bool:
    """Whether to go on: nothing outlives a test that was killed itself."""
    test = multiprocessing.parent_process()
    return (test is None or test.is_alive()) and (not last.exists() or reached < int(last.read_text()))


def enter(namespace: str) -> None:
    """Move this process into a network namespace."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")


def warm_up() -> None:
    """Load the compiled kernels once, for all processes that are forked from this one."""
    import networkx as nx  # noqa: PLC0415

    method = cesar.Cesar(sparsifier=cesar.RandomSubsampling(0.5))
    ensemble = cesar.Ensemble(nx.complete_graph(4), method, SIZE)
    ensemble.round(np.ones((4, SIZE), np.float32))
    ensemble.close()


if os.environ.get("CESAR_WORKER_WARM"):  # set for the process from which workers are forked
    warm_up()
