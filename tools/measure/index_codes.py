"""What index codes need for the sets that training runs really had, and which one is chosen.

python tools/measure/index_codes.py runs/NAME …     # runs with [recording]; one line per method and kind of set

Announced sets are those of the nodes. Relayed ones are what a relay passes on: restricted to what the addressee selected.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cesar.indices import Code, IndexSet, encode
from cesar.kernels import bits
from cesar.methods.base import SET_CODES
from cesar_lab.run import recording


def announced(one: recording.RecordedRound) -> list[IndexSet]:
    """What each node selected."""
    return [IndexSet.of_words(bits.from_bools(row), len(row)) for row in one.selected]


def relayed(one: recording.RecordedRound) -> Iterator[IndexSet]:
    """For every receiver, the set of each neighbour as the next one is told it."""
    chosen = announced(one)
    for r in one.graph:
        near = sorted(one.graph[r])
        for a, b in zip(near, near[1:] + near[:1], strict=True):
            yield chosen[a].within(chosen[b])


def main() -> None:
    """Mean bytes of each code and of the choice, and how often each code was chosen."""
    print("run, method, kind, sets, density,", ", ".join(code.name.lower() for code in SET_CODES), "→ chosen")
    for folder in (place for run in sys.argv[1:] for place in sorted(Path(run).glob("*/seed-*"))):
        rounds = [recording.read(folder, number) for number in recording.numbers(folder)]
        for kind in (announced, relayed):
            sets = [found for one in rounds for found in kind(one) if 0 < found.count < found.size]
            if not sets:
                continue
            density = sum(found.count for found in sets) / sum(found.size for found in sets)
            means = [sum(len(encode(found, code)) for found in sets) / len(sets) for code in SET_CODES]
            written = [encode(found) for found in sets]
            names = Counter(Code(data[0]).name.lower() for data in written)
            print(
                f"{folder.parent.parent.name}, {folder.parent.name}, {kind.__name__}, {len(sets)}, {density:.3f},",
                ", ".join(f"{mean:,.0f}" for mean in means),
                f"→ {sum(map(len, written)) / len(sets):,.0f}",
                dict(names),
            )


if __name__ == "__main__":
    main()
