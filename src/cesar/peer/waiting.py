"""Which of a peer's groups wait, for whom, and since when.

A group of which a member is away sends nothing, for the sum without it and the sum with it would give it away. People who
run a peer must see that: the log says when it begins and when it ends, and a small file keeps what the status page
shows, so that a check of the folder can tell it, too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cesar import files
from cesar.grouping import Group
from cesar.peer import words
from cesar.peer.roster import Roster
from cesar.protocol import AggregateReady
from cesar.types import NodeId

log = logging.getLogger("cesar.peer")

FILE = "waiting.json"


@dataclass(frozen=True, slots=True)
class Wait:
    """One group that lacks members, or did until a moment ago.

    Attributes:
        missing: nobody if they are back, and `regroup_after` keeps the next sum apart from the last one.
        since: the first round of this absence.
        missing: who had not announced itself; nobody if all are back, and the group is silent for some rounds more because
            its sums with and without a member must be `regroup_after` rounds apart.
        goes_on: the others send without those who are missing, since `regroup_after` allows it.
    """

    group: Group
    missing: Group
    since: int
    goes_on: bool = False

    def told(self, roster: Roster) -> str:
        """In words."""
        group = words.braced(roster, self.group)
        if not self.missing:
            return f"group {group} is whole again and waits until sums with and without a member are apart, since round {self.since}"
        who = words.listed(roster, self.missing)
        what = "goes on without" if self.goes_on else "waits for"
        return f"group {group} {what} {who}, missing since round {self.since}"


class Waiting:
    """The groups of one peer that lack somebody.

    Args:
        path: where it is kept; nowhere if None.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.groups: tuple[Wait, ...] = () if path is None else read(path)

    def note(self, outcome: AggregateReady, roster: Roster, mine: Sequence[Group]) -> None:
        """A round has ended: log what begins or ends with it, and keep it."""
        # Under a newer roster rounds are counted anew, and so are those that a group has waited.
        before = {
            wait.group: wait for wait in self.groups if wait.group in mine and wait.since <= outcome.round_
        }
        heard = set(outcome.contributors)
        now = tuple(
            Wait(
                group,
                missing,
                before[group].since if group in before else outcome.round_,
                goes_on=not heard.isdisjoint(group),
            )
            for group, missing in outcome.silent
        )
        if now == self.groups:
            return
        for wait in now:
            last = before.get(wait.group)
            if last is None or (last.goes_on, not last.missing) != (wait.goes_on, not wait.missing):
                log.warning("%s", wait.told(roster))
        for wait in before.values():
            if wait.group not in {new.group for new in now}:
                group, rounds = words.braced(roster, wait.group), outcome.round_ - wait.since
                log.info("group %s is complete again after %d round(s)", group, rounds)
        self.groups = now
        if self._path is not None:
            files.write(self._path, json.dumps([asdict(wait) for wait in now]) + "\n")


def read(path: Path) -> tuple[Wait, ...]:
    """What was kept; a file that cannot be read is as good as none, for nothing depends on it."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return tuple(
            Wait(_group(wait["group"]), _group(wait["missing"]), int(wait["since"]), bool(wait["goes_on"]))
            for wait in kept
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def _group(nodes: Iterable[int]) -> Group:
    return tuple(NodeId(int(node)) for node in nodes)
