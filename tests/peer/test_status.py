"""What a peer's own page says."""

import asyncio
import base64
import http.client
import re

import networkx as nx
import pytest

from cesar.errors import ConfigError, Reason, RemoteProtocolError
from cesar.peer.runtime import AsyncPeer
from cesar.peer.status import StatusPage, _is_here, _page, _split
from support.lan import edit, free_ports, make_network

NEAR = {
    "id": 2,
    "name": "a & b",
    "up": True,
    "round": 7,
    "purpose": "train",
    "suspected": False,
    "last_error": "",
}
NOW = {
    "node": 1,
    "name": "<b>clinic",
    "network": "net",
    "roster": 3,
    "round": 7,
    "rounds_done": 6,
    "shared": 0.3012,
    "bytes": {"values": 1_234_567, "control": 2},
    "figures": {"test_loss": 0.123456, "accuracy": 0.5},
    "neighbours": [NEAR],
    "settling": False,
    "groups": [],
}
GROUP = {"words": "{1, 5 a & b}", "told": ""}


def test_the_page_sums_up_and_escapes():
    page = _page(NOW)
    assert "<h1>&lt;b&gt;clinic: node 1 of net</h1>" in page
    assert (
        "Round 7, 6 done, shared 30.1% of the parameters last time; 1,234,569 bytes sent; roster 3." in page
    )
    assert "<p>test loss 0.1235, accuracy 0.5</p>" in page
    assert "<td>2 a &amp; b<td class=up>up<td class=n>7<td></tr>" in page


def test_half_characters_do_not_break_the_page():
    page = _page({**NOW, "neighbours": [{**NEAR, "last_error": "\ud800"}]})
    assert b"<td>?</tr>" in page.encode(errors="replace")


