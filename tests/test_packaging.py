"""The wheel works where the source tree is not."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("Makefile"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*")]
TEXTS += [path for path in ROOT.glob("src/**/*") if path.suffix in (".py", ".html", ".toml")]


def test_the_promised_extras_are_there():
    assert {"lab", "sim", "peers", "nlp", "ray", "plots", "lightning", "transformers", "docs", "all"} <= set(
        EXTRAS
    )
    assert {"lora", "dp"} <= set(EXTRAS)  # for examples alone


def fetched(line):
    """What `pip install` in a line of text or code would install, without options."""
    (words,) = re.findall(r"pip install ([^`#]*)", line)
    return [word for word in re.findall(r"'[^']*'|[^\s\"]+", words) if not word.startswith("-")][:1]


def test_whoever_follows_a_message_installs_this_package():
    """On the index, `cesar` is something else that somebody else wrote."""
    ours = re.compile(rf"'?(\.|{PROJECT['name']})(\[[a-z,]+\]|\[{{extra}}\]|\[…\])?'?|pip|requirements\S*")
    lines = [(path, line) for path in TEXTS if path.is_file() for line in path.read_text().splitlines()]
    said = [(path.name, what) for path, line in lines if "pip install" in line for what in fetched(line)]
    assert len(said) > 10
    assert [(name, what) for name, what in said if not ours.fullmatch(what)] == []
    assert [path.name for path, line in lines if re.search(r"\bcesar\[[a-z,]+\]", line)] == []


def test_extras_refer_to_this_package():
    inner = {item.split("[")[0] for extra in EXTRAS.values() for item in extra if item.startswith("cesar")}
    assert inner == {PROJECT["name"]} == {"cesar-learning"}


def test_a_shell_completes_commands():
    """What bash asks for when somebody has typed `cesar re` and the tab key."""
    asked = {**os.environ, "_CESAR_COMPLETE": "complete_bash", "COMP_WORDS": "cesar re", "COMP_CWORD": "1"}
    command = Path(sys.executable).parent / "cesar"
    done = subprocess.run([command], capture_output=True, text=True, check=True, env=asked)
    assert done.stdout.split() == ["report", "reproduce"]


# ── what a release is made of ───────────────────────────────────────────────────────────────────────────


def locked():
    """(requirement, its hashes) of requirements.lock."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", "")
    for line in text.splitlines():
        pinned, *hashes = re.split(r"\s+--hash=", line.strip())
        yield Requirement(pinned), hashes


def asked_for(extra=None):
    """What an installation with this extra, or without any, needs directly."""
    for text in PROJECT["dependencies"] if extra is None else EXTRAS[extra]:
        need = Requirement(text)
        if need.name == PROJECT["name"]:
            for inner in need.extras:
                yield from asked_for(inner)
        else:
            yield need


def test_the_lock_has_one_version_and_its_hashes_for_everything():
    for need, hashes in locked():
        assert re.fullmatch(r"==[\w.+!]+", str(need.specifier)), need
        assert hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), need
    assert "//" not in (ROOT / "requirements.lock").read_text(), (
        "no place to fetch from: that is the reader's choice"
    )


def test_the_lock_is_what_this_version_asks_for():
    """Offline; `make lock-check` asks the index as well."""
    versions = {}
    for need, _ in locked():
        versions.setdefault(canonicalize_name(need.name), []).append(str(need.specifier)[2:])
    for need in [*asked_for(), *asked_for("peers"), *asked_for("lab")]:
        found = versions[canonicalize_name(need.name)]
        assert any(need.specifier.contains(version) for version in found), (need, found)


def test_the_bill_of_materials_lists_what_is_locked(tmp_path):
    """The very command of `make sbom`."""
    (command,) = re.findall(r"^\t\$\(BIN\)/cyclonedx-py (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    words = [tmp_path / "sbom.json" if word.startswith("dist/") else word for word in command.split()]
    subprocess.run([sys.executable, "-m", "cyclonedx_py", *words], cwd=ROOT, check=True, capture_output=True)
    made = json.loads((tmp_path / "sbom.json").read_text())
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == PROJECT["name"]
    listed = {(part["name"], part["version"]) for part in made["components"]}
    assert listed == {(need.name, str(need.specifier)[2:]) for need, _ in locked()}
    hashes = {
        h["content"]
        for part in made["components"]
        for ref in part["externalReferences"]
        for h in ref["hashes"]
    }
    assert hashes == {one.removeprefix("sha256:") for _, some in locked() for one in some}


@pytest.mark.slow
def test_a_wheel_runs_the_demo_in_a_new_environment(tmp_path):
    """Dependencies come from this environment, the package itself from the wheel alone."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = tmp_path.glob("cesar_learning-*.whl"), tmp_path.glob("cesar_learning-*.tar.gz")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    names = zipfile.ZipFile(wheel).namelist()
    assert {"cesar/py.typed", "cesar_lab/run/demo.toml", "cesar/page/templates/page.html"} <= set(names)
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
