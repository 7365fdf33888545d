"""Four peers average over TLS; run by itself, as on a site that has installed `[peers]` and nothing else.

python tests/support/four_peers.py FOLDER [MODULE …]: modules that cannot be imported here. Prints what came of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.bare import Blocker

COUNT, SIZE = 4, 1000


async def average(folder: Path) -> float:
    """The largest difference from the mean of the four models, after a round."""
    import networkx as nx  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    from support.lan import make_network, one_round, running  # noqa: PLC0415

    patient = "floor = 120.0\nceiling = 120.0"  # kernels are compiled in a new environment
    network = make_network(folder, nx.complete_graph(COUNT), rounds=patient)
    models = np.random.default_rng(1).standard_normal((COUNT, SIZE)).astype(np.float32)
    wanted = models.mean(axis=0)
    async with running(network, [*range(COUNT)]) as peers:
        reports = await one_round(peers, models)
    assert all(len(report.contributors) == COUNT - 1 for report in reports)
    return float(np.abs(models - wanted).max())


def main() -> None:
    blocker = Blocker(frozenset(sys.argv[2:]))
    sys.meta_path.insert(0, blocker)
    import cesar  # noqa: PLC0415

    first = {name.partition(".")[0] for name in sys.modules}
    error = asyncio.run(average(Path(sys.argv[1])))
    found = {name.partition(".")[0] for name in sys.modules}
    said = {"from": cesar.__file__, "import cesar": sorted(first), "peers": sorted(found), "error": error}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
