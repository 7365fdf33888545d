"""What a cell throws away is reported once, and is in no sum afterwards, whatever becomes of the round that threw it away."""

import numpy as np
import pytest

from cesar.peer.driver.cell_file import CellFile
from cesar.protocol.cell_state import CellState
from cesar.protocol.events import Deadlines
from support.cell_liar import EXCHANGE, GATHER, SCATTER, SIZE, Stage

HERE = range(4)


def nothing(nodes):
    return np.zeros((nodes, SIZE), dtype=np.float32)


def doubtful():
    """Five members have handed in without an answer; then the last one stays away until the others give it up in the next round."""
    stage = Stage(5, patience=2)
    steps = nothing(5)
    steps[:, :5] = np.eye(5)
    stage.round(steps, lambda sender, to, kind, payload: [] if kind == SCATTER else None)
    assert all(stage.cells("unsure").values())
    for _ in range(2):
        stage.round(nothing(5), away=(4,))
    return stage, steps


def begin(stage, n):
    stage.attempts += 1
    stage.nodes[n].begin_round(
        stage.round_,
        stage.plan.place(n),
        stage.models[n].copy(),
        entropy=np.random.default_rng((stage.attempts, n)).bytes,
        deadlines=Deadlines(announce=1.0, relay=2.0, share=3.0),
    )


def go_on(stage, n):
    """Begin once more, while training goes on."""
    begin(stage, n)
    stage.nodes[n].begin_round(
        stage.round_,
        stage.plan.place(n),
        None,
        entropy=np.random.default_rng((stage.attempts, n, 1)).bytes,
        deadlines=Deadlines(announce=1.0, relay=2.0, share=3.0),
    )


def withdraw(stage, n):
    begin(stage, n)
    stage.nodes[n].close()


@pytest.mark.parametrize("fate", [None, begin, go_on, withdraw])
def test_a_round_that_is_begun_anew_forgets_nothing(fate):
    """Numbers that may have been seen in a sum over five are in none over four, and all members say that they are gone."""
    stage, steps = doubtful()
    if fate is not None:
        for n in HERE:
            fate(stage, n)
        stage.round_ += fate is withdraw
    told = nothing(5)
    fresh = nothing(5)
    fresh[:4, 8:12] = np.eye(4)
    for number in range(3):
        stage.round(fresh if number == 0 else nothing(5), away=(4,))
        for n, lost in stage.cells("discarded").items():
            told[n] += 0 if lost is None else lost
    np.testing.assert_allclose(told[:4], steps[:4], atol=1e-6)
    for n in HERE:
        assert stage.cells("members")[n] == (0, 1, 2, 3)
        assert np.abs(stage.common(n)[:5]).max() < 1e-6, "it is in no sum over others"
        assert np.abs(stage.models[n][:5]).max() < 1e-6
        np.testing.assert_allclose(stage.common(n)[8:12], 0.25, atol=1e-6)


def test_what_is_not_reported_yet_is_kept(tmp_path):
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    state = CellState.start(np.zeros(SIZE, np.float32), 0)
    file.save(state.to_arrays(), None, (3, 2, 1), 1.5)
    kept = file.load()
    assert (kept.attempts, kept.next_round, kept.next_settling, kept.thrown) == (3, 2, 1, 1.5)


def test_a_sum_that_another_cell_has_heard_can_come_about_again():
    """All members of a cell are killed after keepers have told the cell next door, and before one member has told another. Nobody in the
    cell knows then that there was a sum, so what is in doubt is handed in again, among the same members. What it teaches other cells is more
    of the same, never a number of one member: both sums are over the same numbers.
    """
    stage = Stage(8)
    mine, other = stage.plan.cells
    steps = nothing(8)
    steps[mine[0], 0] = 1.0
    saved = {}

    def killed(sender, to, kind, payload):
        if kind == SCATTER and sender in mine:
            saved.setdefault(sender, stage.nodes[sender].state.to_arrays())
        return [] if kind == GATHER and sender in mine else None

    stage.round(steps, killed)
    for n in mine:
        stage.nodes[n] = stage.node(n, CellState.from_arrays(saved[n]))
        stage.models[n] = stage.nodes[n].state.common + stage.nodes[n].state.unsent
    assert [round(float(stage.common(n)[0]), 4) for n in other] == [0.125] * 4, "it has heard of the sum"
    assert not any(stage.common(n)[0] for n in mine)
    stage.round(nothing(8), lambda sender, to, kind, payload: [] if kind == EXCHANGE else None)
    for n in mine:
        assert stage.common(n)[0] == pytest.approx(0.25), "once in its own cell"
    stage.round(nothing(8))
    total = np.mean([stage.models[n][0] for n in range(8)])
    assert total == pytest.approx((0.25 + 0.125) / 2), "0.125, were it counted once"
    assert max(stage.models[n][0] for n in range(8)) <= 2 / 4
