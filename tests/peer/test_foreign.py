"""What others say is shown on one line, and can neither move a cursor nor pass for words of this peer."""

from __future__ import annotations

import asyncio
import io
import json

import grpc
import networkx as nx
import numpy as np
import pytest
from typer.testing import CliRunner

from cesar.cli.root import app
from cesar.peer.api.peer import on_loop
from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net.chunks import Message
from cesar.peer.ops import logs
from cesar.peer.trust.foreign import escaped
from support.enemy import Enemy, keys_of, listening
from support.lan import Lines, make_network, running
from support.waiting import until

EVIL = "no\n\x1b[1A✓ secure round  the average is exactly what it must be\x1b[2K\r\x9b2J\u202e\u2028"
SIZE = 50


@pytest.fixture
def network(tmp_path):
    return make_network(tmp_path / "net", nx.complete_graph(3))


def is_one_line(text):
    return text.isprintable() and "\\x1b[1A" in text


def hello_of(target, **changes):
    words = {**json.loads(target.reception.hello()), "node": 2, **changes}
    return bytes([Message.HELLO]) + json.dumps(words).encode()


@pytest.mark.parametrize("how", ["refused message", "status", "release"])
def test_words_of_a_neighbour_are_escaped(network, how):
    """In the log, in what is known of it, and so on the status page."""
    target = AsyncPeer.load(network.folder / "peer-0")

    async def answer(_, context):
        await context.read()
        match how:
            case "refused message":
                await context.write(bytes([Message.REFUSED]) + EVIL.encode())
            case "status":
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, EVIL)
            case _:
                await context.write(hello_of(target, protocol=77, cesar=EVIL))
        while await context.read() is not grpc.aio.EOF:
            pass

    async def attack():
        with Lines() as log:
            async with listening(network, 2, answer):
                await target.start()
                try:
                    known = target.neighbours[2]
                    await until(
                        lambda: "secure round" in known.last_error or "cesar no" in known.last_error, 20
                    )
                    assert is_one_line(known.last_error)
                    assert len(known.last_error) < 1000
                finally:
                    await target.close()
        return log.lines

    lines = on_loop(attack())
    assert any("\\x1b[1A" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_a_layout_is_escaped_in_the_refusal(network):
    async def attack():
        with Lines() as log:
            async with running(network, [1, 2]) as peers:
                await asyncio.gather(*(peer.average_vector(np.zeros(SIZE, np.float32)) for peer in peers))
                async with Enemy(keys_of(network, 0), peers[1]) as enemy:
                    await enemy.hello(layout=EVIL)
                    assert is_one_line(await enemy.fate())
                await log.says("its model has no\\n")
            assert all(line.isprintable() for line in log.lines)

    on_loop(attack())


def test_a_check_shows_no_lines_of_others(network):
    """A neighbour writes what looks like a finding of this peer's own check."""
    reached = []

    async def answer(_, context):
        reached.append(await context.read())
        await context.write(bytes([Message.REFUSED]) + EVIL.encode())
        await context.read()

    async def lurk(ended):
        async with listening(network, 2, answer):
            await until(ended.is_set, 60)

    async def scene():
        ended = asyncio.Event()
        job = asyncio.create_task(lurk(ended))
        folder = str(network.folder / "peer-0")
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(
            None, lambda: CliRunner().invoke(app, ["peer", "check", folder, "--wait", "3"])
        )
        ended.set()
        await job
        return done.output

    shown = on_loop(scene())
    assert reached
    lines = shown.splitlines()
    assert [line for line in lines if "it refuses this peer: no\\n\\x1b[1A✓ secure round" in line], shown
    assert not any(line.startswith(("✓ secure", "\x1b")) for line in lines)
    assert "\x1b" not in shown.replace("\x1b[0m", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_logs_are_escaped(as_json):
    stream = io.StringIO()
    with logs.written(stream, 0, lambda: 1, as_json=as_json) as logger:
        logger.warning("it says: %s", EVIL, extra={"words": EVIL})
        logger.error("that failed", exc_info=ValueError(EVIL))
    lines = stream.getvalue().split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert "\\n" in lines[0] or "\\\\n" in lines[0]


def test_what_cannot_be_printed_is_written_out():
    assert escaped("a\tb\x00\u202e\ud800é✓") == "a\\tb\\x00\\u202e\\ud800é✓"
    assert escaped("a\nb\r", keep="\n") == "a\nb\\r"
    assert escaped("x" * 50, 10) == "x" * 8 + " …"
