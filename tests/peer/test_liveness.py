"""Who is there and whom a round waits for: every pair of what a neighbour is and what can happen, without a socket."""

from itertools import product

import pytest

from cesar.peer.driver.liveness import FORSAKEN, LONELY, NEAR, Liveness, Standing
from cesar.peer.net.messages import HAS_SETTLED, Hello, Status

ROUND, ROSTER, WALL = 5, 2, 1e9
FAR = 1 << 40
DOWN, APART, AHEAD, SUSPECTED, AWAITED = Standing


def hello(*, purpose="train", roster=ROSTER, current=ROUND, time=WALL):
    return Hello(
        node=1, network="00", roster=roster, purpose=purpose, digest="ab", size=None,
        status=Status(current, current), time=time,
    )  # fmt: skip


def alone(neighbours=(1, 2, 3)):
    return Liveness("train", Status(ROUND, ROUND), neighbours, ROSTER)


def make(standing, peer=1, live=None):
    """A neighbour of this standing, as it can come about."""
    live = live or alone()
    if standing is not DOWN:
        live.greeted(peer, hello(), WALL)
        live.connected(peer)
    match standing:
        case Standing.APART:
            live.greeted(peer, hello(purpose="check"), WALL)
        case Standing.AHEAD:
            live.status_came(peer, Status(ROUND + 1, ROUND + 1))
        case Standing.SUSPECTED:
            live.suspect(peer)
    assert live.standing(peer, ROUND) is standing
    return live


def connect(live):
    """A conversation begins with a greeting."""
    live.greeted(1, hello(), WALL)
    live.connected(1)


EVENTS = {
    "it connects anew": connect,
    "the link is down": lambda live: live.disconnected(1),
    "it greets as one that trains": lambda live: live.greeted(1, hello(), WALL),
    "it greets as one that checks": lambda live: live.greeted(1, hello(purpose="check"), WALL),
    "it greets with another roster": lambda live: live.greeted(1, hello(roster=ROSTER - 1), WALL),
    "it is in an earlier round": lambda live: live.status_came(1, Status(ROUND - 1, ROUND)),
    "it is in this round": lambda live: live.status_came(1, Status(ROUND, ROUND + 1)),
    "it is in a later round": lambda live: live.status_came(1, Status(ROUND + 1, ROUND + 2)),
    "it has begun to settle": lambda live: live.status_came(1, Status(ROUND, ROUND, 300_000)),
    "it has settled": lambda live: live.status_came(1, Status(ROUND, ROUND, HAS_SETTLED)),
    "a frame comes": lambda live: live.heard(1),
    "a frame is refused": lambda live: live.blamed(1, "no", harmless=False),
    "it keeps us waiting": lambda live: live.suspect(1),
    "a link fails": lambda live: live.failed(1, "no answer"),
    "a newer roster holds": lambda live: live.adopt([1, 2, 3], ROSTER + 1),
    "a newer roster is without it": lambda live: live.adopt([2, 3], ROSTER + 1),
}

NEXT = {
    #                                DOWN   APART  AHEAD      SUSPECTED  AWAITED
    "it connects anew":              (AWAITED, AWAITED, AWAITED, AWAITED, AWAITED),
    "the link is down":              (DOWN, DOWN, DOWN, DOWN, DOWN),
    "it greets as one that trains":  (DOWN, AWAITED, AWAITED, SUSPECTED, AWAITED),
    "it greets as one that checks":  (DOWN, APART, APART, APART, APART),
    "it greets with another roster": (DOWN, APART, APART, APART, APART),
    "it is in an earlier round":     (DOWN, APART, AWAITED, SUSPECTED, AWAITED),
    "it is in this round":           (DOWN, APART, AWAITED, AWAITED, AWAITED),
    "it is in a later round":        (DOWN, APART, AHEAD, AHEAD, AHEAD),
    "it has begun to settle":        (DOWN, APART, APART, APART, APART),
    "it has settled":                (DOWN, APART, AWAITED, AWAITED, AWAITED),
    "a frame comes":                 (DOWN, APART, AHEAD, AWAITED, AWAITED),
    "a frame is refused":            (DOWN, APART, AHEAD, SUSPECTED, AWAITED),
    "it keeps us waiting":           (DOWN, APART, AHEAD, SUSPECTED, SUSPECTED),
    "a link fails":                  (DOWN, APART, AHEAD, SUSPECTED, AWAITED),
    "a newer roster holds":          (DOWN, APART, APART, APART, APART),
    "a newer roster is without it":  (DOWN, DOWN, DOWN, DOWN, DOWN),
}  # fmt: skip


