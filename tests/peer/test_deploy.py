"""docs/deploy.md, walked through: its commands as they stand there, for four peers of three owners that really average."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.ops.check import Check
from cesar.peer.trust import changes
from cesar.peer.trust.identity import Identity
from support.commands import agreed, call
from support.lan import cell_network, edit, free_ports, met
from support.waiting import until

GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
SIZE = 60


def sections():
    """Number of a section → its shell commands, a line each."""
    parts = re.split(r"^## (\d+)\. .*$", GUIDE.read_text(), flags=re.MULTILINE)
    blocks = {
        int(number): re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {
        number: [line for block in found for line in block.replace("\\\n", " ").splitlines()]
        for number, found in blocks.items()
    }


class Walk:
    """The guide, one section after the other; whoever has an address in it gets one on this machine."""

    def __init__(self):
        self._commands = sections()
        hosts = sorted(set(re.findall(r"\w+\.example\.org:\d+", GUIDE.read_text())))
        first = free_ports(len(hosts))
        self._places = {host: f"127.0.0.1:{first + k}" for k, host in enumerate(hosts)}
        self.left = []

    def through(self, number):
        """Do what a section says; what runs for long is left to the test, and noted."""
        for line in self._commands.pop(number):
            words = [self._places.get(word, word) for word in shlex.split(line, comments=True)]
            words = [agreed("net/ca/ca.pem")[1] if word == "$CA_SHA256" else word for word in words]
            if words[:3] in (["cesar", "peer", "check"], ["cesar", "peer", "run"]):
                self.left.append(" ".join(words[1:3]))
            elif words[0] == "cesar":
                call(*words[1:], *self._compared(words))
            else:
                assert words[0] == "cp", line
                subprocess.run(line, shell=True, check=True)

    def _compared(self, words):
        """What people would have compared at a terminal."""
        if words[1:3] == ["peer", "approve"]:
            folder = Path(words[3])
            _, newest = changes.waiting([folder], (folder / "ca.pem").read_bytes())
            return ["--sha256", newest.digest.hex()]
        return agreed(*(word for word in words if word.endswith("/request.json")))


async def round_of(peers):
    """One round of all; with whom each was in a sum."""
    models = np.zeros((len(peers), SIZE), np.float32)
    for peer, row in zip(peers, models, strict=True):
        await peer.start_from(row)
        np.add(row, peer.id, out=row)
    reports = await asyncio.gather(
        *(peer.average_vector(row) for peer, row in zip(peers, models, strict=True))
    )
    return [report.contributors for report in reports]


async def everybody(peers, version):
    """Go on until all have this version and average with all others."""
    async with asyncio.timeout(120):
        while True:
            found = await round_of(peers)
            if {peer.roster.version for peer in peers} == {version} and all(
                len(contributors) == len(peers) - 1 for contributors in found
            ):
                return
            for peer in peers:
                await met(peer, {other.id for other in peers})


def test_the_guide_works_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    walk = Walk()
    walk.through(1)
    for i in range(4):
        edit(
            Path(f"peer-{i}"), r"floor = 2\.0", "floor = 0.5"
        )  # who waits in vain here should not wait for long
    edit(Path("peer-2"), r'status = "[^"]*"', f'status = "127.0.0.1:{free_ports(1)}"')
    for i, how in enumerate(("auto", "auto", "ask", "auto")):  # section 8: the clinic wants to be asked
        edit(Path(f"peer-{i}"), r"\[peer\]", f'[peer]\napprove = "{how}"')

    async def preflight():
        return await asyncio.gather(*(Check(Path(f"peer-{i}"), 60.0).run() for i in range(4)))

    walk.through(3)
    for findings in asyncio.run(preflight()):
        assert all(finding.ok is not False for finding in findings), findings
        said = {finding.item: finding.text for finding in findings}
        assert said["owners"].startswith("hospital runs 0 imaging and 1 ward; no owner can compute")
        assert "is exactly what it must be" in said["secure round"]
    walk.through(4)
    assert walk.left == ["peer check", "peer run", "peer run"], "one of them with a canary"
    on_loop(life(walk))
    assert not any(walk._commands.values()), "nothing in the guide was left out"
    told = [line.split(": ", 1)[1] for line in Path("net/roster.log").read_text().splitlines()]
    assert [line.split(";")[0] for line in told[:3]] == [
        "a new network of 4 peers",
        "adds 4 institute",
        "removes 4 institute",
    ]
    lines = [
        line.split(" version")[0].split("Z ")[1]
        for line in Path("peer-2/roster.log").read_text().splitlines()
    ]
    assert lines[:3] == ["held", "approved", "taken up"]


@pytest.mark.slow
def test_the_training_function_of_the_guide_runs_as_it_stands(tmp_path):
    """Section 4: a process at each of four sites, and one model at the end."""
    network = cell_network(tmp_path / "net", 4, size=4, rounds="every = 6\nfloor = 2.0\nceiling = 60.0")
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    words = [sys.executable, "-m", "cesar", "peer", "run", "--train", "train:train", "--set", "epochs=3"]
    folders = [network.folder / f"peer-{i}" for i in range(4)]
    processes = [
        subprocess.Popen([*words, folder], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for folder in folders
    ]
    for process in processes:
        _, said = process.communicate(timeout=200)
        assert process.returncode in (0, 3), said  # 3: a machine so slow that the last steps were made alone
        assert "the training function has returned" in said
    assert len({(folder / "checkpoint.safetensors").read_bytes() for folder in folders}) == 1


async def life(walk):
    peers = [AsyncPeer.load(Path(f"peer-{i}")) for i in range(4)]
    try:
        for peer in peers:
            await peer.start()
        await everybody(peers, 1)

        walk.through(7)
        late = AsyncPeer.load(Path("peer-4"))
        peers.append(late)
        await late.start()
        await round_of(peers)
        await until(lambda: peers[2].membership.held is not None)
        await round_of(peers)
        assert [peer.roster.version for peer in peers] == [2, 2, 1, 2, 2], "the clinic has not agreed yet"
        walk.through(8)
        await everybody(peers, 2)

        clinic = Path("peer-2")
        walk.through(9)  # node 4 is removed, and the roster signed anew for another year
        await asyncio.gather(*(peer.average_vector(np.zeros(SIZE, np.float32)) for peer in peers[:2]))
        await until(lambda: peers[4].membership.over)
        await peers.pop().close()
        await until(lambda: peers[2].membership.held is not None)
        agree(clinic)
        await everybody(peers, 4)

        before = Identity.load(Path("peer-0")).certificate
        walk.through(10)
        await round_of(peers)
        await until(lambda: peers[2].membership.held is not None)
        agree(clinic)
        await everybody(peers, 6)
        assert Identity.load(Path("peer-0")).certificate != before
        async with asyncio.timeout(120):
            while peers[0].membership.days_left()["certificate"] < 364:
                await round_of(peers)  # it shows the new one from the round after
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


def agree(folder):
    """As in section 8."""
    _, newest = changes.waiting([folder], (folder / "ca.pem").read_bytes())
    call("peer", "approve", folder, "--sha256", newest.digest.hex())
