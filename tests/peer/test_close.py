"""A peer that ends right after a round takes nothing of that round away from the others."""

import asyncio

import networkx as nx
import numpy as np

from cesar.peer.runtime import AsyncPeer
from cesar.wire import Kind, read_header
from support.localnet import make


class SlowReader(AsyncPeer):
    """Takes in shares a good while after they have come."""

    async def frame(self, peer, payload):
        if read_header(payload)[0].kind is Kind.SHARE:
            await asyncio.sleep(0.5)
        await super().frame(peer, payload)


def test_the_last_shares_arrive_before_the_connection_ends(tmp_path):
    net, _ = make(tmp_path / "net", nx.complete_graph(3))

    async def one(kind, node):
        peer = kind.load(net / f"peer-{node}")
        await peer.start()
        await peer.wait_for_neighbours(20.0)
        report = await peer.average_vector(np.full(3_000_000, node, np.float32))
        await peer.close()
        return report

    async def all_of_them():
        return await asyncio.gather(one(AsyncPeer, 0), one(AsyncPeer, 1), one(SlowReader, 2))

    reports = asyncio.run(all_of_them())
    assert [report.contributors for report in reports] == [(1, 2), (0, 2), (0, 1)]
    assert [report.lost for report in reports] == [0, 0, 0]
