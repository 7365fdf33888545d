"""A small page for the people who run a peer, and metrics for Prometheus; for this machine, or for people who know a token.

/             the page        /status.json  the same for programs        /metrics  Prometheus text
/healthz      200 as long as the process does its work                   /readyz   200 if it has somebody to average with

The last two are for orchestrators. They say nothing but yes or no, and ask for no token.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cesar.base.errors import ConfigError
from cesar.graph.cells import CellPlan
from cesar.page import render
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.trust import naming
from cesar.peer.trust.address import host_in, is_this_machine, split
from cesar.protocol.wire import CATEGORIES

PLAIN = "text/plain; charset=utf-8"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The page loads nothing, runs nothing, and no other page may show it in a frame."""


def snapshot(peer: AsyncPeer) -> dict[str, Any]:
    """What there is to know, without anything secret."""
    totals, roster = peer.totals, peer.roster
    report = totals.recent[-1] if totals.recent else None
    return {
        "node": peer.id,
        "name": roster.members[peer.id].name,
        "network": roster.network,
        "roster": roster.version,
        "round": peer.next_round,
        "rounds_done": totals.rounds,
        "shared": None if report is None else report.shared,
        "disk": "" if report is None else report.disk,
        "seconds": None if report is None else report.seconds,
        "bytes": dict(totals.sent),
        "dropouts": totals.dropouts,
        "deadline_seconds": peer.patience,
        "figures": dict(totals.figures),
        "settling": peer.liveness.mine.share > 0,
        "recent": [
            {
                "round": one.round,
                "heard": len(one.contributors),
                "missing": naming.listed(roster, one.missing),
                "shared": one.shared,
                "bytes": one.total_bytes,
                "seconds": one.seconds,
            }
            for one in reversed(totals.recent)
        ],
        "cell": None if roster.plan is None else _cell(peer, roster.plan),
        "refusals": dict(peer.reception.refusals),
        "days_left": peer.membership.days_left(),
        "neighbours": [
            {
                "id": node,
                "name": roster.members[node].name,
                "up": known.up,
                "round": known.status.current,
                "purpose": known.purpose,
                "suspected": known.suspected,
                "last_error": known.last_error,
            }
            for node, known in sorted(peer.neighbours.items())
        ],
    }


def _cell(peer: AsyncPeer, plan: CellPlan) -> dict[str, Any]:
    """Who is in this peer's cell, who is awaited and since when, how old what it heard is, and what is in no sum yet."""
    roster, others, reports = peer.roster, plan.place(peer.id).view, peer.totals.recent
    last = reports[-1] if reports else None
    awaited = () if last is None else tuple(node for node in others if node in last.missing)
    since = {}
    for node in awaited:  # the last report in a row without it; earlier ones than are kept are not told
        for one in reversed(reports):
            if node not in one.missing:
                break
            since[node] = one.round
    return {
        "number": plan.cell_of(peer.id),
        "members": list(others),
        "words": naming.listed(roster, others),
        "awaited": [
            {"id": node, "name": naming.called(roster, node), "since": since[node]} for node in awaited
        ],
        "summed": last is not None and last.summed,
        "heard": {} if last is None else dict(last.heard),
        "unsent": 0.0 if last is None else last.unsent,
        "discarded": 0.0 if last is None else last.discarded,
    }


class _Metrics:
    """Prometheus asks, and gets what holds at that moment."""

    def __init__(self, peer: AsyncPeer) -> None:
        self._peer = peer

    def collect(self) -> list[Metric]:
        now = snapshot(self._peer)
        sent = CounterMetricFamily("cesar_sent_bytes", "Bytes of frames sent", labels=["category"])
        for category in CATEGORIES:
            sent.add_metric([category], now["bytes"].get(category, 0))
        up = GaugeMetricFamily("cesar_neighbour_up", "Whether a neighbour is connected", labels=["neighbour"])
        for neighbour in now["neighbours"]:
            up.add_metric([str(neighbour["id"])], int(neighbour["up"]))
        shown = GaugeMetricFamily("cesar_figure", "What the training code shows", labels=["name"])
        for name, value in now["figures"].items():
            shown.add_metric([name], value)
        refusals = CounterMetricFamily(
            "cesar_refusals",
            "Frames that were refused, by reason, and conversations that were ended",
            labels=["reason"],
        )
        for reason, count in now["refusals"].items():
            refusals.add_metric([reason], count)
        days = GaugeMetricFamily("cesar_days_left", "Days until something ends", labels=["what"])
        for what, left in now["days_left"].items():
            days.add_metric([what], left)
        return [
            refusals,
            days,
            GaugeMetricFamily("cesar_round", "The next round", value=now["round"]),
            CounterMetricFamily("cesar_rounds", "Rounds completed", value=now["rounds_done"]),
            CounterMetricFamily("cesar_dropouts", "Neighbours missing from rounds", value=now["dropouts"]),
            GaugeMetricFamily(
                "cesar_shared_fraction", "Of the parameters, last round", value=now["shared"] or 0
            ),
            GaugeMetricFamily("cesar_round_seconds", "Duration of the last round", value=now["seconds"] or 0),
            sent,
            up,
            shown,
            *_cell_metrics(now["cell"]),
        ]


