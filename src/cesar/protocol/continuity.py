"""Continuity: sums of a group whose members differ stay apart in time.

The sum over S and the sum over S without k give v_k away. Without `regroup_after` only the whole of S is ever summed. With
it, a group may go on without a member that stays away; but two sums with different members are at least that many
rounds apart, when the member leaves and when it comes back. In between the group is silent.
"""

from __future__ import annotations

from cesar.grouping import Group, Groups
from cesar.types import NodeId, RoundNo


class Continuity:
    """Which members were in the last sum of each group that this node has to do with, and when."""

    def __init__(self) -> None:
        self._last: dict[tuple[NodeId, Group], tuple[RoundNo, Group]] = {}

    def meet(self, table: Groups, round_: RoundNo) -> None:
        """Know of the groups of a round, and forget those of another graph.

        For a node that has just started, a whole group may have been summed a moment ago.
        """
        groups = [(receiver, group) for receiver, found in table.items() for group in found]
        self._last = {one: self._last.get(one, (round_, one[1])) for one in groups}

    def allows(
        self, receiver: NodeId, group: Group, members: Group, round_: RoundNo, after: int | None
    ) -> bool:
        """Whether these members may be summed in this round.

        Args:
            after: how many rounds sums with different members must be apart; None if all sums have the same.
        """
        last_round, last = self._last[receiver, group]
        if after is None:
            return members == group
        return members == last or round_ - last_round >= after

    def note(self, receiver: NodeId, group: Group, members: Group, round_: RoundNo) -> None:
        """These members are summed in this round."""
        self._last[receiver, group] = (round_, members)
