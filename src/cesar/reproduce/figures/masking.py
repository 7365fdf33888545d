"""Fig. 6: s = 1, 2, 3."""

from __future__ import annotations

from cesar.reproduce.reproduction import Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar, dpsgd, spread_for


def experiments(scale: Scale) -> dict[str, Tables]:
    """Growing s, with the α that keeps the share; the small and the medium scale train the paper's exchange at s = 1 only."""

    def methods(kind: str) -> list[Tables]:
        first = 1 if scale in (Scale.SMALL, Scale.MEDIUM) else 0
        more = [row for s in (2, 3) for row in cesar(kind, 0.3, masks=s)[first:]]
        return [*cesar(kind, 0.3), *more, dpsgd(kind, 0.3)]

    return {
        kind: base("cifar10", scale, spread=spread_for("cifar10", kind)) | {"method": methods(kind)}
        for kind in ("topk", "random")
    }


MASKING = Reproduction(
    name="masking",
    place="Fig. 6",
    brief="s = 1, 2, 3",
    what="s = 1, 2, 3 at a constant 30 % shared",
    needs=needs("cifar10"),
    takes=takes("6 s", "13 min", "8 h", "3 weeks"),
    experiments=experiments,
)
