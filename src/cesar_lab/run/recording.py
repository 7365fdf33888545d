"""Recorded rounds: what the nodes of a simulation put into the averaging, for attacks to be tried on.

    recording/partition.safetensors     rows, lengths: which training samples lie on which node
              round-000050.safetensors  models (n, d) float32   after local training, before averaging
                                        selected (n, ⌈d/8⌉) uint8   bitmaps, lowest bit first
                                        edges (m, 2) int32   the graph
                                        common (n, d) float32   with cells: the models of the nodes' cells afterwards

Nothing of keys, seeds or masks is in there, but the models are: a recording is as private as the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from cesar.base import files
from cesar.base.errors import DataError
from cesar.kernels import bits
from cesar_lab.run.host import Contributions, State


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRound:
    """One round, read back.

    Attributes:
        number: counted from 1.
        models: (n, d), as they entered the averaging.
        selected: (n, d); with cells what is handed in.
        common: (n, d), with cells the common models of the nodes' cells after the round; None without.
    """

    number: int
    models: NDArray[np.float32]
    selected: NDArray[np.bool_]
    graph: nx.Graph
    common: NDArray[np.float32] | None = None


def write(
    folder: Path,
    number: int,
    contributions: Contributions,
    graph: nx.Graph,
    parts: list[NDArray[np.int64]],
    state: State,
) -> None:
    """Keep a round of the run in `folder`; after a resume the same bytes are written again. `state` is that after it."""
    target = path_of(folder, number)
    target.parent.mkdir(exist_ok=True)
    lengths = np.array([len(rows) for rows in parts], dtype=np.int64)
    _save(_partition_of(folder), {"rows": np.concatenate(parts), "lengths": lengths})
    tensors: dict[str, NDArray[Any]] = {
        "models": contributions.models,
        "selected": np.stack([bits.to_bytes(chosen.words, chosen.size) for chosen in contributions.sets]),
        "edges": np.array(sorted(map(sorted, graph.edges)), dtype=np.int32),
    }
    if state.cells is not None:
        tensors["common"] = np.stack([kept["common"] for kept in state.cells])
    _save(target, tensors)


def _save(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    with files.replacing(path) as draft:
        save_file(tensors, draft)


def path_of(folder: Path, number: int) -> Path:
    """Where a round of a run is kept, counted from 1."""
    return folder / "recording" / f"round-{number:06}.safetensors"


def _partition_of(folder: Path) -> Path:
    return folder / "recording" / "partition.safetensors"


def numbers(folder: Path) -> list[int]:
    """Which rounds of a run were kept, ascending.

    Raises:
        DataError: none.
    """
    found = sorted(
        int(path.stem.removeprefix("round-")) for path in folder.glob("recording/round-*.safetensors")
    )
    if not found:
        raise DataError(f"{folder} has no recorded rounds; run with [recording] every = 20, or last = 20")
    return found


def read(folder: Path, number: int) -> RecordedRound:
    """A round that was kept.

    Raises:
        DataError: the file is missing or damaged.
    """
    tensors = _load(path_of(folder, number), ("models", "selected", "edges"))
    models = tensors["models"]
    graph = nx.Graph()
    graph.add_nodes_from(range(len(models)))
    graph.add_edges_from(tensors["edges"].tolist())
    selected = np.unpackbits(tensors["selected"], axis=1, count=models.shape[1], bitorder="little")
    return RecordedRound(
        number=number,
        models=models,
        selected=selected.astype(np.bool_),
        graph=graph,
        common=tensors.get("common"),
    )


def read_partition(folder: Path) -> list[NDArray[np.int64]]:
    """For each node the rows of the training set that were its own."""
    tensors = _load(_partition_of(folder), ("rows", "lengths"))
    return np.split(tensors["rows"], np.cumsum(tensors["lengths"])[:-1])


def _load(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        tensors: dict[str, NDArray[Any]] = load_file(path)
        return {**tensors, **{name: tensors[name] for name in names}}
    except FileNotFoundError:
        raise DataError(f"{path} is missing; resume the run, or record it anew") from None
    except (OSError, KeyError, SafetensorError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
