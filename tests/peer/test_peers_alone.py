"""A site installs `[peers]`: four peers average there, with nothing of the laboratory and none of its libraries."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "four_peers.py"


def needed():
    """The names of all distributions that an installation with `[peers]` brings, as far as this environment has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [
        Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["peers"])
    ]
    found = set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            inner = Requirement(text)
            extras = need.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return found


def superfluous():
    """Every module of this environment that does not come with `[peers]`."""
    there = needed()
    homes = metadata.packages_distributions()
    return {name for name, dists in homes.items() if not there & {canonicalize_name(d) for d in dists}} | {
        "cesar_lab"
    }


def run(python, folder, *blocked, env=None):
    done = subprocess.run(
        [python, PROGRAM, folder, *blocked], capture_output=True, text=True, check=False, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_four_peers_average_where_nothing_else_is_installed(tmp_path):
    blocked = superfluous() - {"cesar", "_virtualenv", "_distutils_hack"}
    assert {"torch", "plotly", "sklearn", "ray", "cesar_lab", "matplotlib", "pytest"} <= blocked
    assert not {"numpy", "grpc", "pydantic", "cryptography"} & blocked
    said = run(sys.executable, tmp_path / "net", *sorted(blocked))
    assert said["error"] < 1e-6
    assert not blocked & {*said["peers"]}
    assert not {"grpc", "pydantic", "prometheus_client", "jinja2"} & {*said["import cesar"]}, (
        "only peers need them"
    )


def test_what_is_blocked_cannot_be_imported(tmp_path):
    with pytest.raises(AssertionError, match=re.escape("grpc is blocked")):
        run(sys.executable, tmp_path / "net", "grpc")


@pytest.mark.slow
def test_four_peers_average_in_an_environment_of_their_own(tmp_path):
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[peers]"], check=True, cwd=tmp_path)
    said = run(python, tmp_path / "net", env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert said["error"] < 1e-6
    assert said["from"].startswith(str(place))
    assert not {"torch", "plotly", "sklearn", "cesar_lab"} & {*said["peers"]}
