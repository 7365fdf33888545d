"""One member of a cell that lies to its partners over TLS, with keys that are its own."""

from __future__ import annotations

import asyncio
import hashlib
import re
import struct

import numpy as np
import pytest

from cesar.peer.api.peer import on_loop
from cesar.peer.net.chunks import Message
from cesar.peer.net.messages import Status
from cesar.protocol.cell_round import SETTLING_FIRST
from cesar.protocol.wire import Kind
from support.enemy import Enemy, frames, keys_of
from support.lan import Lines, cell_network, one_round, running
from support.waiting import until

QUICK = "floor = 0.3\nceiling = 2.0\nsettle_minutes = 0.05\npatience_minutes = 0.0"
SIZE, LIAR = 300, 0


def frame(target, kind, round_, body=b""):
    """Of the liar, in the session of the run."""
    session = target.cells._node._session
    return struct.pack("<2sBBII16s", b"CE", 3, int(kind), round_, LIAR, session) + body


def honest(network):
    """The others of a network of one cell."""
    return running(network, [n for n in range(4) if n != LIAR])


async def a_round(peers):
    models = np.tile(np.linspace(0, 1, SIZE, dtype=np.float32), (len(peers), 1))
    return await one_round(peers, models)


ROUNDS = [SETTLING_FIRST - 1, SETTLING_FIRST + 2**29, 2**31, 2**32 - 1]


@pytest.mark.parametrize("round_", ROUNDS)
def test_one_member_leads_its_cell_to_no_round_that_cannot_be(tmp_path, round_):
    """Numbers never go back, those of settling begin at 2^30, and a header has room up to 2^32."""
    network = cell_network(tmp_path / "net", 4, rounds=QUICK)

    async def attack():
        async with honest(network) as peers:
            target = peers[0]
            await a_round(peers)
            before = target.cells.next_round
            async with Enemy(keys_of(network, LIAR), target) as enemy:
                await enemy.enter()
                await frames(enemy, [frame(target, Kind.CELL_AGREE, round_, bytes(200))])
                await until(lambda: target.reception.refusals["unexpected"] == 1, 10)
                await a_round(peers)
            await a_round(peers)
            assert target.cells.next_round <= before + 8
            model = np.zeros(SIZE, dtype=np.float32)
            await asyncio.gather(*(peer.settle(model.copy()) for peer in peers))
            assert target.cells._next_settling < 1000

    on_loop(attack())


def test_nor_does_its_status(tmp_path):
    network = cell_network(tmp_path / "net", 4, rounds=QUICK)

    async def attack():
        async with honest(network) as peers:
            target = peers[0]
            await a_round(peers)
            async with Enemy(keys_of(network, LIAR), target) as enemy:
                await enemy.enter()
                await enemy.send(Message.STATUS, Status(SETTLING_FIRST - 1, SETTLING_FIRST - 1).to_bytes())
                assert f"round {SETTLING_FIRST - 1}, which cannot have come yet" in await enemy.fate()
            await a_round(peers)
            assert target.cells.next_round < 20

    on_loop(attack())


def test_an_agreement_under_another_name_is_refused(tmp_path):
    """Tokens are not signed: the link says whose they are. A member with a partner's agreement key cannot speak for it."""
    network = cell_network(tmp_path / "net", 4, rounds=QUICK)

    async def attack():
        async with honest(network) as peers:
            target, victim = peers[0], peers[1].id
            await a_round(peers)
            async with Enemy(keys_of(network, LIAR), target) as enemy:
                await enemy.enter()
                forged = bytearray(frame(target, Kind.CELL_AGREE, target.cells.next_round, bytes(200)))
                forged[8:12] = struct.pack("<I", victim)
                await frames(enemy, [bytes(forged)])
                await until(lambda: target.reception.refusals["sender"] == 1, 10)

    on_loop(attack())


@pytest.mark.parametrize("lies", [False, True])
def test_a_keeper_that_ends_with_another_model_for_one_shows_in_the_mark(tmp_path, lies):
    """No agreement follows the last answer of settling. The log has a mark that sites can compare."""
    network = cell_network(tmp_path / "net", 4, rounds=QUICK.replace("0.05", "2.0"))
    victim = 1

    async def attack():
        with Lines() as log:
            async with running(network, list(range(4))) as peers:
                send, done = peers[LIAR].transport.send, []

                async def lie(payload, recipients, round_, deadline):
                    forged = bytearray(payload)
                    if (
                        forged[3] == Kind.CELL_GATHER
                        and round_ >= SETTLING_FIRST
                        and len(forged) > 60
                        and victim in recipients
                    ):
                        forged[29], forged[-2:] = 127, b"\x00\x20"  # a large step in its last value
                        await send(bytes(forged), [victim], round_, deadline)
                        recipients = [node for node in recipients if node != victim]
                        done.append(round_)
                    await send(payload, recipients, round_, deadline)

                if lies:
                    peers[LIAR].transport.send = lie
                models = np.tile(np.linspace(0, 1, SIZE, dtype=np.float32), (4, 1))
                await asyncio.gather(*(peer.settle(model) for peer, model in zip(peers, models, strict=True)))
                assert bool(done) is lies
        said = [
            re.search(r"node (\d) has settled\. SHA-256 of its model: (\w{64})", line) for line in log.lines
        ]
        return {int(found[1]): found[2] for found in said if found}, models

    marks, models = on_loop(attack())
    assert marks == {node: hashlib.sha256(model.tobytes()).hexdigest() for node, model in enumerate(models)}
    assert marks[LIAR] == marks[2] == marks[3]
    assert (marks[victim] == marks[2]) is not lies