@pytest.mark.parametrize(
    "name, here",
    [
        ("localhost:7500", True), ("127.0.0.1:7500", True), ("[::1]:7500", True), ("[::1]", True), ("localhost", True),
        ("evil.example:7500", False), ("10.0.0.1", False), ("", False), ("[", False), ("localhost.evil.example", False),
    ],
)  # fmt: skip
def test_whom_the_page_answers(name, here):
    assert _is_here(_split(name)[0]) is here


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_page_is_served_to_those_who_ask_for_this_machine(host, tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder, port = network.folder / "peer-1", free_ports(1)
    edit(folder, r"\[peer\]", f'[peer]\nstatus = "{host}:{port}"')

    async def story():
        page = StatusPage(AsyncPeer.load(folder))
        try:
            return [await asyncio.to_thread(ask, host, port, name) for name in (None, "evil.example")]
        finally:
            page.close()

    assert asyncio.run(story()) == [200, 403]


TOKEN = "0123456789abcdef-token"


@pytest.fixture
def elsewhere(tmp_path):
    """A peer whose status page listens on all addresses."""
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder, port = network.folder / "peer-1", free_ports(1)
    edit(folder, r"\[peer\]", f'[peer]\nstatus = "0.0.0.0:{port}"')
    return folder, port


def keep_token(folder, text=TOKEN, mode=0o600):
    (folder / "token").write_text(text + "\n")
    (folder / "token").chmod(mode)
    return folder / "token"


def test_without_a_token_the_page_is_for_this_machine(elsewhere):
    folder, _ = elsewhere
    with pytest.raises(ConfigError, match="is not this machine, and the page has no password"):
        StatusPage(AsyncPeer.load(folder))


@pytest.mark.parametrize(
    "text, mode, why",
    [
        ("short", 0o600, "at least 16"),
        ("x" * 20 + "\0", 0o600, "plain characters"),
        (TOKEN, 0o644, "others can read"),
    ],
)
def test_a_token_that_is_none(elsewhere, monkeypatch, text, mode, why):
    folder, _ = elsewhere
    monkeypatch.setenv("CESAR_STATUS_TOKEN", str(keep_token(folder, text, mode)))
    with pytest.raises(ConfigError, match=why):
        StatusPage(AsyncPeer.load(folder))


def test_with_a_token_the_page_is_for_whoever_knows_it(elsewhere):
    folder, port = elsewhere
    edit(folder, r"\[peer\]", f'[peer]\nstatus_token = "{keep_token(folder).name}"')
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    shown = {
        "nothing": {}, "bearer": {"Authorization": f"Bearer {TOKEN}"}, "basic": {"authorization": f"Basic {basic}"},
        "wrong": {"Authorization": f"Bearer {TOKEN}x"}, "no base64": {"Authorization": "Basic ?"},
        "as it is": {"Authorization": TOKEN}, "host": {"Host": "localhost"},
    }  # fmt: skip

    async def story():
        page = StatusPage(AsyncPeer.load(folder))
        try:
            answers = {
                name: await asyncio.to_thread(ask, "127.0.0.1", port, headers=headers)
                for name, headers in shown.items()
            }
            health = [
                await asyncio.to_thread(ask, "127.0.0.1", port, path=path)
                for path in ("/healthz", "/readyz", "/x")
            ]
            return answers, health
        finally:
            page.close()

    answers, health = asyncio.run(story())
    assert {name for name, status in answers.items() if status == 200} == {"bearer", "basic"}
    assert set(answers.values()) == {200, 401}
    assert health == [200, 503, 401], "it lives, it has nobody to average with, and the rest wants a token"


def test_health_and_readiness(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder, port = network.folder / "peer-1", free_ports(1)
    edit(folder, r"\[peer\]", f'[peer]\nstatus = "127.0.0.1:{port}"')
    peer = AsyncPeer.load(folder)
    alive = True
    page = StatusPage(peer, lambda: alive)
    try:
        assert [page.answer(path, {})[0] for path in ("/healthz", "/readyz")] == [200, 503]
        peer.liveness.connected(2)
        assert [page.answer(path, {})[0] for path in ("/healthz", "/readyz")] == [200, 200]
        alive = False
        assert [page.answer(path, {})[0] for path in ("/healthz", "/readyz")] == [503, 503]
    finally:
        page.close()


def test_metrics_of_refusals_and_of_what_ends(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder, port = network.folder / "peer-1", free_ports(1)
    edit(folder, r"\[peer\]", f'[peer]\nstatus = "127.0.0.1:{port}"')
    peer = AsyncPeer.load(folder)
    peer.reception.refused(RemoteProtocolError(2, Reason.MALFORMED, "bad"))
    peer.reception.sent_away(2, "bad")
    page = StatusPage(peer)
    try:
        text = page.answer("/metrics", {})[2].decode()
    finally:
        page.close()
    assert 'cesar_refusals_total{reason="malformed"} 1.0' in text
    assert 'cesar_refusals_total{reason="conversation"} 1.0' in text
    days = dict(re.findall(r'cesar_days_left{what="(\w+)"} ([\d.]+)', text))
    assert days.keys() == {"certificate", "roster", "authority"}
    assert 29 < float(days["certificate"]) <= 30


def ask(host, port, name=None, *, path="/status.json", headers=None):
    headers = headers or ({} if name is None else {"Host": name})
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_before_the_first_round_nothing_is_shared_or_shown():
    page = _page({**NOW, "shared": None, "figures": {}})
    assert "shared" not in page
    assert "test loss" not in page


@pytest.mark.parametrize(
    "changed, shown",
    [
        ({"up": False, "suspected": True}, "<td class=down>down<"),
        ({"suspected": True}, "<td class=up>slow<"),
        ({"purpose": "check"}, "<td class=up>checking<"),
        ({"last_error": "<script>"}, "<td>&lt;script&gt;</tr>"),
    ],
)
def test_links(changed, shown):
    assert shown in _page({**NOW, "neighbours": [{**NEAR, **changed}]})


def test_groups_in_words():
    wait = "group {2, 4} waits for 4, missing since round 3"
    page = _page({**NOW, "groups": [GROUP, {"words": "{2, 4}", "told": wait}], "settling": True})
    assert "<p>Hears {1, 5 a &amp; b} and {2, 4}: sums over whole groups, always the same ones.</p>" in page
    assert "<p class=down>Group {2, 4} waits for 4, missing since round 3.</p>" in page
    assert "Round 7 (settling), 6 done" in page
    assert "Hears" not in _page(NOW)