@pytest.mark.parametrize(("event", "standing"), list(product(EVENTS, Standing)))
def test_every_event_in_every_standing(event, standing):
    live = make(standing)
    EVENTS[event](live)
    assert live.standing(1, ROUND) is NEXT[event][list(Standing).index(standing)]


def test_the_table_is_complete():
    assert EVENTS.keys() == NEXT.keys()


@pytest.mark.parametrize("standings", list(product(Standing, repeat=3)))
def test_a_round_waits_for_those_who_send(standings):
    """For the awaited; if there are none, for all that are there, for then it is this peer that is out of step."""
    live = alone()
    for peer, standing in zip((1, 2, 3), standings, strict=True):
        make(standing, peer, live)
    waited_for = {1, 2, 3} - live.gone(ROUND)
    wanted = AWAITED if AWAITED in standings else SUSPECTED
    assert waited_for == {peer for peer, what in zip((1, 2, 3), standings, strict=True) if what is wanted}


def test_who_is_ahead_is_awaited_in_its_own_round():
    live = make(AHEAD)
    assert live.standing(1, ROUND + 1) is AWAITED


@pytest.mark.parametrize("standing", Standing)
def test_the_next_round_is_the_latest_that_can_be_joined(standing):
    """With whoever is there for the same thing, however slow."""
    live = make(standing)
    live.neighbours[1].status = Status(8, 9)
    joined = {DOWN: 7, APART: 7, AHEAD: 9, SUSPECTED: 9, AWAITED: 9}
    assert live.next_round(7, FAR) == joined[standing]
    assert live.next_round(11, FAR) == 11


@pytest.mark.parametrize(
    "said, begun",
    [
        ((1 << 31) - 4, 10),  # one liar, and two that are where this peer is
        (11 + NEAR, 10),
        (10 + NEAR, 10),
        (11, 10),
        (3, 10),
    ],
)
def test_a_single_neighbour_moves_nobody(said, begun):
    live = alone()
    for peer, round_ in ((1, said), (2, 10), (3, 9)):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(round_, round_))
    assert live.next_round(10, FAR) == begun


def test_two_neighbours_are_followed_wherever_they_are():
    live = alone()
    for peer, round_ in ((1, 50_001), (2, 50_000), (3, 7)):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(round_, round_))
    assert live.next_round(5, FAR) == 50_000
    live.disconnected(2)
    assert live.next_round(5, FAR) == 7


@pytest.mark.parametrize("ahead, begun", [(1, 10), (2, 10), (3, 11), (4, 11)])
def test_more_than_half_are_followed_where_neighbours_are_a_round_apart(ahead, begun):
    """With a liar among them, one that is really ahead would else be enough to skip the round of two others."""
    live = alone(range(1, 5))
    for peer in range(1, 5):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(10, 11 if peer <= ahead else 10))
    assert live.next_round(10, FAR) == begun


def test_who_averages_with_nobody_follows_a_single_neighbour():
    """Else two that come back together, each next to one that is up to date, would stay behind for ever."""
    live = make(AWAITED)
    live.status_came(1, Status(50_000, 50_000))
    for _ in range(LONELY):
        assert live.next_round(5, FAR) == 5
        live.ended(())
    assert live.next_round(5, FAR) == 50_000
    assert live.next_round(5, 49_999) == 5, "no further than it can have come"
    live.ended((1,))
    assert live.next_round(5, FAR) == 5


def test_who_is_in_step_with_two_follows_a_single_neighbour_late():
    """They may wait for somebody: a liar who is there alone must not take it away from those who wait with it."""
    live = alone()
    for peer, round_ in ((1, 500), (2, 5), (3, 5)):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(round_, round_))
    for _ in range(FORSAKEN):
        assert live.next_round(5, FAR) == 5
        live.ended(())
    assert live.next_round(5, FAR) == 500


