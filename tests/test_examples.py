"""The example scripts run as they stand, on real peers."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cesar_lab.data import qasc
from support.waiting import wait_until

EXAMPLES = Path(__file__).parent.parent / "examples"


def command(script, *arguments, timeout=600, launcher=(), **variables):
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(script, *arguments):
    return {int(i): (float(a), int(r)) for i, a, r in re.findall(LINE, command(script, *arguments))}


SEVERAL = "several_processes.py"
LINE = r"peer (\d+): accuracy ([\d.]+) after (\d+) rounds"


def test_plain_pytorch_is_short_and_learns(network):
    assert len((EXAMPLES / "plain_pytorch.py").read_text().splitlines()) < 60
    method = 'name = "cesar"\nsparsifier = "random"\nshare = 0.3'
    results = run("plain_pytorch.py", *network(4, every=6, method=method), "--steps", "300")
    assert set(results) == {0, 1, 2, 3}
    assert all(accuracy > 0.8 and rounds >= 50 for accuracy, rounds in results.values())


CELLS = 'name = "cells"\nsize = 4'


def test_ctrl_c_stops_a_site(network):
    """As the tutorial has it: one site in a terminal of its own. In a pool of threads it trained on until the end."""
    folder = network(4, every=6, method=CELLS)[0]
    # Where the tests run behind an ampersand, Ctrl-C is ignored by all that they start; a terminal's programs heed it.
    heed = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); del sys.argv[0]; "
    heed += "runpy.run_path(sys.argv[0], run_name='__main__')"
    script = [
        sys.executable,
        "-c",
        heed,
        str(EXAMPLES / "plain_pytorch.py"),
        str(folder),
        "--steps",
        "1000000",
    ]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True) as site:
        try:
            wait_until((Path(folder) / "state.lock").exists, seconds=120)
            site.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in site.communicate(timeout=120)[1]
        finally:
            site.kill()


def test_opacus_accounts_for_what_each_site_spends(network):
    """Four sites average in one cell; each prints the ε that an accountant of its own works out."""
    accountants = pytest.importorskip("opacus.accountants")
    sizes = ("--samples", 96, "--batch", 16, "--epochs", 10, "--noise", 1.0, "--delta", 0.005)
    out = command("opacus_dp.py", *network(4, every=4, method=CELLS), *sizes)
    said = re.findall(
        r"peer (\d): accuracy ([\d.]+), ε = ([\d.]+) at δ = 0.005; membership AUC ([\d.]+)", out
    )
    accountant = accountants.RDPAccountant()
    for _ in range(10 * 6):
        accountant.step(noise_multiplier=1.0, sample_rate=1 / 6)
    assert [int(peer) for peer, *_ in said] == [0, 1, 2, 3]
    for _, accuracy, epsilon, area in said:
        assert float(epsilon) == pytest.approx(accountant.get_epsilon(0.005), abs=0.01)
        assert float(accuracy) > 0.3  # guessing has 0.1
        assert 0.3 < float(area) < 0.7


def test_two_processes_at_one_site_train_one_model(network):
    """One rank averages with two other sites, which share everything: in the end all four processes have one model."""
    folders = network(3, every=6)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    local = {"GLOO_SOCKET_IFNAME": "lo"}
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(command, SEVERAL, folder, "--steps", 120) for folder in folders[1:]]
        jobs.append(pool.submit(command, SEVERAL, folders[0], "--steps", 120, launcher=launcher, **local))
        out = "".join(job.result() for job in jobs)
    said = re.findall(r"site (\d), process (\d): accuracy ([\d.]+), length of the model ([\d.]+)", out)
    assert sorted((site, process) for site, process, *_ in said) == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("2", "0"),
    ]
    assert len({length for *_, length in said}) == 1
    assert all(float(accuracy) > 0.7 for *_, accuracy, _ in said)


@pytest.fixture
def questions(tmp_path, byte_tokenizer):
    choices = [{"text": letter.lower(), "label": letter} for letter in qasc.LETTERS]
    (tmp_path / "qasc").mkdir()
    for name in ("train", "dev"):
        lines = [
            json.dumps({"question": {"stem": "?", "choices": choices}, "answerKey": letter})
            for letter in qasc.LETTERS * 2
        ]
        (tmp_path / "qasc" / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return ("--layers", 1, "--width", 16, "--steps", 4, "--every", 2, "--data-dir", tmp_path)


def test_gpt2_on_qasc(network, questions):
    results = run("gpt2_qasc.py", *network(4), *questions)
    assert {peer: rounds for peer, (_, rounds) in results.items()} == dict.fromkeys(range(4), 2)


@pytest.mark.slow
def test_adapters_of_gpt2_alone_travel(network, questions):
    pytest.importorskip("peft")
    out = command("gpt2_qasc.py", *network(4), *questions, "--lora", 2)
    sent = [int(number.replace(",", "")) for number in re.findall(r"after 2 rounds of ([\d,]+) bytes", out)]
    values = 2 * 16 + 2 * 48  # of rank 2: from 16 inputs, to the 48 outputs of query, key and value
    assert len(sent) == 4
    assert all(3 * 4 * values < bytes_ < 3 * 4 * values + 2000 for bytes_ in sent)  # three neighbours
