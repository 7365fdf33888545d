"""What a member of a cell must still know after a crash: its `CellState` and its counters, on disk before numbers leave.

The file is a list of names and then one array after the other, each as `np.save` writes it. A zip archive (`np.savez`) would have
a checksum of every byte; making these took half of a round of a million parameters. Nobody ever sees half a file: it replaces
the last one when it is whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cesar.base import files
from cesar.base.errors import ConfigError, DataError
from cesar.base.types import Vector
from cesar.protocol.cell_state import CellState

FILE = "cell.npy"
Arrays = dict[str, NDArray[np.generic]]


@dataclass(slots=True)
class Kept:
    """What was kept.

    Attributes:
        state: as `CellNode` needs it; whatever was on its way is in doubt.
        trained: what was trained since the last round began, and is not in `state` yet; None for nothing.
        attempts: how many rounds were begun.
        next_round, next_settling: no round below these is begun again.
        thrown: the length of what was thrown away and is in no report yet.
    """

    state: CellState
    trained: Vector | None = None
    attempts: int = 0
    next_round: int = 0
    next_settling: int = 0
    thrown: float = 0.0


class CellFile:
    """The file. A save is durable when the call returns.

    Args:
        network: 16 bytes that name the network: the state of another one is of no use.
    """

    def __init__(self, path: Path, network: bytes) -> None:
        self._path, self._network = path, np.frombuffer(network, dtype=np.uint8)

    def load(self) -> Kept | None:
        """What was saved last; None if nothing was.

        Raises:
            ConfigError: it is damaged, or of another network.
        """
        try:
            with self._path.open("rb") as file:
                names = json.loads(np.load(file, allow_pickle=False).tobytes())
                arrays: Arrays = {str(name): np.load(file, allow_pickle=False) for name in names}
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError, EOFError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}); remove it to go on from the common model: what this site has "
                "trained and not handed in is lost then"
            ) from None
        if not np.array_equal(arrays.pop("network", np.empty(0)), self._network):
            raise ConfigError(f"{self._path} is of another network; remove it, or take the right folder")
        try:
            counters = [int(count) for count in arrays.pop("counters").astype(np.int64)]
            trained = arrays.pop("trained", None)
            thrown = float(np.asarray(arrays.pop("thrown", 0.0)).astype(np.float64))
            state = CellState.from_arrays(arrays)
            model = None if trained is None else np.array(trained, dtype=np.float32)
            attempts, round_, settling = counters
            return Kept(state, model, attempts, round_, settling, thrown)
        except (KeyError, TypeError, ValueError, DataError) as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}); remove it to go on from the common model"
            ) from None

    def save(
        self, arrays: Arrays, trained: Vector | None, counters: tuple[int, int, int], thrown: float = 0.0
    ) -> None:
        """Make it durable.

        Args:
            arrays: of `CellState.to_arrays`.
            counters: attempts, next_round and next_settling of `Kept`.
            thrown: as in `Kept`.

        Raises:
            OSError: it could not be; then nothing may leave.
        """
        arrays = {
            **arrays,
            "network": self._network,
            "counters": np.array(counters, np.int64),
            "thrown": np.array(thrown),
        }
        if trained is not None:
            arrays["trained"] = trained
        with files.replacing(self._path, mode=0o600) as draft, draft.open("wb") as file:
            names = np.frombuffer(json.dumps([*arrays]).encode(), dtype=np.uint8)
            for array in (names, *arrays.values()):
                np.save(file, array, allow_pickle=False)
