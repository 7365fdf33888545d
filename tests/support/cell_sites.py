"""Sites of a network of cells, in one process, whose local phases can be told apart in every model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
from numpy.typing import NDArray

from cesar.peer.driver.report import Report
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust.folder import Network
from support.lan import met

QUICK = "floor = 0.3\nceiling = 2.0\nsettle_minutes = 2.0\npatience_minutes = 0.0"
ATOMS = 64
"""Local phases of one site that a model has room for."""


class Site:
    """A peer whose t-th local phase adds 1 at a place of its own: how often that is in the model shows whether it counts once."""

    def __init__(self, network: Network, node: int, nodes: int, more: int = 0) -> None:
        self.folder, self.node = network.folder / f"peer-{node}", node
        self.model = np.zeros(ATOMS * nodes + more, np.float32)
        self.phase, self.reports = 0, list[Report]()

    async def start(self) -> None:
        self.peer = AsyncPeer.load(self.folder)
        await self.peer.start()
        await self.peer.start_from(self.model)

    def train(self) -> None:
        self.model[ATOMS * self.node + self.phase] += 1
        self.phase += 1

    async def round(self) -> Report:
        self.train()
        report = await self.peer.average_vector(self.model)
        self.reports.append(report)
        return report

    async def crash(self) -> None:
        """End without any of the things that an orderly end does."""
        offer = self.peer.cells._offer
        self.peer.cells.close = lambda: asyncio.sleep(0)
        if offer is not None and offer.task is not None:
            offer.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await offer.task
        if self.peer.cells._saving is not None:  # a thread of this process, which cannot be killed
            await asyncio.wait({self.peer.cells._saving})
        await self.peer.close()


@contextlib.asynccontextmanager
async def sites(network: Network, nodes: int, more: int = 0) -> AsyncIterator[list[Site]]:
    """All of them; models have so many numbers more, which nobody trains."""
    found = [Site(network, node, nodes, more) for node in range(nodes)]
    try:
        for site in found:
            await site.start()
        await asyncio.gather(*(met(site.peer, set(range(nodes))) for site in found))
        yield found
    finally:
        await asyncio.gather(*(site.peer.close() for site in found))


async def together(sites_: list[Site]) -> list[Report]:
    """Local phases at each, until one of them is in a sum at all of them; a machine may be slow."""
    while True:
        reports = await asyncio.gather(*(site.round() for site in sites_))
        if all(report.summed for report in reports):
            return reports


def counted(sites_: list[Site]) -> NDArray[np.float32]:
    """How often each phase of each site is in the model, were all sites' models averaged: 1 for once."""
    models = [site.model[: ATOMS * len(sites_)] for site in sites_]
    return np.mean(models, axis=0).reshape(-1, ATOMS) * len(sites_)
