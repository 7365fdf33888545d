"""The best common model so far, by the mean of a metric over the cell: in a file of its own, whole or not there."""

from __future__ import annotations

import logging
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cesar.base import files
from cesar.base.errors import DataError
from cesar.base.types import Vector
from cesar.methods.cells import Best as Which

log = logging.getLogger("cesar.peer")

FILE = "best.npz"


@dataclass(frozen=True, slots=True)
class Best:
    """A common model that was the best when it came about.

    Attributes:
        round: of the cell, in which it came about.
        metric: the mean over the members of the cell, of the models that they handed in.
        roster: the version of the roster that the round is counted under.
        path: the file that holds the model.
    """

    round: int
    metric: float
    roster: int
    path: Path = field(repr=False)

    @property
    def vector(self) -> Vector:
        """The model, as one float32 vector.

        Raises:
            DataError: the file is gone or damaged.
        """
        try:
            with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                return np.array(file["common"], dtype=np.float32)
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{self.path} cannot be read ({error}); the best model is lost") from None


class BestFile:
    """Keeps the best model of a peer.

    Args:
        network: 16 bytes that name the network: the model of another one is of no use.
    """

    def __init__(self, path: Path, network: bytes) -> None:
        self._path, self._network = path, np.frombuffer(network, dtype=np.uint8)
        self.best = self._load()

    def _load(self) -> Best | None:
        """A file that is missing, damaged or of another network is no reason to stop."""
        try:
            with self._path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                round_, roster = (int(number) for number in file["place"].astype(np.int64))
                metric = float(file["metric"])
                if not np.array_equal(file["network"], self._network) or not math.isfinite(metric):
                    return None
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            log.warning("%s cannot be read (%s); the best model is kept anew", self._path, error)
            return None
        return Best(round_, metric, roster, self._path)

    def beats(self, metric: float, which: Which) -> bool:
        """Whether a model with this metric is better than the best so far."""
        if self.best is None:
            return True
        return metric > self.best.metric if which == "highest" else metric < self.best.metric

    def keep(self, model: Vector, metric: float, round_: int, roster: int) -> None:
        """This is the best model now. If it cannot be written the last one stays, and the log says so."""
        try:
            with files.replacing(self._path, mode=0o600) as draft, draft.open("wb") as file:
                np.savez(
                    file,
                    allow_pickle=False,
                    common=model,
                    metric=np.array(metric),
                    place=np.array([round_, roster], dtype=np.int64),
                    network=self._network,
                )
        except OSError as error:
            log.error("the best model is not kept: cannot write to %s: %s", self._path.parent, error.strerror)  # noqa: TRY400
            return
        self.best = Best(round_, metric, roster, self._path)
