"""Every Python block of the documents runs as it stands, and prints what it says that it prints."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

import cesar
from cesar.cli.root import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROMISE = re.compile(r"^ *print\(.*\)  # → (.*)$", re.MULTILINE)
FUNCTION = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path):
    return BLOCK.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(path, capsys):
    names: dict[str, object] = {}
    for block in blocks(path):
        exec(compile(block, path.name, "exec"), names)
        printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        promised = PROMISE.findall(block)
        assert [line for line in promised if plain(line) not in map(plain, printed)] == []


def plain(line):
    """How numpy pads numbers to one width does not matter."""
    return line.replace("[ ", "[").replace(" ]", "]")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_page_shows_how_it_is_tested(path):
    if path.name != "threat-model.md":  # shows an attack, and that it succeeds
        assert not [
            block for block in blocks(path) if re.search(r"import inspect|^\s*assert ", block, re.MULTILINE)
        ]


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    for name in set(cesar.__all__) - {"__version__", "Method"}:
        thing = getattr(cesar, name)
        home = thing.__name__ if name == "theory" else thing.__module__
        assert {home, f"{home}.{name}"} & {*documented}, f"{name} is not in docs/reference.md"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_python_block_is_overlooked(path):
    assert len(re.findall(r"```\s*py", path.read_text(encoding="utf-8"))) == len(blocks(path))


LOOP = """\
with cesar.Peer.join(folder) as peer:
peer.start_from(model)  # every site passes the same first model
for batch in loader:
train_step(model, batch)
if peer.due():  # every few steps, as peer.toml says
peer.average(model)  # in place
peer.settle(model)  # last rounds without training: all end with one model
"""


@pytest.mark.parametrize(
    "place", ["README.md", "docs/tutorial.md", "docs/integrations.md", "src/cesar/peer/api/peer.py"]
)
def test_there_is_one_training_loop(place):
    """The same lines wherever a newcomer meets it; examples/plain_pytorch.py runs them."""
    lines = [line.strip() for line in (ROOT / place).read_text(encoding="utf-8").splitlines()]
    assert LOOP in "\n".join(lines) + "\n"
    shown = (ROOT / "examples" / "plain_pytorch.py").read_text(encoding="utf-8")
    calls = [line for line in LOOP.splitlines() if "peer." in line]
    assert [line.strip() for line in shown.splitlines() if line.strip() in calls] == calls


def test_the_function_that_peers_run_is_the_same_loop():
    """`cesar peer run` joins before it and settles after it."""
    calls = [line for line in LOOP.splitlines() if "peer." in line][1:-1]
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert [line.strip() for line in page.splitlines() if line.strip() in calls] == calls


def commands(path):
    """Every `cesar …` that a shell block shows, as words; lines that end in a backslash go on."""
    for block in re.findall(
        r"^```sh\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["cesar"] and "…" not in line:
                yield words[1 : words.index("&&")] if "&&" in words else words[1:]


@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if [*commands(p)]], ids=lambda p: str(p.relative_to(ROOT))
)
def test_shell_blocks_show_commands_and_options_that_exist(path):
    for words in commands(path):
        command, rest = typer.main.get_command(app), [*words]
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"{path.name}: cesar {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {"--help", "--version"}.union(*(parameter.opts for parameter in command.params))
        asked = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert asked <= known, f"{path.name}: cesar {' '.join(words)}"


def test_every_page_has_a_place_in_the_navigation():
    listed = set(
        re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert listed == {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} points at {target}"


def layers(container):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (c["layers"] for c in contracts if c.get("containers") == [container])
    return found


@pytest.mark.parametrize(("container", "head"), [("cesar", "library"), ("cesar_lab", "laboratory")])
def test_the_tables_of_rooms_are_the_contracts(container, head):
    part = (ROOT / "CONTRIBUTING.md").read_text().split(f"| room of the {head}", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| (`.*?) \| [^`|]", part, re.MULTILINE)
    assert [row.replace("`", "").replace("\\|", "|") for row in rows] == layers(container)


def test_every_test_that_the_threat_model_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")))
    there = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in FUNCTION.findall(file.read_text())
    }
    assert len(named) > 60
    assert named <= there


def test_contributing_names_places_that_exist():
    """In "How to add …", what looks like a path is one, and the names beside it stand in that file."""
    part = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## How to add …")[1].split("\n## ")[0]
    )
    paths = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md|html|toml)|(?:[\w-]+/)+)`", part))
    assert len(paths) > 20
    roots = (ROOT, ROOT / "src" / "cesar")
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []
    for name, path in re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", part):
        text = (ROOT / "src" / "cesar" / path).read_text(encoding="utf-8")
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), f"{path} has no {name}"
