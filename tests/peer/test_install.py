"""What comes from the authority is taken by name and compared; keys of a site are never touched."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime

import pytest

from cesar.peer.trust import folder as folders
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.folder import Network
from cesar.peer.trust.identity import Identity, make_keys
from support.commands import agreed, call, refused
from support.lan import free_ports

KEYS = ("key.pem", "agreement.key")


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Three sites with keys of their own, and what an authority has signed for them."""
    monkeypatch.chdir(tmp_path)
    base = free_ports(3)
    for i in range(3):
        call("peer", "request", "--network", "trial", "--id", i, "--out", f"peer-{i}", "--address", f"127.0.0.1:{base + i}")  # fmt: skip
    requests = [word for i in range(3) for word in ("--request", f"peer-{i}/request.json")]
    call("network", "init", "--out", "net", "--name", "trial", "--topology", "complete", *requests, *agreed(*requests[1::2]))  # fmt: skip
    return tmp_path


def install(node=0, *words, source=None):
    return ("peer", "install", f"peer-{node}", "--from", source or f"net/signed/peer-{node}", *words)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_named_files_are_taken_and_told(sites):
    said = call(*install(0, *agreed("net/ca/ca.pem")))
    for word in (
        "certificate.pem: node 0 of trial",
        "ca.pem: SHA-256",
        "roster.json: version 1",
        "peer.toml",
    ):
        assert word in said
    assert Identity.load(sites / "peer-0").id == 0
    before = contents(sites / "peer-0")
    call(*install(0))  # a second time the authority is known
    assert contents(sites / "peer-0") == before


def test_keys_from_elsewhere_are_left_alone(sites):
    """What `cp signed/* peer-0` would have put in their place, without a word."""
    make_keys(sites / "other", "trial", 0)
    for name in KEYS:
        shutil.copy(sites / "other" / name, sites / "net/signed/peer-0")
    (sites / "net/signed/peer-0" / "train.py").write_text("raise SystemExit")
    before = {name: (sites / "peer-0" / name).read_bytes() for name in KEYS}
    said = call(*install(0, *agreed("net/ca/ca.pem")))
    assert "Left alone what nobody asked for: 'agreement.key', 'key.pem', 'train.py'" in said.replace(
        "\n", " "
    )
    assert {name: (sites / "peer-0" / name).read_bytes() for name in KEYS} == before
    assert not (sites / "peer-0" / "train.py").exists()


def other_keys(sites):
    """The authority signs keys that it has made itself, for this site's id."""
    network = Network.open(sites / "net")
    csr = make_keys(sites / "other", "trial", 0)
    return network.authority.issue(Request(csr=csr), now=datetime.now(UTC))


def spoil(sites, what):
    signed = sites / "net/signed/peer-0"
    match what:
        case "other keys":
            (signed / "certificate.pem").write_bytes(other_keys(sites))
        case "another node":
            shutil.copy(sites / "net/signed/peer-1/certificate.pem", signed)
        case "another authority":
            call("network", "init", "--out", "evil", "--name", "trial", "--peers", 3)
            shutil.copy(sites / "evil/ca/ca.pem", signed)
        case "a roster without it":
            call("network", "init", "--out", "evil", "--name", "trial", "--peers", 3)
            shutil.copy(sites / "evil/roster.json", signed)
        case "a link":
            (signed / "roster.json").unlink()
            (signed / "roster.json").symlink_to(sites / "net/roster.json")
        case "its own paths":
            text = (signed / "peer.toml").read_text()
            (signed / "peer.toml").write_text(text.replace("[peer]\n", '[peer]\nkeys = "/elsewhere"\n'))
        case "another table":
            with (signed / "peer.toml").open("a") as file:
                file.write('[extra]\nkeys = "/elsewhere"\n')


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other keys", "is not what peer-0/request.json asked for"),
        ("another node", "it names node 1 of trial, and the request node 0"),
        ("another authority", "another SHA-256 than --sha256"),
        ("a roster without it", "roster"),
        ("a link", "is a link"),
        ("its own paths", "wants to decide peer.keys"),
        ("another table", "wants to decide extra.keys"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole(sites, what, words):
    compared = agreed("net/ca/ca.pem")
    spoil(sites, what)
    before = contents(sites / "peer-0")
    assert words in refused(*install(0, *compared))
    assert contents(sites / "peer-0") == before


@pytest.mark.parametrize("what", ["listen", "setting"])
def test_words_of_the_authority_are_escaped(sites, what):
    """Its file could draw lines that look like those of this site's own command."""
    settings = sites / "net/signed/peer-0/peer.toml"
    words = "\\n\\u001b[2KTook everything"
    said = f'listen = "{words}"' if what == "listen" else f'"{words}" = 1'
    settings.write_text(re.sub("listen = .*", lambda _: said, settings.read_text()))
    command = install(0, *agreed("net/ca/ca.pem"))
    shown = refused(*command) if what == "setting" else call(*command)
    assert "\\n\\x1b[2KTook everything" in shown
    assert "\x1b" not in shown
    assert "\nTook everything" not in shown


def test_an_authority_that_nobody_compared_is_refused(sites):
    assert "compare the SHA-256 of ca.pem" in refused(*install(0))
    call(*install(0, *agreed("net/ca/ca.pem")))
    spoil(sites, "another authority")
    assert "another authority than the one beside this peer's keys" in refused(*install(0))


def test_an_older_roster_is_refused_and_own_settings_stay(sites):
    call(*install(0, *agreed("net/ca/ca.pem")))
    old = (sites / "net/signed/peer-0/roster.json").read_bytes()
    settings = sites / "peer-0" / folders.PEER
    settings.write_text(settings.read_text().replace("[peer]\n", '[peer]\napprove = "ask"\n'))
    call("network", "extend", "net")
    assert "Kept this site's own peer.toml" in call(*install(0))
    assert json.loads((sites / "peer-0/roster.json").read_text())["roster"]["version"] == 2
    assert 'approve = "ask"' in settings.read_text()
    (sites / "net/signed/peer-0/roster.json").write_bytes(old)
    assert "older than version 2" in refused(*install(0))


def test_a_renewed_certificate_is_the_one_that_was_asked_for(sites):
    call(*install(0, *agreed("net/ca/ca.pem")))
    first = (sites / "peer-0/certificate.pem").read_bytes()
    call("peer", "renew", "peer-0")
    call("network", "renew", "net", "peer-0/request.json", *agreed("peer-0/request.json"))
    call(*install(0))
    assert (sites / "peer-0/certificate.pem").read_bytes() != first
    assert Identity.load(sites / "peer-0").id == 0
