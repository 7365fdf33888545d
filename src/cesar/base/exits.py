"""With which codes commands end; docs/deploy.md has the same table, and a test compares the two."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a script can tell from the code of a command."""

    FINE = 0
    WRONG = 1
    REFUSED = 2
    NOT_SETTLED = 3
    NO_QUORUM = 4
    NO_CANARY = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """In words, as the documentation has it."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.FINE: "all went well; also a run that Ctrl-C or SIGTERM ended in good order",
    Exit.WRONG: "the training function raised an error, or `cesar peer check` has found something wrong",
    Exit.REFUSED: "cesar refused to go on, and says why in one line; also a wrong option",
    Exit.NOT_SETTLED: "the final model lacks a cell that this peer hears, or what the own cell trained last",
    Exit.NO_QUORUM: "fewer cells than `rounds.settle_quorum` asks for took part in the final model",
    Exit.NO_CANARY: "the test round of `--canary` did not come about; training has not begun",
    Exit.INTERRUPTED: "`cesar peer check` or `cesar network up` was stopped by Ctrl-C",
}