def test_a_lie_does_not_hide_a_neighbour_that_is_a_little_ahead():
    live = alone()
    for peer, round_ in ((1, 900_000), (2, 40), (3, 5)):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(round_, round_))
    assert live.next_round(39, 100) == 40
    for _ in range(LONELY):
        live.ended(())
    assert live.next_round(30, 100) == 40


def test_rounds_begin_anew_under_another_roster():
    """What neighbours say counts among those who hold the same roster, for others count from another beginning."""
    live = alone()
    for peer in (1, 2, 3):
        make(AWAITED, peer, live)
        live.status_came(peer, Status(900_000, 900_000))
    assert live.next_round(5, FAR) == 900_000
    live.adopt([1, 2, 3], ROSTER + 1)
    assert (live.mine, live.next_round(0, FAR)) == (Status(0, 0), 0)
    assert not live.still_in(900_000)
    for peer in (1, 2):
        live.greeted(peer, hello(roster=ROSTER + 1, current=1), WALL)
    assert live.next_round(0, FAR) == 1


@pytest.mark.parametrize("standing", Standing)
def test_a_peer_that_ends_waits_for_those_still_in_its_round(standing):
    live = make(standing)
    live.neighbours[1].status = Status(ROUND, ROUND)
    assert live.still_in(ROUND) is (standing in {AHEAD, AWAITED})
    assert not live.still_in(ROUND - 1)


@pytest.mark.parametrize("standing", Standing)
def test_frames_go_to_those_who_are_there_for_the_same_thing(standing):
    live = make(standing)
    assert live.takes_part(1) is (standing not in {DOWN, APART})
    assert (1 in live.up) is (standing is not DOWN)


def test_a_status_of_the_past_does_not_clear_a_suspicion():
    live = make(SUSPECTED)
    live.status_came(1, Status(ROUND - 1, ROUND - 1))
    assert live.neighbours[1].suspected
    live.mine = Status(ROUND - 1, ROUND - 1)
    live.status_came(1, Status(ROUND - 1, ROUND - 1))
    assert not live.neighbours[1].suspected


def test_a_suspicion_is_news_once():
    live = make(AWAITED)
    assert [live.suspect(1), live.suspect(1)] == [True, False]
    live.heard(1)
    assert live.suspect(1)


def test_refusals_are_counted_in_one_conversation():
    live = make(AWAITED)
    counts = [live.blamed(1, "why", harmless=harmless) for harmless in (False, True, False)]
    assert counts == [1, 1, 2]
    live.greeted(1, hello(), WALL)
    assert live.neighbours[1].refusals == 2, "a greeting in the middle forgives nothing"
    connect(live)
    assert live.blamed(1, "why", harmless=False) == 1


def test_a_greeting_tells_the_clock_and_ends_an_error():
    live = alone()
    live.failed(1, "no answer")
    assert live.neighbours[1].last_error == "no answer"
    live.greeted(1, hello(time=WALL + 40), WALL)
    assert live.neighbours[1].clock == 40
    assert live.neighbours[1].last_error == ""


def test_what_a_former_neighbour_does_is_passed_over():
    live = make(AWAITED)
    live.adopt([2], ROSTER + 1)
    for event in EVENTS.values():
        event(live)
        live.adopt([2], ROSTER + 1)
    assert live.neighbours.keys() == {2}
    assert live.up == frozenset()


def test_who_trains_is_awaited_before_settling_and_who_settles_is_company():
    live = make(AWAITED)
    assert (live.training, live.company) == ({1}, {1})
    live.status_came(1, Status(ROUND, ROUND, 300_000))
    assert (live.training, live.company) == (frozenset(), frozenset())
    assert live.next_round(ROUND - NEAR, FAR) == ROUND, "both count the same rounds"
    live.mine = Status(ROUND, ROUND, 300_000)
    assert live.company == {1}
    live.status_came(1, Status(ROUND, ROUND, 400_000))
    assert live.company == frozenset(), "another share is another sum"
    live.status_came(1, Status(ROUND, ROUND, HAS_SETTLED))
    assert (live.training, live.company) == (frozenset(), frozenset())
