"""Looks at peers' status pages again and again, and serves one live page of all of them, for this machine only."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

from cesar.errors import ConfigError
from cesar.page import render
from cesar.peer.board import Board
from cesar.peer.status import _is_here, _split

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 3.0
LONGEST_ANSWER = 1 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer's status is asked for.

    Attributes:
        token: what its site wants to be shown; never printed.
    """

    url: str
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `https://host/path`, `http://host:port` or `host:port`.

        Raises:
            ConfigError: it is none of these, or carries a password.
        """
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good or "?" in url or "#" in url or not url.isprintable() or " " in url:
            raise ConfigError(
                f"{text!r} is not the address of a status page; write http://host:port or https://host"
            )
        if "@" in parts.netloc:
            raise ConfigError("an address must carry no password; write tokens in the file of --tokens")
        return cls(url.rstrip("/"))

    @property
    def exposed(self) -> bool:
        """Whether a token would travel over a network in clear."""
        parts = urlsplit(self.url)
        return bool(self.token) and parts.scheme == "http" and not _is_here(parts.hostname or "")

    def ask(self) -> object:
        """Its status.

        Raises:
            ConfigError: says why there is none.
        """
        try:
            status, body = self._fetch()
        except OSError as error:
            raise ConfigError(error.strerror or str(error)) from None
        except HTTPException:
            raise ConfigError("what it answers is not HTTP") from None
        if status in {401, 403}:
            raise ConfigError("it refuses: is the token right?" if self.token else "it wants a token")
        if status != 200 or len(body) > LONGEST_ANSWER:
            raise ConfigError(f"this is not a peer's status page (HTTP {status}, {len(body)} bytes)")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ConfigError("what it answers cannot be read") from None

    def _fetch(self) -> tuple[int, bytes]:
        """Its answer; one that sends elsewhere is not followed, since a token must not be."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)) as connection:
            connection.request("GET", f"{parts.path}/status.json", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST_ANSWER + 1)


class Watcher:
    """Asks each place from a thread of its own, so that one that hangs keeps nobody waiting."""

    def __init__(self, places: list[Place], board: Board) -> None:
        self._board = board
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(place,), daemon=True) for place in places]
        for thread in self._threads:
            thread.start()

    def _watch(self, place: Place) -> None:
        while not self._ended.is_set():
            try:
                self._board.hear(place.url, place.ask(), time.monotonic())
            except ConfigError as error:
                self._board.miss(place.url, str(error))
            self._ended.wait(LOOK_SECONDS)

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)


class LivePage:
    """Serves a board at 127.0.0.1 until it is closed.

    Args:
        port: 0 takes one that is free.
    """

    def __init__(self, board: Board, port: int = 0) -> None:
        files: Mapping[str, tuple[str, bytes]] = {
            "/": ("text/html", render("live.html").encode()),
            "/live.css": ("text/css", (render("page.css") + render("live.css")).encode()),
            "/live.js": ("text/javascript", render("live.js").encode()),
        }

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                # A page from elsewhere can give its own name this machine's address, and then ask as if it were ours.
                if not _is_here(_split(self.headers.get("Host", "localhost"))[0]):
                    self.send_error(403)
                elif self.path == "/board.json":
                    self._answer("application/json", json.dumps(board.picture(time.monotonic())).encode())
                elif self.path in files:
                    self._answer(*files[self.path])
                else:
                    self.send_error(404)

            def _answer(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody needs to know who looks at the page."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot serve a page at 127.0.0.1:{port} ({error.strerror}); choose another port, 0 takes a free one"
            ) from None
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
