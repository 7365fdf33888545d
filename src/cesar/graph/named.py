"""Aggregation graphs: random regular, ring, complete, small-world, star, or from a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import networkx as nx
import numpy as np

from cesar.base.errors import ConfigError
from cesar.graph.neighbourhood import check_graph

Kind = Literal["regular", "ring", "complete", "small-world", "star", "file"]
SHORT = "regular:3, ring, complete, small-world:4 or file:edges.txt"
"""How a graph is named in a word: the number is the degree, the file has two nodes per line."""
REWIRE = 0.1
"""How many edges of a small world are rewired, if nobody says otherwise."""

_ATTEMPTS = 100


def regular(nodes: int, degree: int, draw: np.random.Generator) -> nx.Graph:
    """A random connected regular graph."""
    return _connected(nodes, degree, (int(draw.integers(2**31)) for _ in range(_ATTEMPTS)))


def numbered(nodes: int, degree: int, number: int) -> nx.Graph:
    """The random regular graph that networkx has for a seed, or the next that is connected."""
    return _connected(nodes, degree, range(number, number + _ATTEMPTS))


def _connected(nodes: int, degree: int, seeds: Iterable[int]) -> nx.Graph:
    if not 0 < degree < nodes:
        raise ConfigError(
            f"degree {degree} needs more than {degree} nodes, but there are {nodes}; lower the degree"
        )
    if nodes * degree % 2:
        raise ConfigError(
            f"there is no {degree}-regular graph of {nodes} nodes: nodes times degree must be even; change one by 1"
        )
    for seed in seeds:
        graph = nx.random_regular_graph(degree, nodes, seed=seed)
        if nx.is_connected(graph):
            return graph
    raise ConfigError(
        f"no connected {degree}-regular graph of {nodes} nodes was found; use a degree of 3 or more"
    )


def small_world(nodes: int, degree: int, rewire: float, draw: np.random.Generator) -> nx.Graph:
    """A ring of `degree` nearest neighbours in which each edge is rewired with probability `rewire`."""
    if degree % 2 or not 2 <= degree < nodes:
        raise ConfigError(f"a small world needs an even degree below the number of nodes, not {degree}")
    return nx.connected_watts_strogatz_graph(nodes, degree, rewire, seed=int(draw.integers(2**31)))


def build(
    kind: Kind,
    nodes: int,
    draw: np.random.Generator,
    *,
    degree: int = 0,
    rewire: float = REWIRE,
    path: Path | None = None,
) -> nx.Graph:
    """A connected graph of a kind; `degree` is of regular graphs and small worlds, `path` of a file.

    Raises:
        ConfigError: there is none with this number of nodes.
    """
    match kind:
        case "regular":
            graph = regular(nodes, degree, draw)
        case "small-world":
            graph = small_world(nodes, degree, rewire, draw)
        case "ring":
            graph = nx.cycle_graph(nodes)
        case "complete":
            graph = nx.complete_graph(nodes)
        case "star":
            graph = nx.star_graph(nodes - 1)
        case "file":
            assert path is not None
            return from_file(path, nodes)
    check_graph(graph, nodes)
    return graph


def parse(text: str, nodes: int, draw: np.random.Generator) -> nx.Graph:
    """A graph from a short name, one of `SHORT`.

    Raises:
        ConfigError: there is no such graph, or none with this number of nodes.
    """
    kind, _, detail = text.partition(":")
    match kind:
        case "regular" if detail.isdecimal():
            return build("regular", nodes, draw, degree=int(detail))
        case "small-world" if detail.isdecimal():
            return build("small-world", nodes, draw, degree=int(detail))
        case "file" if detail:
            return build("file", nodes, draw, path=Path(detail))
        case "ring" if not detail:
            return build("ring", nodes, draw)
        case "complete" if not detail:
            return build("complete", nodes, draw)
        case _:
            raise ConfigError(f"{text!r} is not a topology; write {SHORT}")


def from_file(path: Path, nodes: int | None = None) -> nx.Graph:
    """A graph from lines of two node numbers each; text behind # is ignored.

    Args:
        nodes: how many there are; without it one more than the largest number.

    Raises:
        ConfigError: names the line that cannot be read, or says what is wrong with the graph.
    """
    if not path.is_file():
        raise ConfigError(f"there is no edge list {path}; write one 'i j' per line, nodes numbered from 0")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.partition("#")[0].split() for line in lines]
    if nodes is None:
        nodes = max((int(word) for columns in rows for word in columns if word.isdecimal()), default=0) + 1
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    for number, columns in enumerate(rows, start=1):
        if not columns:
            continue
        if len(columns) != 2 or not all(word.isdecimal() and int(word) < nodes for word in columns):
            raise ConfigError(
                f"{path}, line {number}: expected two node numbers below {nodes}, found {lines[number - 1]!r}"
            )
        graph.add_edge(int(columns[0]), int(columns[1]))
    check_graph(graph, nodes)
    return graph
