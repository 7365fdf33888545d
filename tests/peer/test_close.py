"""A peer that ends right after a round takes nothing of that round away from the others."""

import asyncio

import networkx as nx
import numpy as np

from cesar.peer.driver.runtime import AsyncPeer
from cesar.protocol.wire import Kind, read_header
from support.localnet import make


def test_the_last_shares_arrive_before_the_connection_ends(tmp_path):
    """Node 2 takes in a share when its sender is ending already, and both senders wait for that."""
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    happened = []

    async def one(node, ending):
        peer = AsyncPeer.load(net / f"peer-{node}")
        take, cut = peer.reception.frame, peer.transport.close

        async def take_late(sender, payload):
            is_share = read_header(payload)[0].kind is Kind.SHARE
            if is_share:
                await ending[sender].wait()
            await take(sender, payload)
            if is_share:
                happened.append(f"2 has the share of {sender}")

        async def cut_noted():
            happened.append(f"{node} cuts")
            await cut()

        peer.transport.close = cut_noted
        if node == 2:
            peer.reception.frame = take_late
        await peer.start()
        await peer.wait_for_neighbours(20.0)
        report = await peer.average_vector(np.full(3_000_000, node, np.float32))
        ending[node].set()
        await peer.close()
        return report

    async def all_of_them():
        ending = [asyncio.Event() for _ in range(3)]
        return await asyncio.gather(*(one(node, ending) for node in range(3)))

    reports = asyncio.run(all_of_them())
    assert [report.contributors for report in reports] == [(1, 2), (0, 2), (0, 1)]
    assert [report.lost for report in reports] == [0, 0, 0]
    assert set(happened[:2]) == {"2 has the share of 0", "2 has the share of 1"}
    assert set(happened[2:]) == {"0 cuts", "1 cuts", "2 cuts"}
