"""Fig. 5a: accuracy against bytes."""

from __future__ import annotations

from cesar.reproduce.reproduction import Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar, dpsgd, secagg


def experiments(scale: Scale) -> dict[str, Tables]:
    """Everything in full, and what is sparse at 30 %."""
    method = [*cesar("topk", 0.3), secagg(), dpsgd(), dpsgd("topk")]
    return {"cifar10": base("cifar10", scale, spread="iid") | {"match_share": True, "method": method}}


BUDGET = Reproduction(
    name="budget",
    place="Fig. 5a",
    brief="accuracy against bytes",
    what="accuracy against bytes: D-PSGD and secure aggregation in full, D-PSGD and CESAR at 30 %",
    needs=needs("cifar10"),
    takes=takes("2 s", "7 min", "4 h", "8 days"),
    experiments=experiments,
    by_bytes=True,
)
