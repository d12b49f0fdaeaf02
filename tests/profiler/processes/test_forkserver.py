"""The folder in which torch.compile keeps what it has made."""

from __future__ import annotations

from pathlib import Path

from read_only import read_only

from profiler.processes.forkserver import _compile_folder


def test_a_users_folder_is_used_where_it_can_be_written(tmp_path: Path) -> None:
    own, users = tmp_path / "own", tmp_path / "not yet" / "there"
    assert _compile_folder(None, own) == own
    assert _compile_folder(str(users), own) == users
    assert list(users.iterdir()) == []
    assert not own.exists()


def test_what_may_only_be_read_is_linked_into_a_folder_that_can_be_written(everyones_folder: Path) -> None:
    users, mine = everyones_folder / "users", everyones_folder / "mine"
    (users / "fx" / "a").mkdir(parents=True)
    (users / "fx" / "a" / "graph").write_text("compiled")
    (users / "fx" / "a.lock").touch()
    mine.mkdir()
    mine.chmod(0o777)
    with read_only(users):
        folder = _compile_folder(str(users), mine / "own")
        assert folder == mine / "own"
        assert (folder / "fx" / "a" / "graph").read_text() == "compiled"
        assert not (folder / "fx" / "a.lock").exists(), "which torch opens to write"
        (folder / "fx" / "a" / "other").write_text("compiled now")
    assert [path.name for path in (users / "fx" / "a").iterdir()] == ["graph"]
