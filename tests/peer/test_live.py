"""One page of a whole network, in a real browser: peers that die and come back, and peers that say anything."""

import contextlib
import http.server
import json
import signal
import threading
import urllib.error
import urllib.request

import networkx as nx
import pytest

from cesar.errors import ConfigError
from cesar.peer.board import MOST_FIGURES, MOST_POINTS, SILENT_SECONDS, Board, Curve
from cesar.peer.watch import POLICY, LivePage, Place, Watcher
from support.browser import Browser
from support.commands import refused, started
from support.localnet import make
from support.waiting import wait_until

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TRAINING = """
import time

import numpy as np


def train(peer):
    model = np.zeros(2000, np.float32)
    while True:
        peer.average_vector(model)
        peer.show(accuracy=1 - 1 / (2 + peer.round), not_a_number=float("nan"))
        time.sleep(0.2)
"""


def said(node=0, **changed):
    """What a peer with two neighbours says."""
    near = [{"id": i, "name": f"node-{i}", "up": True, "last_error": ""} for i in range(3) if i != node]
    return {
        "node": node,
        "name": f"node-{node}",
        "network": "net",
        "roster": 1,
        "round": 7,
        "rounds_done": 7,
        "bytes": {"values": 10, "control": 2},
        "figures": {"accuracy": 0.5},
        "groups": [{"words": "{1, 2}", "waits": False, "told": ""}],
        "neighbours": near,
        **changed,
    }


def board_of(*answers, now=0.0):
    board = Board([str(i) for i in range(len(answers))])
    for i, answer in enumerate(answers):
        board.hear(str(i), answer, now)
    return board


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────


def test_a_peer_that_is_not_heard_for_a_while_does_not_answer():
    board = board_of(said(), said(1, settling=True))
    assert [peer["state"] for peer in board.picture(SILENT_SECONDS)["peers"]] == ["training", "settling"]
    board.hear("1", said(1), SILENT_SECONDS)
    board.miss("0", "Connection refused")
    first, second = board.picture(SILENT_SECONDS + 1)["peers"]
    assert (first["state"], first["why"], second["state"]) == ("no answer", "Connection refused", "training")
    board.end("1", "done")
    assert board.picture(1e9)["peers"][1]["state"] == "done"
    assert Board(["x"]).picture(0)["peers"] == [{"where": "x", "state": "starting", "why": ""}]


def test_a_link_is_up_if_all_who_can_tell_say_so():
    down = [{"id": 1, "up": False}, {"id": 2, "up": True}]
    board = board_of(said(0, neighbours=down), said(1))
    links = {tuple(link["ends"]): link["up"] for link in board.picture(0)["links"]}
    assert links == {(0, 1): False, (0, 2): True, (1, 2): True}
    assert board.picture(0)["others"] == [{"node": 2, "name": "node-2"}]
    assert {link["up"] for link in board.picture(1e9)["links"]} == {None}


