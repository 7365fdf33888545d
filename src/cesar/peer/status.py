"""A small page for the people who run a peer, and metrics for Prometheus; for this machine, or whoever knows a token.

/             the page        /status.json  the same for programs        /metrics  Prometheus text
/healthz      200 as long as the process does its work                   /readyz   200 if it has somebody to average with

The last two are for orchestrators. They say nothing but yes or no, and ask for no token.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cesar.errors import ConfigError
from cesar.page import render
from cesar.peer import words
from cesar.peer.runtime import AsyncPeer
from cesar.wire import CATEGORIES

PLAIN = "text/plain; charset=utf-8"


def snapshot(peer: AsyncPeer) -> dict[str, Any]:
    """What there is to know, without anything secret."""
    totals, report = peer.totals, peer.totals.last
    return {
        "node": peer.id,
        "name": peer.roster.members[peer.id].name,
        "network": peer.roster.network,
        "roster": peer.roster.version,
        "round": peer.next_round,
        "rounds_done": totals.rounds,
        "shared": None if report is None else report.shared,
        "seconds": None if report is None else report.seconds,
        "bytes": dict(totals.sent),
        "dropouts": totals.dropouts,
        "deadline_seconds": peer.patience,
        "figures": dict(totals.figures),
        "settling": peer.liveness.mine.share > 0,
        "groups": _groups(peer),
        "refusals": dict(peer.reception.refusals),
        "days_left": peer.membership.days_left(),
        "neighbours": [
            {
                "id": node,
                "name": peer.roster.members[node].name,
                "up": known.up,
                "round": known.status.current,
                "purpose": known.purpose,
                "suspected": known.suspected,
                "last_error": known.last_error,
            }
            for node, known in sorted(peer.neighbours.items())
        ],
    }


def _groups(peer: AsyncPeer) -> list[dict[str, Any]]:
    """Whose sums this peer hears, and which of them wait for whom."""
    roster = peer.roster
    waits = {wait.group: wait for wait in peer.waiting.groups}
    return [
        {
            "members": list(group),
            "words": words.braced(roster, group),
            "missing": list(waits[group].missing) if group in waits else [],
            "since": waits[group].since if group in waits else None,
            "waits": group in waits and not waits[group].goes_on,
            "told": waits[group].told(roster) if group in waits else "",
        }
        for group in roster.groups.get(peer.id, ())
    ]


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
        waiting = GaugeMetricFamily(
            "cesar_group_waiting_since",
            "The round since which a group lacks members",
            labels=["group", "missing"],
        )
        for group in now["groups"]:
            if group["since"] is not None:
                names = (" ".join(map(str, group[nodes])) for nodes in ("members", "missing"))
                waiting.add_metric([*names], group["since"])
        silent = sum(group["waits"] for group in now["groups"])
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
            GaugeMetricFamily("cesar_groups_waiting", "Groups that wait for a member", value=silent),
            waiting,
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
        ]


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _split(address: str) -> tuple[str, str]:
    """Host and port; an address of version 6 stands in brackets."""
    host, _, port = address.rpartition(":") if not address.endswith("]") else (address, "", "")
    return (host or address).strip("[]"), port


def _is_here(host: str) -> bool:
    """Whether a name or an address is that of this machine, as this machine calls itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
        host, port = _split(address)
        self._peer, self._answers, self._token = peer, answers, peer.config.status_token
        if self._token is None and not _is_here(host):
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
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody needs to know who looks at the page."""

        try:
            self._server = (_Server6 if ":" in host else ThreadingHTTPServer)((host, int(port)), Handler)
        except OSError as error:
            raise ConfigError(
                f"peer.status: cannot listen on {address} ({error.strerror}); choose another"
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
        elif not _is_here(_split(headers.get("host", "localhost"))[0]):
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
    return render("status.html", title=title, now=now)
