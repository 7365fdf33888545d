"""What gRPC and TLS say when a connection fails, in words that help.

gRPC's core writes refusals by TLS to file descriptor 2 by itself, past all logging. `caught` puts a pipe there, turns
these lines into log lines and passes everything else on.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import threading
import time
from collections.abc import Iterator

log = logging.getLogger("cesar.peer")

_REASONS = (
    ("certificate has expired", "the certificate that was shown has expired"),
    ("certificate is not yet valid", "the certificate that was shown is not valid yet; compare the clocks"),
    ("CERTIFICATE_EXPIRED", "the other side says that this peer's certificate has expired"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the other side shows no certificate"),
    ("CERTIFICATE_REQUIRED", "the other side wants to see a certificate"),
    ("ALERT_UNKNOWN_CA", "the other side does not take a certificate of this peer's authority"),
    ("TLSV1_ALERT_CERTIFICATE", "the other side does not take this peer's certificate"),
    ("Hostname Verification Check failed", "another node answers there: its certificate has another name"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate was signed by another authority, or is not the roster's"),
    ("WRONG_VERSION_NUMBER", "the other side does not speak TLS"),
    ("HTTP_REQUEST", "the other side does not speak TLS"),
    ("Connection refused", "nothing listens there: is the peer running, and the address right?"),
    ("No route to host", "there is no way to that machine: address, network or firewall"),
    ("Network is unreachable", "there is no way to that machine: address, network or firewall"),
    ("DNS", "the name cannot be resolved: is the address right?"),
    ("Connection reset", "the other side closed the connection at once"),
    (
        "failed to connect.*Socket closed",
        "the other side ended the handshake: does it take this peer's certificate (its dates, its authority)?",
    ),
    ("Socket closed", "the connection was cut"),
    ("andshake", "no agreement on an encrypted connection"),
    ("imed out", "no answer: is the peer running, and does every firewall on the way let this through?"),
    ("imeout", "no answer: is the peer running, and does every firewall on the way let this through?"),
)

_CORE_LINE = re.compile(rb"[EWI]\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] ")
_REPEAT_SECONDS = 10.0


def explain(text: str) -> str:
    """A failure as gRPC describes it → what it means; unknown ones come back as they are."""
    return next((meaning for mark, meaning in _REASONS if re.search(mark, text)), text)


@contextlib.contextmanager
def caught() -> Iterator[io.TextIOWrapper]:
    """While this lasts, file descriptor 2 is read here. Yields the real one, for a log handler to write to."""
    real = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    pump = threading.Thread(target=_pump, args=(source, real), name="cesar stderr", daemon=True)
    pump.start()
    stream = os.fdopen(os.dup(real), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    try:
        yield stream
    finally:
        os.dup2(real, 2)
        pump.join(2)  # a child of the training code may still hold the pipe
        with contextlib.suppress(OSError):
            stream.close()
        if not pump.is_alive():
            os.close(real)


def _pump(source: int, real: int) -> None:
    said: dict[str, float] = {}
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _CORE_LINE.match(line):
                os.write(real, line)
            elif b"ssl_transport_security" in line or b"handshake" in line.lower():
                _tell(line.decode(errors="replace").strip(), said)
            else:
                log.debug("gRPC: %s", line.decode(errors="replace").strip())


def _tell(line: str, said: dict[str, float]) -> None:
    """Log a refusal; the same one again only after a while, so that a flood of connections is not one of lines."""
    why, now = explain(line), time.monotonic()
    if now - said.get(why, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
        said[why] = now
        log.warning("a connection was refused: %s", why)
