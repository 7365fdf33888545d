"""Networks of real peers on free ports of this machine, for tests."""

from datetime import UTC, datetime, timedelta

import networkx as nx

from cesar.peer.trust.folder import Network, Plan, cell_settings, settings
from support.lan import free_ports


def make(folder, graph=None, *, days=365, age=0, cells=None):
    """A network whose certificates were made `age` days ago; returns its folder and its first port.

    With `cells` the peers are in cells of so many, and of the graph only the nodes count.
    """
    graph = nx.complete_graph(4) if graph is None else graph
    base = free_ports(len(graph))
    plan = Plan(
        name="test",
        graph=graph,
        settings=cell_settings(cells) if cells else settings("random", 0.5, 1),
        requests={},
        host="127.0.0.1",
        port=base,
        days=days,
    )
    Network.create(folder, plan, datetime.now(UTC) - timedelta(days=age))
    return folder, base
