"""The commands as people start them: processes on this machine, with free ports."""

import asyncio
import json
import os
import signal
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.peer.api.peer import Peer
from cesar.peer.driver import state
from cesar.peer.net import grpc_errors
from cesar.peer.ops.check import Check
from support.commands import PATIENCE, agreed, call, refused, started
from support.lan import free_ports
from support.localnet import make

TRAINER = """
import numpy as np

def train(peer, rounds=3):
    model = np.full(50, peer.id, np.float32)
    for _ in range(rounds):
        peer.average_vector(model)
    peer.show(mean=float(model.mean()))

not_a_function = 3
"""


def events(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def trainer(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    return tmp_path


def test_peers_train_log_and_end_at_a_signal(trainer):
    net, _ = make(trainer / "net", nx.complete_graph(3))
    endless = ["--train", "trainer:train", "--set", "rounds=1000000000", "--log-json"]
    with ExitStack() as stack:
        peers = [
            stack.enter_context(started("peer", "run", net / f"peer-{i}", *arguments, cwd=trainer))
            for i, arguments in enumerate(
                (endless, endless, ["--train", "trainer:train", "--set", "rounds=4"])
            )
        ]
        out, log = peers[2].communicate(timeout=PATIENCE)
        assert peers[2].returncode == 0, log
        assert out.startswith("node 2: 4 rounds"), out
        mean = float(out.split("mean ")[1])
        assert abs(mean - 1) < 0.3, (
            "it began at 2; 0, 1 and 2 are 1 on average, and half of it is exchanged in a round"
        )
        assert "2 of 2 neighbours" in log
        peers[0].send_signal(signal.SIGTERM)
        peers[1].send_signal(signal.SIGINT)
        for i in (0, 1):
            out, log = peers[i].communicate(timeout=PATIENCE)
            assert peers[i].returncode == 0, log
            assert out.startswith(f"node {i}: "), out
            lines = events(log)
            assert {"time", "level", "event", "node", "round"} <= lines[0].keys()
            assert {line["node"] for line in lines} == {i}
            told = [line["report"]["round"] for line in lines if "report" in line]
            assert told == list(range(len(told)))
            assert lines[-1]["round"] >= len(told) > 3
            for secret in ("agreement.key", "key.pem"):
                text = (net / f"peer-{i}" / secret).read_text()
                assert not any(part in log for part in text.split() if len(part) > 40)
    for i in range(3):
        os.close(state.lock(net / f"peer-{i}"))  # nobody holds it any more


def test_a_connection_without_a_certificate_is_a_clear_log_line(trainer):
    net, base = make(trainer / "net", nx.complete_graph(3))
    arguments = ("--train", "trainer:train", "--wait", "60", "--log-json")
    with started("peer", "run", net / "peer-0", *arguments, cwd=trainer) as process:
        line = ""
        while "listens at" not in line:
            line = process.stderr.readline()
        context = ssl.create_default_context(cafile=net / "ca" / "ca.pem")
        context.check_hostname = False
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", base)) as plain,
            context.wrap_socket(plain) as stranger,
        ):
            stranger.settimeout(10)
            assert not stranger.recv(1)
        line = ""
        while "certificate" not in line:
            line = process.stderr.readline()
            assert line.startswith("{"), line
        assert json.loads(line)["event"] == "a connection was refused: the other side shows no certificate"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert "before it had joined" in process.stdout.read()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "has expired"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid", "shows no certificate"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "another authority"),
        ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", "certificate"),
        ("failed to connect to all addresses; last error: Connection refused (111)", "nothing listens"),
    ],
)
def test_what_grpc_says_becomes_plain_words(line, words):
    assert words in grpc_errors.explain(line)


def test_other_output_passes_through(capfd):
    with grpc_errors.caught() as real:
        os.write(2, b"first\n")
        line = "E1116 00:34:18.1  29 ssl_transport_security.cc:25] CERTIFICATE_VERIFY_FAILED\n"
        os.write(2, line.encode())
        os.write(2, b"no newline at the end")
        print("straight", file=real)
    said = capfd.readouterr().err
    assert "first\n" in said
    assert "no newline at the end" in said
    assert "straight\n" in said
    assert "ssl_transport" not in said


