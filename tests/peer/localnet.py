"""Networks of real peers on free ports of this machine, for tests."""

import random
import socket
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import networkx as nx

from cesar.peer import network


def free_ports(count):
    """The first of `count` ports in a row that are free, as are those 100 above; outside the range that outgoing
    connections are given.
    """
    for _ in range(200):
        base = random.randrange(12000, 30000)
        with ExitStack() as stack:
            try:
                for port in (*range(base, base + count), *range(base + 100, base + 100 + count)):
                    held = stack.enter_context(socket.socket())
                    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    held.bind(("127.0.0.1", port))
            except OSError:
                continue
        return base
    raise AssertionError("no free ports")


def make(folder, graph=None, *, days=365, age=0):
    """A network whose certificates were made `age` days ago; returns its folder and its first port."""
    graph = nx.complete_graph(4) if graph is None else graph
    base = free_ports(len(graph))
    plan = network.Plan(
        name="test",
        graph=graph,
        settings=network.settings("random", 0.5, 1),
        requests={},
        host="127.0.0.1",
        port=base,
        days=days,
    )
    network.Network.create(folder, plan, datetime.now(UTC) - timedelta(days=age))
    return folder, base
