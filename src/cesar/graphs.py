"""Aggregation graphs: random regular, ring, complete, small-world, star, or from a file."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np

from cesar.errors import ConfigError
from cesar.topology import check_graph


def regular(nodes: int, degree: int, draw: np.random.Generator) -> nx.Graph:
    """A random connected regular graph."""
    if not 0 < degree < nodes:
        raise ConfigError(
            f"degree {degree} needs more than {degree} nodes, but there are {nodes}; lower the degree"
        )
    if nodes * degree % 2:
        raise ConfigError(
            f"there is no {degree}-regular graph of {nodes} nodes: nodes times degree must be even; change one by 1"
        )
    for _ in range(100):
        graph = nx.random_regular_graph(degree, nodes, seed=int(draw.integers(2**31)))
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


def parse(text: str, nodes: int, draw: np.random.Generator) -> nx.Graph:
    """A graph from a short name: regular:3, ring, complete, small-world:4 or file:PATH.

    Raises:
        ConfigError: there is no such graph, or not of so many nodes.
    """
    kind, _, detail = text.partition(":")
    if nodes < 2:
        raise ConfigError("a network needs at least two nodes; one node has nobody to average with")
    match kind:
        case "regular" if detail.isdecimal():
            return regular(nodes, int(detail), draw)
        case "small-world" if detail.isdecimal():
            return small_world(nodes, int(detail), 0.1, draw)
        case "file" if detail:
            return from_file(Path(detail), nodes)
        case "ring" if not detail:
            return nx.cycle_graph(nodes)
        case "complete" if not detail:
            return nx.complete_graph(nodes)
        case _:
            raise ConfigError(
                f"{text!r} is not a topology; write regular:3, ring, complete, small-world:4 or file:edges.txt"
            )


def from_file(path: Path, nodes: int) -> nx.Graph:
    """A graph from lines of two node numbers each; text behind # is ignored.

    Raises:
        ConfigError: names the line that cannot be read, or says what is wrong with the graph.
    """
    if not path.is_file():
        raise ConfigError(f"there is no edge list {path}; write one 'i j' per line, nodes numbered from 0")
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() and int(word) < nodes for word in words):
            raise ConfigError(
                f"{path}, line {number}: expected two node numbers below {nodes}, found {line!r}"
            )
        graph.add_edge(int(words[0]), int(words[1]))
    check_graph(graph, nodes)
    return graph
