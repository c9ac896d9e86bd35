"""A run that its user trained here is signed by his key, and goes on unasked."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs_from_elsewhere import COMMANDS, described, refused, sent, trained

from etude import cli
from etude.base.errors import UntrustedError
from etude.checkpoint import trust
from etude.checkpoint.run_directory import RunDirectory
from etude.run import from_state


@pytest.fixture
def own(evil, home) -> Path:
    """The user's folder: a run that he trained here on his `tasks.py`."""
    with RunDirectory.create("run", "run") as directory, trained("tasks.py:make", run_dir=directory) as run:
        schedule = {"evaluate_every": None, "evaluate_episodes": 1, "target": None, "save_every": None}
        directory.write_config({"schedule": schedule})
        run.directory.save_best(40, run.state())
    return evil


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_its_user_trained_here_goes_on_unasked(command, own):
    assert cli.main(COMMANDS[command]) == 0


def test_a_resumed_run_is_signed_again(own):
    assert cli.main(COMMANDS["resume"]) == 0
    with from_state(RunDirectory("run").load().state) as run:
        assert run.step == 48


def test_a_trusted_run_is_the_user_s_once_it_is_trained_on(state, evil):
    sent(evil, described(state, environment="tasks:make"))
    assert cli.main([*COMMANDS["resume"], "--trust"]) == 0
    assert cli.main(COMMANDS["evaluate RUN"]) == 0


def saved(env: str) -> dict:
    with trained(env) as run:
        return run.state()


@pytest.mark.parametrize("name", ["tasks.py:make", "tasks:make", "package.tasks:make", "plain.tasks:make",
                                  "plain.inner.tasks:make"])  # fmt: skip
def test_a_signature_holds_in_its_own_place_alone(name, evil, tmp_path, monkeypatch):
    own = saved(name)
    from_state(own).close()
    other = tmp_path / "other"
    evil.rename(other)
    evil.mkdir()
    monkeypatch.chdir(other)
    assert str(other) in refused(own)
    monkeypatch.chdir(evil)
    assert "not found here" in refused(own)


def test_a_signature_is_of_one_name(evil):
    own = saved("tasks.py:make")
    for other in ("tasks.py:parallel_env", "tasks:make", "package/tasks.py:make"):
        assert repr(other) in refused(described(own, environment=other))


def test_a_module_that_takes_another_s_place_is_refused(evil, tmp_path, monkeypatch):
    own = saved("tasks:make")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "tasks.py").write_text((evil / "tasks.py").read_text())
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), *sys.path])
    assert str(tmp_path / "first" / "tasks.py") in refused(own)


def test_the_user_may_edit_his_own_file_and_nobody_else_may(evil):
    for mode in (0o644, 0o646):
        os.chmod("tasks.py", mode)
        own = saved("tasks.py:make")
        with open("tasks.py", "a") as file:
            file.write("# changed\n")
        if mode == 0o644:
            from_state(own).close()
        else:
            assert "has changed since" in refused(own)


def test_what_is_signed_is_what_was_imported(evil):
    os.chmod("tasks.py", 0o646)
    with trained("tasks.py:make") as run:
        with open("tasks.py", "a") as file:
            file.write("# changed by somebody else while the run goes on\n")
        refused(run.state())


def test_an_environment_of_a_callable_is_not_named_by_a_signed_run(evil):
    refused(described(saved("tasks.py:make"), environment="os:abort", environment_is_named=True))


# -- the key -----------------------------------------------------------------------------------------------------------


def test_the_key_is_the_user_s_alone_and_only_made_where_it_is_needed(home, evil):
    trained().close()
    saved("CartPole-v1")
    assert not home.exists()
    saved("tasks.py:make")
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [path.name for path in home.iterdir()] == ["key"]


def test_another_user_s_key_signs_nothing(evil, home):
    own = saved("tasks.py:make")
    (home / "key").unlink()
    refused(own)
    saved("tasks.py:make")  # makes another key
    refused(own)


def test_a_key_that_others_can_read_is_not_used(evil, home):
    own = saved("tasks.py:make")
    (home / "key").chmod(0o644)
    refused(own)
    assert trust.signatures(trust.claims("tasks.py:make", None)) == {}


def test_a_key_that_is_cut_off_is_not_used(evil, home):
    own = saved("tasks.py:make")
    (home / "key").write_bytes(b"")
    refused(own)


def test_without_a_place_for_the_key_a_run_is_saved_and_asked_about(evil, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="No key could be kept in .*file/etude.*trust=True .*XDG_STATE_HOME"):
        own = saved("tasks.py:make")
    with pytest.raises(UntrustedError, match="There is no key in .*file/etude by which etude would know"):
        from_state(own)
    refused(own)
    from_state(own, trust=True).close()


def test_the_state_folder_is_in_the_home_where_nothing_else_is_said(evil, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        saved("tasks.py:make")
        assert (tmp_path / ".local/state/etude/key").exists()


def test_processes_that_start_together_have_one_key(home):
    program = "from etude.checkpoint import trust; print(trust._key(make=True).hex())"
    command = [sys.executable, "-c", program]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(subprocess.run, command, capture_output=True, text=True, check=True) for _ in range(4)]
        assert {run.result().stdout.strip() for run in runs} == {(home / "key").read_bytes().hex()}


def test_threads_that_make_the_key_at_once_agree(home):
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: trust._key(make=True), range(64)))) == 1
    assert [path.name for path in home.iterdir()] == ["key"]


@pytest.mark.parametrize("held", [None, 3, "x", [], {"environment": None}, {"environment": ["x"]},
                                  {"environment": "\ud800"}, {"environment": ""}])  # fmt: skip
def test_signatures_that_are_none_are_refused(held, state, evil):
    assert "tasks.py" in refused(described(state, environment="tasks.py:make", signatures=held))