def _cell_metrics(cell: dict[str, Any] | None) -> list[Metric]:
    if cell is None:
        return []
    awaited = GaugeMetricFamily(
        "cesar_awaited_since", "The round since which a member of the cell is away", labels=["member"]
    )
    for one in cell["awaited"]:
        awaited.add_metric([str(one["id"])], one["since"])
    heard = GaugeMetricFamily("cesar_heard_age_rounds", "Age of what a cell said last", labels=["cell"])
    for number, age in cell["heard"].items():
        heard.add_metric([str(number)], age)
    return [
        awaited,
        heard,
        GaugeMetricFamily("cesar_summed", "Whether the last round was in a sum", value=int(cell["summed"])),
        GaugeMetricFamily(
            "cesar_unsent", "Length of what is trained and in no sum yet", value=cell["unsent"]
        ),
    ]


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _knows(header: str, token: str) -> bool:
    """Whether an Authorization header shows the token: as Prometheus sends it, or as the password that a browser asks for."""
    kind, _, said = header.partition(" ")
    if kind == "Basic":
        try:
            said = base64.b64decode(said, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    return kind in {"Basic", "Bearer"} and hmac.compare_digest(said.encode(), token.encode())


class StatusPage:
    """Serves on the address that peer.toml gives, from a thread of its own.

    Args:
        answers: whether the peer still does its work.

    Raises:
        ConfigError: the address is not this machine's, and there is no token; or it cannot be used.
    """

    def __init__(self, peer: AsyncPeer, answers: Callable[[], bool] = lambda: True) -> None:
        address = peer.config.tables.peer.status
        assert address is not None
        host, port = split(address)
        self._peer, self._answers, self._token = peer, answers, peer.config.status_token
        if self._token is None and not is_this_machine(host):
            raise ConfigError(
                f"peer.status: {host} is not this machine, and the page has no password; use 127.0.0.1 and a tunnel, or name a "
                "file with a token (status_token in peer.toml, or CESAR_STATUS_TOKEN)"
            )
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(peer))
        page = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                status, kind, body = page.answer(
                    self.path, {name.lower(): value for name, value in self.headers.items()}
                )
                self.send_response(status)
                if status == HTTPStatus.UNAUTHORIZED:
                    self.send_header("WWW-Authenticate", 'Basic realm="cesar", charset="UTF-8"')
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody needs to know who looks at the page."""

        try:
            self._server = (_Server6 if ":" in host else ThreadingHTTPServer)((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"peer.status: cannot listen on {address} ({error.strerror}); choose another port in peer.toml"
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[HTTPStatus, str, bytes]:
        """Status, type and body of what is answered."""
        if path in {"/healthz", "/readyz"}:
            fine = self._answers() and (path == "/healthz" or bool(self._peer.liveness.up))
            return (
                (HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE),
                PLAIN,
                b"yes\n" if fine else b"no\n",
            )
        if self._token is not None:
            if not _knows(headers.get("authorization", ""), self._token):
                return HTTPStatus.UNAUTHORIZED, PLAIN, b"this page is for those who know its token\n"
        elif not is_this_machine(host_in(headers.get("host", "localhost"))):
            # A page from elsewhere can give its own name this machine's address, and then ask as if it were ours.
            return HTTPStatus.FORBIDDEN, PLAIN, b"this page is for those who ask for this machine\n"
        match path:
            case "/":
                return (
                    HTTPStatus.OK,
                    "text/html; charset=utf-8",
                    _page(snapshot(self._peer)).encode(errors="replace"),
                )
            case "/status.json":
                return HTTPStatus.OK, "application/json", json.dumps(snapshot(self._peer)).encode()
            case "/metrics":
                return (
                    HTTPStatus.OK,
                    "text/plain; version=0.0.4; charset=utf-8",
                    generate_latest(self._registry),
                )
            case _:
                return HTTPStatus.NOT_FOUND, PLAIN, b"there is no such page\n"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _page(now: dict[str, Any]) -> str:
    title = f"{now['name']}: node {now['node']} of {now['network']}"
    well, glance = _glance(now)
    return render("status.html", title=title, well=well, glance=glance, now=now)


def _glance(now: dict[str, Any]) -> tuple[bool, str]:
    """Whether all is well, and in one line who is there and who is awaited."""
    near = now["neighbours"]
    away = [f"{one['id']} {one['name']}" for one in near if not one["up"]]
    said = [f"{len(near) - len(away)} of {len(near)} neighbours are there"]
    if away:
        said.append(f"awaited: {', '.join(away)}")
    cell = now["cell"]
    if cell is not None and now["rounds_done"]:
        said.append("the cell adds up" if cell["summed"] else "the cell did not add up last time")
    return not away, " · ".join(said)
