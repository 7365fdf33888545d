"""A small page for the people who run a peer, and metrics for Prometheus; for this machine only.

/             the page        /status.json  the same for programs        /metrics  Prometheus text
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cesar.errors import ConfigError
from cesar.page import render
from cesar.peer import words
from cesar.peer.runtime import AsyncPeer
from cesar.wire import CATEGORIES


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
        return [
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


class StatusPage:
    """Serves on the address that peer.toml gives, from a thread of its own."""

    def __init__(self, peer: AsyncPeer) -> None:
        address = peer.config.tables.peer.status
        assert address is not None
        host, port = _split(address)
        if not _is_here(host):
            raise ConfigError(
                f"peer.status: {host} is not this machine; the page has no password, so use 127.0.0.1 and a tunnel"
            )
        registry = CollectorRegistry()
        registry.register(_Metrics(peer))

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                # A page from elsewhere can give its own name this machine's address, and then ask as if it were ours.
                if not _is_here(_split(self.headers.get("Host", "localhost"))[0]):
                    self.send_error(403)
                    return
                match self.path:
                    case "/":
                        self._answer(
                            "text/html; charset=utf-8", _page(snapshot(peer)).encode(errors="replace")
                        )
                    case "/status.json":
                        self._answer("application/json", json.dumps(snapshot(peer)).encode())
                    case "/metrics":
                        self._answer("text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
                    case _:
                        self.send_error(404)

            def _answer(self, kind: str, body: bytes) -> None:
                self.send_response(200)
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

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _page(now: dict[str, Any]) -> str:
    title = f"{now['name']}: node {now['node']} of {now['network']}"
    return render("status.html", title=title, now=now)
