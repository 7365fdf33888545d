"""One round of a cell, watched at one of its members: what the others trained, what they sent, and what can be read of it.

Every number is real: sites train a linear classifier on their own part of the handwritten digits, and make a round of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import cesar
from cesar.kernels.packing import unpack
from cesar.protocol.wire import Frame, Kind, read_header
from cesar.protocol.wire_cells import Scatter

SITES, KEEPER, CLASSES = 4, 0, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRound:
    """What happened in the slice of the model that the keeper adds up.

    Attributes:
        senders: the other members of the cell.
        values: by sender, its update. Nobody else has it.
        words: by sender, what the keeper got of it.
        sums: what the keeper can read: the sum of all senders.
    """

    senders: tuple[int, ...]
    values: NDArray[np.float32]
    words: NDArray[np.uint32]
    sums: NDArray[np.float64]


def trained(inputs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """By site, the update of a linear classifier that began at zero, after some steps on every fourth sample."""
    models = []
    for site in range(SITES):
        own, wanted = inputs[site::SITES], np.eye(CLASSES)[labels[site::SITES]]
        weights = np.zeros((CLASSES, inputs.shape[1]))
        for _ in range(30):
            scores = np.exp(own @ weights.T)
            error = scores / scores.sum(axis=1, keepdims=True) - wanted
            weights -= 0.5 * error.T @ own / len(own)
        models.append(weights.ravel())
    return np.array(models, dtype=np.float32)


def one_round(updates: NDArray[np.float32]) -> WatchedRound:
    """A round of the real engine, watched at the member that looks after the first slice."""
    frames: dict[int, Frame] = {}

    def watch(sender: int, recipient: int, frame: Frame) -> None:
        if frame.kind is Kind.CELL_SCATTER and recipient == KEEPER:
            frames[sender] = frame

    method = cesar.Cells(size=SITES, ring_bits=32)
    ensemble = cesar.Ensemble(None, method, updates.shape[1], nodes=SITES, seed=1)
    result = ensemble.round(updates, watch=watch)
    senders = tuple(sorted(frames))
    words = np.array([_words(frames[i]) for i in senders])
    # The keeper knows the new common model and its own update, so it can read the sum of the others.
    sums = SITES * result.vectors[KEEPER].astype(np.float64) - updates[KEEPER]
    size = words.shape[1]
    return WatchedRound(
        senders=senders, values=updates[list(senders)][:, :size], words=words, sums=sums[:size]
    )


def _words(frame: Frame) -> NDArray[np.uint32]:
    scatter = Scatter.decode(read_header(frame.payload)[1], SITES - 1)
    return unpack(scatter.values, 32, frame.parameters)
