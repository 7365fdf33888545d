"""The wheel works where the source tree is not."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_promised_extras_are_there():
    assert {"sim", "peers", "nlp", "ray", "plots", "lightning", "transformers", "docs", "all"} <= set(EXTRAS)


def test_a_shell_completes_commands():
    """What bash asks for when somebody has typed `cesar re` and the tab key."""
    asked = {**os.environ, "_CESAR_COMPLETE": "complete_bash", "COMP_WORDS": "cesar re", "COMP_CWORD": "1"}
    command = Path(sys.executable).parent / "cesar"
    done = subprocess.run([command], capture_output=True, text=True, check=True, env=asked)
    assert done.stdout.split() == ["report", "reproduce"]


@pytest.mark.slow
def test_a_wheel_runs_the_demo_in_a_new_environment(tmp_path):
    """Dependencies come from this environment, the package itself from the wheel alone."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("cesar-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"cesar/py.typed", "cesar/experiment/demo.toml", "cesar/templates/page.html"} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "src"))]

    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    (site,) = place.glob("lib/python*/site-packages")
    installed = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*installed, str(wheel)], check=True)
    libraries = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "libraries.pth").write_text(libraries + "\n")  # the new environment's own come first

    def run(*arguments):
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            [*map(str, arguments)], capture_output=True, text=True, check=False, cwd=tmp_path, env=clean
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(place) in run(python, "-c", "import cesar; print(cesar.__file__)")
    assert run(place / "bin" / "cesar", "--version").startswith("cesar ")
    run(place / "bin" / "cesar", "demo", "--out", "demo")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
