"""Cells that change: a node comes or goes, or the rules change, and as few others as possible get other company.

Nothing has to be computed about who is exposed by a change: no number is in two sums (docs/privacy.md).

Cells hold different models while they train. A new cell goes on with the model of one of the old ones, and its other members
believe that it is one if members of k + 1 owners bring it. So each new cell has as many who were together before (`founded`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cesar.base.errors import PrivacyError
from cesar.base.types import NodeId
from cesar.graph.cells import Cell, divide, objection
from cesar.graph.neighbourhood import Owners

Cells = tuple[Cell, ...]


def founded(cell: Cell, before: Iterable[Cell], collusion: int, owners: Owners) -> bool:
    """Whether a cell can go on with the model of one that was there before.

    >>> old = [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> founded((0, 1, 4, 8), old, 1, {}), founded((0, 4, 8, 9), old, 1, {})
    (True, False)
    """
    return any(
        len({owners.get(node, node) for node in cell if node in other}) > collusion for other in before
    )


def admitted(cells: Sequence[Cell], node: int, least: int, collusion: int, owners: Owners) -> Cells:
    """With one node more: it goes to the smallest cell, if possible to one without a node of its owner.

    >>> admitted([(0, 1, 2, 3), (4, 5, 6, 7, 8)], 9, 4, 1, {})
    ((0, 1, 2, 3, 9), (4, 5, 6, 7, 8))
    """
    owner = owners.get(node)

    def taste(number: int) -> tuple[bool, int, int]:
        cell = cells[number]
        return owner is not None and any(owners.get(i) == owner for i in cell), len(cell), number

    chosen = min(range(len(cells)), key=taste)
    grown = (_sorted((*cell, node)) if k == chosen else cell for k, cell in enumerate(cells))
    return refitted(grown, least, collusion, owners)


def released(cells: Sequence[Cell], node: int, least: int, collusion: int, owners: Owners) -> Cells:
    """Without a node. A cell that is too small then gets a member of a larger one, or is merged with another.

    >>> released([(0, 1, 2, 3), (4, 5, 6, 7, 8)], 2, 4, 1, {})
    ((0, 1, 3, 4), (5, 6, 7, 8))

    Raises:
        PrivacyError: too few would be left.
    """
    left = tuple(tuple(i for i in cell if i != node) for cell in cells)
    return refitted((cell for cell in left if cell), least, collusion, owners)


def refitted(cells: Iterable[Cell], least: int, collusion: int, owners: Owners) -> Cells:
    """Cells that all may add up, made of these: those that are too poor get company, and those of 2m or more are divided, if both
    parts can go on with a model that they had.

    Raises:
        PrivacyError: all of them together would be too few, or of too few owners.
    """
    now = list(cells)
    before = tuple(now)

    def wrong(cell: Cell) -> str | None:
        return objection(cell, least, collusion, owners)

    while poor := next((cell for cell in now if wrong(cell)), None):
        place = now.index(poor)
        now.remove(poor)
        # First one member of a larger cell, which changes least. If no single one helps, a whole cell.
        donors = sorted(now, key=lambda cell: (-len(cell), cell))
        lent = ((_sorted((*poor, i)), d, tuple(j for j in d if j != i)) for d in donors for i in d)
        for richer, donor, rest in lent:
            if not wrong(richer) and not wrong(rest):
                now[now.index(donor)] = rest
                now.insert(place, richer)
                break
        else:
            if not now:
                raise PrivacyError(
                    f"there would be one cell with {wrong(poor)}; add a peer of another owner first"
                )
            other = min(now, key=lambda cell: (len(cell), cell))
            now[now.index(other)] = _sorted((*poor, *other))
    for cell in [cell for cell in now if len(cell) >= 2 * least]:
        try:
            parts = divide(cell, least, collusion, owners)
        except PrivacyError:
            continue  # its owners cannot be spread over two
        if not all(founded(part, before, collusion, owners) for part in parts):
            continue
        now[now.index(cell)] = parts[0]
        now += parts[1:]
    return tuple(now)  # cells keep their numbers as far as can be, and with them whom they hear


def _sorted(nodes: Iterable[int]) -> Cell:
    return tuple(NodeId(node) for node in sorted(nodes))
