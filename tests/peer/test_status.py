"""What a peer's own page says."""

import asyncio
import base64
import http.client
import re

import networkx as nx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cesar.base.errors import ConfigError, Reason, RemoteProtocolError
from cesar.peer.driver.report import RECENT, Report
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops.status import HEADERS, StatusPage, _Metrics, _page, snapshot
from cesar.peer.trust.address import host_in, is_this_machine
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
    "disk": "",
    "shared": 0.3012,
    "bytes": {"values": 1_234_567, "control": 2},
    "figures": {"test_loss": 0.123456, "accuracy": 0.5},
    "neighbours": [NEAR],
    "settling": False,
    "recent": [],
    "cell": None,
}


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
    assert is_this_machine(host_in(name)) is here


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_page_is_served_to_those_who_ask_for_this_machine(host, tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    folder, port = network.folder / "peer-1", free_ports(1)
    edit(folder, r"\[peer\]", f'[peer]\nstatus = "{host}:{port}"')

    async def story():
        page = StatusPage(AsyncPeer.load(folder))
        try:
            assert (await asyncio.to_thread(headers_of, host, port)).items() >= HEADERS.items()
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


def headers_of(host, port):
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=10)
    try:
        connection.request("GET", "/")
        return dict(connection.getresponse().getheaders())
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


def test_the_state_of_neighbours_at_a_glance():
    assert "<p class=up>1 of 1 neighbours are there</p>" in _page(NOW)
    away = {**NEAR, "id": 4, "name": "<i>", "up": False}
    page = _page({**NOW, "neighbours": [NEAR, away]})
    assert "<p class=down>1 of 2 neighbours are there · awaited: 4 &lt;i&gt;</p>" in page


def test_the_last_rounds_are_told_one_by_one(tmp_path):
    """Whatever their number, the page tells the latest, newest first, and who was missing in each."""
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    peer = AsyncPeer.load(network.folder / "peer-1")
    assert "The last rounds" not in _page(snapshot(peer))
    for round_ in range(RECENT + 3):
        missing = (2,) if round_ % 2 else ()
        sent = {"values": 1000 + round_, "control": 0, "coordination": 0, "metadata": 0}
        peer.totals.add(
            Report(
                round=round_, contributors=(0,), missing=missing, shared=0.25, lost=0, bytes=sent, seconds=1.5
            )
        )
    told = snapshot(peer)["recent"]
    assert [one["round"] for one in told] == list(range(RECENT + 2, 2, -1))
    assert [one["missing"] for one in told[:2]] == ["", "2"]
    last = RECENT + 1
    row = f"<tr><td class=n>{last}<td class=n>1<td class=down>2<td class=n>25.0%<td class=n>{1000 + last:,}<td class=n>1.50</tr>"
    assert row in _page(snapshot(peer))


def test_a_cell_on_the_page_and_in_the_metrics(tmp_path):
    """Who is in it, who is awaited since when, how old what it heard is, and what is in no sum yet."""
    network = make_network(tmp_path / "net", nx.empty_graph(8), 'name = "cells"\nsize = 4')
    peer = AsyncPeer.load(network.folder / "peer-0")
    others = network.roster.plan.place(0).view
    assert snapshot(peer)["cell"]["members"] == list(others)
    sent = {"values": 1, "control": 0, "coordination": 0, "metadata": 0}
    for round_, missing in ((3, ()), (4, others[:1]), (5, others[:1])):
        peer.totals.add(
            Report(
                round=round_,
                contributors=tuple(node for node in others if node not in missing),
                missing=missing,
                shared=1.0,
                lost=0,
                bytes=sent,
                seconds=1.0,
                summed=not missing,
                heard={1: 2},
                unsent=0.5 if missing else 0.0,
            )
        )
    page = _page(snapshot(peer))
    named = f"{others[0]}, {others[1]} and {others[2]}"
    assert (
        f"In a cell with {named}: what this peer trains is only ever seen added to what they train." in page
    )
    assert f"The cell waits for {others[0]}, since round 4." in page
    assert "Heard cell 1, 2 round(s) old." in page
    assert "an update of length 0.5." in page
    assert "the cell did not add up last time" in page
    registry = CollectorRegistry()
    registry.register(_Metrics(peer))
    metrics = generate_latest(registry).decode()
    assert f'cesar_awaited_since{{member="{others[0]}"}} 4.0' in metrics
    assert 'cesar_heard_age_rounds{cell="1"} 2.0' in metrics
    assert "cesar_summed 0.0" in metrics
    assert "cesar_unsent 0.5" in metrics