def test_a_training_function_that_is_not_there(trainer, monkeypatch):
    monkeypatch.chdir(trainer)
    net, _ = make(trainer / "net", nx.complete_graph(3))
    run = ("peer", "run", net / "peer-0", "--train")
    assert "package.module:function" in refused(*run, "trainer")
    assert "no module 'nowhere'" in refused(*run, "nowhere:train")
    assert "has no 'walk'" in refused(*run, "trainer:walk")
    assert "not a function" in refused(*run, "trainer:not_a_function")
    assert "name=value" in refused(*run, "trainer:train", "--set", "rounds")


def test_check_prints_marks_and_fails_if_anything_is_wrong(tmp_path):
    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    with ExitStack() as stack:
        checks = [
            stack.enter_context(
                started("peer", "check", net / f"peer-{i}", "--wait", 60, *extra, cwd=tmp_path)
            )
            for i, extra in enumerate(([], [], ["--json"]))
        ]
        outputs = [check.communicate(timeout=PATIENCE) for check in checks]
    assert [check.returncode for check in checks] == [0, 0, 0], outputs
    assert "✓ secure round  the average with node(s) 1, 2 is exactly" in outputs[0][0]
    assert json.loads(outputs[2][0])["ok"]
    with started("peer", "check", net / "peer-0", "--wait", 0, cwd=tmp_path) as alone:
        out, _ = alone.communicate(timeout=PATIENCE)
    assert alone.returncode == 1
    assert "✗ node 1  not reachable" in out


def test_arguments_of_the_digits_trainer_are_checked():
    from cesar_lab.run.peers import Recipe  # noqa: PLC0415

    with pytest.raises(TypeError):
        Recipe(round=3)
    data, _, parts = Recipe(seed=5).prepare(6)
    again = Recipe(seed=5).prepare(6)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(data.train)))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again[2], strict=True))


def test_sites_that_keep_their_keys_pass_the_check(tmp_path, monkeypatch):
    """The key ceremony of docs/deploy.md, with a site that opens no port."""
    monkeypatch.chdir(tmp_path)
    base = free_ports(3)
    for i in range(3):
        address = [] if i == 2 else ["--address", f"127.0.0.1:{base + i}"]
        call("peer", "request", "--network", "trial", "--id", i, "--out", f"peer-{i}", *address)
    requests = [word for i in range(3) for word in ("--request", f"peer-{i}/request.json")]
    call(
        "network",
        "init",
        "--out",
        "net",
        "--name",
        "trial",
        "--topology",
        "complete",
        *requests,
        *agreed(*requests[1::2]),
    )
    for i in range(3):
        call("peer", "install", f"peer-{i}", "--from", f"net/signed/peer-{i}", *agreed("net/ca/ca.pem"))

    async def together():
        return await asyncio.gather(*(Check(Path(f"peer-{i}"), 30.0).run() for i in range(3)))

    outcome = asyncio.run(together())
    for findings in outcome:
        assert all(finding.ok for finding in findings), findings
    assert any("dials all its neighbours" in finding.text for finding in outcome[2])


def test_a_peer_resumes_from_its_checkpoint(tmp_path):
    import torch  # noqa: PLC0415

    net, _ = make(tmp_path / "net", nx.complete_graph(3))
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    with Peer.join(net / "peer-1", resume=True, wait=0) as peer:
        assert not peer.resumed
        assert (peer.place, peer.peers, peer.every, peer.folder) == (1, 3, 6, net / "peer-1")
        assert [peer.due() for _ in range(7)] == [False] * 5 + [True, False]
        peer.show(accuracy=0.5)
        assert peer.totals()["figures"] == {"accuracy": 0.5}
        peer.save(model)
        with pytest.raises(ConfigError, match="another process"):
            Peer.join(net / "peer-1", wait=0)
    with Peer.join(net / "peer-1", wait=0) as peer:
        assert not peer.resumed
    with Peer.join(net / "peer-1", resume=True, wait=0) as peer:
        assert peer.resumed
        assert peer.restore(other)
        assert [peer.due() for _ in range(5)] == [False] * 4 + [True]
    assert torch.equal(model.weight, other.weight)
