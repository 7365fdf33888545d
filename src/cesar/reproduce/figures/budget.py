"""Fig. 5a: accuracy against bytes."""

from __future__ import annotations

from cesar.reproduce.compare import gap, no_worse, points
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, against_dpsgd, base, dpsgd, secagg


def experiments(scale: Scale) -> dict[str, Tables]:
    """Everything in full, and what is sparse at 30 %."""
    sparse = against_dpsgd("topk", scale)
    method = [*sparse["method"], secagg(), dpsgd()]
    return {"cifar10": base("cifar10", scale, spread="iid") | sparse | {"method": method}}


def _fewer_bytes(outcome: Outcome) -> Finding | None:
    rows = outcome.rows.get("cifar10", {})
    if not {"CESAR", "D-PSGD, everything"} <= set(rows):
        return None
    ours, full = rows["CESAR"], rows["D-PSGD, everything"]
    found = gap(ours, full, trained=True)
    return Finding(
        verdict=no_worse([found]),
        ours=f"CESAR at 30 % minus full sharing, in points: {points(found)}, with {ours.bytes / full.bytes:.0%} of the bytes.",
    )


BUDGET = Reproduction(
    name="budget",
    place="Fig. 5a",
    brief="accuracy against bytes",
    what="accuracy against bytes: D-PSGD and secure aggregation in full, D-PSGD and CESAR at 30 %",
    needs=needs("cifar10"),
    takes=takes("2 s", "7 min", "70 min", "8 days"),
    experiments=experiments,
    by_bytes=True,
    claims=(
        Claim(
            title="Reaches an accuracy with fewer bytes than full sharing",
            paper="higher accuracy for the same bytes, until it converges (no figure printed)",
            check=_fewer_bytes,
        ),
    ),
)
