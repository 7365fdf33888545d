"""A file is replaced as a whole, or not at all."""

import stat

import pytest

from cesar.base import files


def test_content_is_replaced(tmp_path):
    path = tmp_path / "note"
    files.write(path, "one")
    files.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "note"
    files.write(path, "old")

    def interrupted():
        with files.replacing(path) as draft:
            draft.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_readable_by_others(tmp_path):
    path = tmp_path / "key"
    with files.replacing(path, mode=0o600) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        draft.write_bytes(b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    path = tmp_path / "note"
    with files.replacing(path) as draft:
        name = draft.name
    (tmp_path / name).write_text("left behind")
    files.write(path, "new")
    assert path.read_text() == "new"


def test_drafts_of_killed_processes_are_swept_and_those_of_others_are_not(tmp_path):
    path = tmp_path / "note"
    for pid in (1, 4242, 99999999):
        (tmp_path / f".note.{pid}.new").write_text("left behind")
    (tmp_path / ".notebook.1.new").write_text("not ours")
    with files.replacing(path) as draft:
        other = tmp_path / ".note.7.new"
        draft.write_text("mine")
        draft.rename(other)  # as if another process were writing it
        files.write(path, "new")
        assert other.read_text() == "mine"
        other.rename(draft)
    assert path.read_text() == "mine"
    assert sorted(item.name for item in tmp_path.iterdir()) == [".notebook.1.new", "note"]
