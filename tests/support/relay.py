"""Sites that nobody can reach from outside, and a relay host that all of them can dial: docs/firewalls.md for real.

The commands and settings are those of the page; only names, ports and paths are replaced.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import shlex
import shutil
import signal
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from support.lan import Switchboard, no_namespaces
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "firewalls.md"
FIREWALL = """
table inet site {
  chain arriving {
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    ct state established,related accept
  }
}
"""
SSHD = "/usr/sbin/sshd"


def why_not() -> str:
    """What is missing on this machine; empty if nothing is."""
    tools = ("nft", "ssh", "ssh-keygen", "tcpdump")
    missing = [tool for tool in tools if shutil.which(tool) is None] + [SSHD] * (not Path(SSHD).exists())
    if missing:
        return f"`make network-tools` installs what this needs: {', '.join(missing)}"
    return no_namespaces()


def block(title: str) -> str:
    """A block of the page."""
    found = re.search(
        rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None, title
    return found[1]


def inside(namespace: str, *command: object) -> list[str]:
    return ["ip", "netns", "exec", namespace, *map(str, command)]


class Relay:
    """Three sites and a relay, each a namespace; nothing that begins outside gets into a site.

    Attributes:
        sites: the namespace of each site.
        host: the relay's address.
        addresses: where the roster has each site's peer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._keys: dict[int, Path] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            board = stack.enter_context(Switchboard([0, 1], [2, 3]))
            self.sites, self.relay = {i: board.names[i] for i in range(3)}, board.names[3]
            self.direct = {i: board.addresses[i] for i in range(3)}
            self.host = board.addresses[3].partition(":")[0]
            self.addresses = {i: f"{self.host}:{7400 + i}" for i in range(3)}
            for name in self.sites.values():
                subprocess.run(inside(name, "nft", "-f", "-"), input=FIREWALL, text=True, check=True)
            self._prepare()
            stack.enter_context(
                self.running(self.relay, SSHD, "-D", "-e", "-f", self._folder / "sshd_config")
            )
            self._stack = stack.pop_all()
        wait_until(lambda: self.dial(self.sites[0], f"{self.host}:22") == "open")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare(self) -> None:
        """The relay's settings, its host key, and a key for each site that opens one port and nothing else."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server insists on it
        lines = []
        for name in ("host", "0", "1", "2"):
            key = self._folder / f"tunnel-{name}"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
            if name != "host":
                self._keys[int(name)] = key
                words = Path(f"{key}.pub").read_text().split()
                line = block("authorized_keys").replace("7401", str(7400 + int(name)))
                lines.append(line.replace("ssh-ed25519 AAAA…", " ".join(words[:2])))
        (self._folder / "authorized_keys").write_text("".join(lines))
        head = (
            f"Port 22\nListenAddress {self.host}\nHostKey {self._folder / 'tunnel-host'}\nPidFile none\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {self._folder / 'authorized_keys'}\nPasswordAuthentication no\n"
        )
        match = block("sshd_config").replace("User tunnel", f"User {getpass.getuser()}")
        (self._folder / "sshd_config").write_text(head + match)

    @contextlib.contextmanager
    def tunnel(self, site: int, to: int = 7400) -> Iterator[subprocess.Popen]:
        """The page's command at a site, until its port is open at the relay."""
        text = block("tunnel").replace("7401", str(7400 + site)).replace("127.0.0.1:7400", f"127.0.0.1:{to}")
        words = shlex.split(text.replace("tunnel@relay.example.org", f"{getpass.getuser()}@{self.host}"))
        words[words.index("tunnel")] = str(self._keys[site])
        words[1:1] = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        with self.running(self.sites[site], *words) as process:
            wait_until(
                lambda: self.dial(self.relay, self.addresses[site]) == "open" or process.poll() is not None
            )
            yield process

    @contextlib.contextmanager
    def capture(self) -> Iterator[Path]:
        """All packets at the relay while this lasts; on a busy machine they are written down late."""
        path = self._folder / "capture.pcap"
        command = ("tcpdump", "-i", "eth0", "-U", "--immediate-mode", "-B", "65536", "-s", "0", "-Z", "root")
        command += ("-w", path, "tcp")
        with self.running(self.relay, *command) as process:
            wait_until(path.exists)
            yield path
            process.send_signal(signal.SIGINT)
            process.wait()

    @contextlib.contextmanager
    def running(self, namespace: str, *command: object) -> Iterator[subprocess.Popen]:
        """A process in a namespace; ended with the block."""
        with (self._folder / "tools.log").open("ab") as log:
            process = subprocess.Popen(
                inside(namespace, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def dial(self, namespace: str, address: str) -> str:
        """What comes of a connection from there: "open", "refused", or "dropped" if nothing answers at all."""
        code = f"exec 3<>/dev/tcp/{address.replace(':', '/')}"
        done = subprocess.run(
            inside(namespace, "timeout", 2, "bash", "-c", code), capture_output=True, check=False
        )
        return {0: "open", 124: "dropped"}.get(done.returncode, "refused")


def streams(capture: Path) -> dict[tuple[int, int], bytes]:
    """Each direction of each connection of a capture, put together again: (source port, destination port) → bytes."""
    data, at = capture.read_bytes(), 24
    parts: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        if at + 16 + length > len(data):
            break  # it is still being written
        packet = data[at + 16 + 14 : at + 16 + length]
        at += 16 + length
        segment = packet[4 * (packet[0] & 15) : int.from_bytes(packet[2:4], "big")]
        source, target, sequence = struct.unpack_from(">HHI", segment)
        body = segment[4 * (segment[12] >> 4) :]
        if body:
            old = parts[source, target].get(sequence, b"")
            parts[source, target][sequence] = max(old, body, key=len)
    return {ports: _joined(pieces) for ports, pieces in parts.items()}


def _joined(pieces: dict[int, bytes]) -> bytes:
    """Pieces by their place in the stream, each byte once."""
    first = min(pieces)
    out = bytearray()
    for sequence in sorted(pieces):
        place = sequence - first
        assert place <= len(out), "the capture has a gap"
        out[place : place + len(pieces[sequence])] = pieces[sequence]
    return bytes(out)