def test_curves_keep_what_changes_and_never_grow_without_end():
    curve = Curve()
    for round_ in range(10 * MOST_POINTS):
        curve.add(round_, round_ // 2)
    assert MOST_POINTS // 2 <= len(curve.points) <= MOST_POINTS
    assert curve.points[-1][1] == (10 * MOST_POINTS - 1) // 2
    assert curve.points == sorted(curve.points)
    curve.add(3, 0.0)
    assert curve.points == [(3, 0.0)]  # the network began again


@pytest.mark.parametrize(
    "answer",
    [
        None, [], "text", {}, said(node=-1), said(node=2**60), said(round="<b>"), said(bytes={"values": -1}),
        said(figures={"a": "high"}), said(neighbours=[{"id": 1}]), said(groups=[{}] * 1001), said(name=None),
    ],
)  # fmt: skip
def test_what_is_no_status_is_not_shown(answer):
    (peer,) = board_of(answer).picture(0)["peers"]
    assert peer["state"] == "no answer"
    assert "not the status of a peer" in peer["why"]


def test_what_is_too_much_is_cut():
    many = {f"figure {i}": float(i) for i in range(1000)}
    board = board_of(said(name="n" * 9999, figures={**many, "last": 1.0}, network="x" * 999))
    board.hear("0", said(figures={f"other {i}": 1.0 for i in range(1000)}), 0)
    (peer,) = board.picture(0)["peers"]
    assert len(peer["figures"]) == MOST_FIGURES
    assert len(peer["curves"]) <= MOST_FIGURES + 1
    assert len(json.dumps(board.picture(0))) < 20_000
    gap = board_of(said(figures={"loss": float("nan"), "rate": float("inf")})).picture(0)["peers"][0]
    assert gap["figures"] == {"loss": None, "rate": None}
    assert "loss" not in gap["curves"]


def test_a_peer_of_another_network_is_named():
    _, other = board_of(said(), said(1, network="elsewhere")).picture(0)["peers"]
    assert other["why"] == "this is a peer of another network, elsewhere"


# ── asking for it ───────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def answering(body, token="", status=200):
    """A server that says this to whoever asks with the token; and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization")))
            good = not token or self.headers.get("Authorization") == f"Bearer {token}"
            self.send_response(status if good else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_token_is_shown_to_its_site_and_to_nobody_else():
    with answering(json.dumps(said()).encode(), token="t0p") as (url, asked):
        place = Place(url + "/prefix", "t0p")
        assert place.ask()["node"] == 0
        assert asked == [("/prefix/status.json", "Bearer t0p")]
        with pytest.raises(ConfigError, match="wants a token"):
            Place(url).ask()
        with pytest.raises(ConfigError, match="is the token right"):
            Place(url, "wrong").ask()
    assert "t0p" not in repr(place)


@pytest.mark.parametrize(
    "body, status, why",
    [
        (b"[" * 100_000, 200, "cannot be read"), (b"{", 200, "cannot be read"), (b"\xff", 200, "cannot be read"),
        (b" " * (1 << 21), 200, "not a peer's status page"), (b"{}", 500, "HTTP 500"), (b"{}", 302, "HTTP 302"),
    ],
)  # fmt: skip
def test_answers_that_are_none(body, status, why):
    with answering(body, status=status) as (url, _), pytest.raises(ConfigError, match=why):
        Place(url).ask()


def test_nobody_listens_there():
    with answering(b"") as (url, _):
        pass
    with pytest.raises(ConfigError, match="Connection refused"):
        Place(url).ask()


def test_addresses_and_tokens_that_are_refused(tmp_path, monkeypatch):
    assert Place.parse("b.example.org:7500").url == "http://b.example.org:7500"
    assert Place.parse("https://b.example.org/peer/").url == "https://b.example.org/peer"
    watch = ("network", "watch", "--peers")
    assert "carry no password" in refused(*watch, "http://user:secret@b.example.org")
    for address in (
        "",
        "ftp://b",
        "http://",
        "http://b:0",
        "http://b:99999",
        "http://b/?x=1",
        "http://[b",
        "a b",
    ):
        assert (
            "--peers needs" in refused(*watch, "")
            if not address
            else "is not the address" in refused(*watch, address)
        )
    assert "once" in refused(*watch, "b:1,http://b:1")
    file = tmp_path / "tokens"
    file.write_text("http://b:1 s3cret\n")
    file.chmod(0o644)
    assert "chmod 600" in refused(*watch, "b:1", "--tokens", file)
    file.chmod(0o600)
    assert "travel in clear" in refused(*watch, "b:1", "--tokens", file)
    assert "not among the addresses" in refused(*watch, "c:1", "--tokens", file)
    file.write_text("http://b:1 s3cret more\n")
    wrong = refused(*watch, "b:1", "--tokens", file)
    assert "line 1" in wrong
    assert "s3cret" not in wrong
    file.write_text("s3cret\x7f")
    monkeypatch.setenv("CESAR_STATUS_TOKEN", str(file))
    wrong = refused(*watch, "127.0.0.1:1")
    assert "no header can carry" in wrong
    assert "s3cret" not in wrong
    file.write_text("s3cret\n")
    assert "travel in clear" in refused(*watch, "b:1")


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────


def fetch(url, host=None):
    asked = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.headers, answer.read().decode()


def test_the_page_is_for_this_machine_and_loads_nothing_from_elsewhere():
    with LivePage(Board([])) as page:
        assert page.url.startswith("http://127.0.0.1:")
        for file in ("", "live.js", "live.css", "board.json"):
            headers, text = fetch(page.url + file)
            assert headers["Content-Security-Policy"] == POLICY
            assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// What", "")
        for path, host, code in (("", "evil.example", 403), ("../secret", None, 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                fetch(page.url + path, host)
            assert error.value.code == code
            error.value.close()
        with pytest.raises(ConfigError, match="choose another port"):
            LivePage(Board([]), int(page.url.split(":")[2].strip("/")))


def test_what_peers_say_is_text_in_the_browser(tmp_path):
    near = [{"id": 1, "name": EVIL, "up": False, "last_error": EVIL}]
    group = {"words": EVIL, "waits": True, "told": EVIL}
    evil = said(name=EVIL, network=EVIL, neighbours=near, figures={EVIL: 1.0}, groups=[group])
    with answering(json.dumps(evil).encode()) as (url, _), answering(EVIL.encode()) as (other, _):
        board = Board([url, other])
        watcher = Watcher([Place(url), Place(other)], board)
        with LivePage(board) as page, Browser(tmp_path, width=390) as browser:
            browser.open(page.url)
            wait_until(lambda: EVIL in browser.value("document.getElementById('waits').textContent"))
            text = browser.value("document.body.textContent")
            assert text.count(EVIL) >= 5  # network, peer, error, group and figure, each as it was said
            assert browser.value("document.querySelectorAll('img, script:not([src])').length") == 0
            assert browser.value("document.documentElement.scrollWidth") <= 390
            assert browser.complaints == []
        watcher.close()


@contextlib.contextmanager
def watching(urls, folder):
    """`cesar network watch`, and the address of its page."""
    with started("network", "watch", "--peers", ",".join(urls), cwd=folder) as process:
        line = process.stdout.readline()
        assert "live at http" in line, line + process.stderr.read()
        yield process, line.split("live at ")[1].split()[0]


def test_a_browser_watches_a_peer_die_and_come_back(tmp_path):
    net, base = make(tmp_path / "net", nx.complete_graph(3), group_size=2)
    (tmp_path / "training.py").write_text(TRAINING)

    def run(node):
        return started("peer", "run", net / f"peer-{node}", "--train", "training:train", cwd=tmp_path)

    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(run(node)) for node in range(3)]
        urls = [f"http://127.0.0.1:{base + 100 + node}" for node in range(3)]
        watch, url = stack.enter_context(watching(urls, tmp_path))
        browser = stack.enter_context(Browser(tmp_path, width=390, height=844))
        browser.open(url)

        def states():
            return browser.value(
                "[...document.querySelectorAll('#peers tr')].map((row) => row.dataset.state)"
            )

        def shows(state, links, summary):
            down = browser.value(
                "[...document.querySelectorAll('#graph line.down')].map((l) => l.dataset.ends)"
            )
            return (
                states() == ["training", "training", state]
                and down == links
                and summary in browser.value("document.getElementById('summary').textContent")
            )

        def saying():
            return browser.value("document.body.innerText")

        wait_until(lambda: shows("training", [], "all group sums are complete"), 120, saying)
        wait_until(
            lambda: browser.value("document.querySelectorAll('[data-figure=accuracy] polyline').length") == 3,
            60,
            saying,
        )
        processes[2].kill()
        wait_until(lambda: shows("no answer", ["0-2", "1-2"], "2 groups wait for a member"), 120, saying)
        assert "waits for 2, missing since round" in saying()
        assert "Connection refused" in saying()
        assert browser.value("document.documentElement.scrollWidth") <= 390

        stack.enter_context(run(2))
        wait_until(lambda: shows("training", [], "3 of 3 peers are there"), 120, saying)
        wait_until(lambda: "all group sums are complete" in saying(), 60, saying)
        browser.value("document.querySelector('#peers button').click()")
        assert browser.value("document.querySelectorAll('[data-figure=accuracy] .faint').length") == 2
        assert browser.complaints == []

        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=60)
        assert watch.returncode == 0
        wait_until(lambda: browser.value("!document.getElementById('ended').hidden"), 60, saying)
