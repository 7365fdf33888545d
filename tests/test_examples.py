"""The example scripts run as they stand, on real peers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from cesar.learn.datasets import qasc

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(script, *arguments, timeout=600):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return {int(i): (float(a), int(r)) for i, a, r in re.findall(LINE, done.stdout)}


LINE = r"peer (\d+): accuracy ([\d.]+) after (\d+) rounds"


def test_plain_pytorch_is_short_and_learns(network):
    assert len((EXAMPLES / "plain_pytorch.py").read_text().splitlines()) < 60
    method = 'name = "cesar"\nsparsifier = "random"\nshare = 0.3'
    results = run("plain_pytorch.py", *network(4, every=6, method=method), "--steps", "300")
    assert set(results) == {0, 1, 2, 3}
    assert all(accuracy > 0.8 and rounds == 50 for accuracy, rounds in results.values())


def test_gpt2_on_qasc(network, tmp_path, byte_tokenizer):
    choices = [{"text": letter.lower(), "label": letter} for letter in qasc.LETTERS]
    (tmp_path / "qasc").mkdir()
    for name in ("train", "dev"):
        lines = [
            json.dumps({"question": {"stem": "?", "choices": choices}, "answerKey": letter})
            for letter in qasc.LETTERS * 2
        ]
        (tmp_path / "qasc" / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    sizes = ("--layers", 1, "--width", 16, "--steps", 4, "--every", 2)
    results = run("gpt2_qasc.py", *network(4), *sizes, "--data-dir", tmp_path)
    assert {peer: rounds for peer, (_, rounds) in results.items()} == dict.fromkeys(range(4), 2)
