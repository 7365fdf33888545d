"""What a peer finds at its own address, and what the check makes of it."""

import asyncio
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from cesar.peer.net.probe import Answer, behind_relay, own_port, who_answers
from cesar.peer.trust.identity import Identity
from support.lan import edit, free_ports, make_network, one_round, running

HERE, RELAY = "127.0.0.1:7400", "relay.example.org:7401"


def test_who_answers(tmp_path):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    mine, address = Identity.load(network.folder / "peer-1"), network.roster.members[1].address

    async def story():
        found = [await who_answers(address, mine)]
        async with running(network, [0, 1, 2]):
            found += [await who_answers(network.roster.members[i].address, mine) for i in (1, 2)]
        port = free_ports(1)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        async with server:
            return [*found, await who_answers(f"127.0.0.1:{port}", mine)]

    assert asyncio.run(story()) == [Answer.NOTHING, Answer.THIS_PEER, Answer.ANOTHER, Answer.CLOSED]


@pytest.mark.parametrize(
    "listen, address, answer, ok, words",
    [
        ("0.0.0.0:7400", RELAY, Answer.THIS_PEER, True, "answers at relay.example.org:7401"),
        (HERE, RELAY, Answer.THIS_PEER, True, "so its tunnel runs"),
        (HERE, RELAY, Answer.ANOTHER, False, "another peer or service answers"),
        (HERE, RELAY, Answer.CLOSED, None, "accepts connections and drops them"),
        (HERE, RELAY, Answer.NOTHING, None, "is the tunnel to the relay running"),
        ("0.0.0.0:7400", RELAY, Answer.NOTHING, None, "Node(s) 0, 2 must reach it"),
        ("0.0.0.0:7400", RELAY, Answer.CLOSED, None, "tunnel to a relay host helps"),
        (HERE, HERE, Answer.NOTHING, None, "is the port forwarded?"),
    ],
)
def test_the_port_in_words(listen, address, answer, ok, words):
    found, text = own_port(listen, address, answer, "0, 2")
    assert found is ok
    assert words in text


def test_a_host_that_stands_for_several_may_be_a_relay():
    addresses = [RELAY, "relay.example.org:7402", "c.example.org:7400", None, "127.0.0.1:1", "127.0.0.1:2"]
    members = {i: SimpleNamespace(id=i, address=address) for i, address in enumerate(addresses)}
    told = [behind_relay(members, member) for member in members.values()]
    assert "relay.example.org stands for nodes 0, 1" in told[0]
    assert "does the tunnel of node 1 run?" in told[1]
    assert told[2:] == [""] * 4


async def pass_on(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
@pytest.mark.parametrize("told", [True, False])
def test_a_peer_dials_through_an_http_proxy_only_if_it_is_told_to(told, variable, tmp_path, monkeypatch):
    network = make_network(tmp_path / "net", nx.complete_graph(3))
    if told:
        for node in range(3):
            edit(network.folder / f"peer-{node}", r"\[peer\]", "[peer]\nproxy = true")
    asked = []

    async def proxy(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[:2])
        host, port = asked[-1][1].decode().split(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer), return_exceptions=True)

    async def story():
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        monkeypatch.setenv(variable, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with server, running(network, [0, 1, 2]) as peers:
            models = np.repeat(np.arange(3, dtype=np.float32)[:, None], 50, 1)
            await one_round(peers, models)
            return models

    np.testing.assert_allclose(asyncio.run(story()), 1.0, atol=1e-5)
    dialled = {network.roster.members[i].address.encode() for i in (1, 2)}
    assert {address for _, address in asked} == (dialled if told else set())
    assert {method for method, _ in asked} <= {b"CONNECT"}
