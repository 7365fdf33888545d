"""Greetings and statuses as bytes, and whom a greeting turns away."""

import dataclasses
import json

import pytest

from cesar.base.errors import CesarError, Refusal
from cesar.crypto.keys import VERSION
from cesar.peer.net.messages import HAS_SETTLED, RELEASE, TRAINS, Hello, Seen, Status

HELLO = Hello(
    node=3,
    network="ab" * 16,
    roster=2,
    digest="cd" * 32,
    purpose="train",
    size=100,
    status=Status(7, 8, 300000, 1500),
    layout="2 tensors",
    time=1700000000.5,
    release="1.2",
    protocol=4,
    instance="0123456789abcdef",
    seen=Seen(2, 6),
)
BYTES = (
    b'{"protocol": 4, "cesar": "1.2", "node": 3, "network": "abababababababababababababababab", "roster": 2, '
    b'"digest": "' + b"cd" * 32 + b'", "purpose": "train", "satisfied": false, '
    b'"size": 100, "layout": "2 tensors", "status": [7, 8, 300000, 1500], "time": 1700000000.5, "instance": "0123456789abcdef", '
    b'"seen": [2, 6, false]}'
)


def test_a_greeting_as_bytes():
    assert HELLO.to_bytes() == BYTES
    assert Hello.from_bytes(BYTES) == HELLO


def test_a_greeting_says_this_release_and_protocol():
    words = json.loads(
        Hello(
            node=0, network="", roster=1, purpose="check", digest="", size=None, status=Status(), time=0.0
        ).to_bytes()
    )
    assert (words["cesar"], words["protocol"]) == (RELEASE, VERSION)


def test_what_later_releases_add_is_passed_over():
    assert Hello.from_bytes(json.dumps({**json.loads(BYTES), "more": [1]}).encode()) == HELLO


def test_a_release_that_says_nothing_of_being_satisfied():
    words = json.loads(BYTES)
    del words["satisfied"]
    assert Hello.from_bytes(json.dumps(words).encode()) == HELLO
    assert Hello.from_bytes(json.dumps({**words, "satisfied": True}).encode()).satisfied
    assert not Hello.from_bytes(json.dumps({**words, "satisfied": "yes"}).encode()).satisfied


NEEDED = [key for key in json.loads(BYTES) if key not in ("satisfied", "instance", "seen")]


@pytest.mark.parametrize("key", NEEDED)
def test_every_word_is_needed_and_of_its_kind(key):
    words = json.loads(BYTES)
    del words[key]
    with pytest.raises(Refusal, match="its hello cannot be read"):
        Hello.from_bytes(json.dumps(words).encode())
    with pytest.raises(Refusal, match="its hello cannot be read"):
        Hello.from_bytes(json.dumps({**words, key: {"a": 1}}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 60_000, b'{"status": [1]}'])
def test_what_is_no_greeting(data):
    with pytest.raises(Refusal, match="its hello cannot be read"):
        Hello.from_bytes(data)


@pytest.mark.parametrize(
    "status", [[9, 3, 0, 0], [3, 5, 0, 0], [2**31, 2**31, 0, 0], [-1, 0, 0, 0], [2**40, 2**40, 0, 0]]
)
def test_a_status_that_cannot_be(status):
    with pytest.raises(Refusal, match="a status that cannot be"):
        Hello.from_bytes(json.dumps({**json.loads(BYTES), "status": status}).encode())


@pytest.mark.parametrize("mode", [-1, 1_000_001, 2**32])
def test_a_mode_that_cannot_be(mode):
    with pytest.raises(Refusal, match="a mode that cannot be"):
        Hello.from_bytes(json.dumps({**json.loads(BYTES), "status": [1, 1, mode, 0]}).encode())


def test_a_status_as_bytes():
    told = bytes([7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 1, 2, 0, 0])
    assert Status(7, 8, 9, 513).to_bytes() == told
    assert Status.from_bytes(told) == Status(7, 8, 9, 513)
    assert [Status(1, 1, mode).share for mode in (TRAINS, 1, 300_000, HAS_SETTLED)] == [0, 1, 300_000, 0]
    for body in (b"", bytes(12), bytes(15), bytes(17)):
        with pytest.raises(Refusal, match="wrong length"):
            Status.from_bytes(body)


CHANGES = [
    ({"protocol": 5}, "it speaks protocol version 5 (cesar 1.2), and this peer speaks 4"),
    ({"network": "cd" * 16}, "it belongs to another network"),
    (
        {"digest": "ef" * 32},
        "it has another roster of version 2 than this peer: members, cells or settings differ",
    ),
    ({"size": 101}, "its model has 101 parameters, and this peer's has 100"),
    ({"layout": "3 tensors"}, "its model has 3 tensors, and this peer's has 2 tensors: as many parameters"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_what_must_be_the_same_at_both_ends(change, words):
    with pytest.raises(Refusal) as refused:
        HELLO.accept(dataclasses.replace(HELLO, **change))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {
            "node": 4,
            "roster": 9,
            "digest": "",
            "status": Status(99, 99),
            "time": 0.0,
            "release": "2",
            "satisfied": True,
        },
        {"size": None},
        {"layout": None},
        {"status": Status(7, 8)},
        {"size": 101, "purpose": "check"},
    ],
)
def test_what_may_differ(change):
    HELLO.accept(dataclasses.replace(HELLO, **change))


def test_a_refusal_is_one_of_ours():
    assert issubclass(Refusal, CesarError)
