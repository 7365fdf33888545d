"""Continuity: sums of a group whose members differ stay apart in time.

The sum over S and the sum over S without k give v_k away. Without `regroup_after` only the whole of S is ever summed. With
it, a group may go on without a member that stays away; but two sums with different members are at least that many
rounds apart, when the member leaves and when it comes back. In between the group is silent.

A driver that may be killed asks for `changes` before it sends a frame, makes them durable, and hands them to `recall` when it
starts again.
"""

from __future__ import annotations

from collections.abc import Iterable

from cesar.grouping import Group, Groups
from cesar.methods import Cesar
from cesar.types import LastSum, NodeId, RoundNo


class Continuity:
    """Which members were in the last sum of each group that this node has to do with, and when."""

    def __init__(self) -> None:
        self._last: dict[tuple[NodeId, Group], tuple[RoundNo, Group]] = {}
        self._changed = False

    def recall(self, records: Iterable[LastSum]) -> None:
        """Go on from what `changes` has given."""
        self._last = {(receiver, group): (round_, members) for receiver, group, round_, members in records}

    def changes(self) -> list[LastSum] | None:
        """All sums, if there were any since the last call; else None."""
        changed, self._changed = self._changed, False
        return [(*one, *last) for one, last in self._last.items()] if changed else None

    def meet(self, table: Groups, round_: RoundNo) -> None:
        """Know of the groups of a round, and forget those of another graph.

        For a node that has just started, a whole group may have been summed a moment ago. Where rounds are counted anew,
        the last sum was a moment ago, too.
        """
        groups = [(receiver, group) for receiver, found in table.items() for group in found]
        known = {one: self._last.get(one, (round_, one[1])) for one in groups}
        self._last = {one: (min(last, round_), members) for one, (last, members) in known.items()}

    def taking_part(
        self, receiver: NodeId, group: Group, present: frozenset[NodeId], round_: RoundNo, method: Cesar
    ) -> Group:
        """The members that are in a group's sum in this round: all, or nobody; or, where the method allows it, those
        who are there.
        """
        after = method.regroup_after
        if after is None:
            return group if present.issuperset(group) else ()
        members = tuple(node for node in group if node in present)
        last_round, last = self._last[receiver, group]
        apart = members == last or round_ - last_round >= after
        return members if apart and len(members) > max(1, method.collusion or 1) else ()

    def note(self, receiver: NodeId, group: Group, members: Group, round_: RoundNo) -> None:
        """These members are summed in this round."""
        self._last[receiver, group] = (round_, members)
        self._changed = True
