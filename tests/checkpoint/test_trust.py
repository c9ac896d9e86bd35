"""A run from elsewhere imports nothing and writes nowhere unless its user agrees."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs_from_elsewhere import COMMANDS, SOURCE, described, refused, sent, trained

import etude
from etude import checkpoint, cli
from etude.base.errors import CheckpointError, UntrustedError
from etude.checkpoint import trust
from etude.envs import ConfiguredEnvironment
from etude.run import from_state

NAMES = {
    "a file": "tasks.py:make",
    "a file by another way": "../evil/./tasks.py:make",
    "a file by its whole path": "{folder}/tasks.py:make",
    "a module": "tasks:make",
    "a module in a package": "package.tasks:make",
    "a module in a folder": "plain.tasks:make",
    "a module in a folder of a folder": "plain.inner.tasks:make",
    "a module of several agents": "package:tasks",
    "a module that registers an id": "tasks:CartPole-v1",
    "a module with a colon": "ta:sks:make",
    "a module under the name of a known package": "minigrid:MiniGrid-Empty-5x5-v0",
    "a module in a known package": "mpe2.tasks:make",
    "a module that does not pass for one of etude's": "etude.examples/../tasks:make",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_a_wrapper_of_a_run_from_elsewhere(command, state, evil, canary, capsys):
    hostile = {"wrappers": ["tasks:make"], "wrappers_are_named": True}
    sent(evil, described(state, **hostile))
    assert cli.main(COMMANDS[command]) == 2
    assert "wrapper 'tasks:make' imports" in capsys.readouterr().err
    assert cli.main([*COMMANDS[command], "--env", "CartPole-v1"]) == 2
    assert not canary.exists()  # another environment does not let its wrappers in


def test_arguments_that_are_texts_are_asked_about_and_numbers_are_not(home, state):
    made_with = {"environment": "FrozenLake-v1", "environment_args": {"map_name": "../map"}}
    with pytest.raises(UntrustedError, match=r"made with the arguments .*map_name.*\.\./map"):
        from_state(described(state, **made_with))
    trust.require({}, ConfiguredEnvironment("FrozenLake-v1", {"is_slippery": False}, ()), None)


def test_wrappers_and_arguments_of_ones_own_run_go_on_unasked(home, tmp_path, monkeypatch):
    (tmp_path / "wrappers_of_mine.py").write_text("def same(env):\n    return env\n")
    monkeypatch.chdir(tmp_path)
    more = {"wrappers": ["wrappers_of_mine:same"], "env_args": {"render_mode": "rgb_array"}}
    with trained(**more) as run:
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as again:
        assert again.step == 40


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_what_a_run_from_elsewhere_names(command, form, state, evil, canary, capsys):
    name = NAMES[form].format(folder=evil)
    sent(evil, described(state, environment=name, signatures={"environment": "0" * 64}))
    assert cli.main(COMMANDS[command]) == 2
    assert not canary.exists()
    error = capsys.readouterr().err
    assert repr(name) in error
    assert f"etude {shlex.join(COMMANDS[command])} --trust" in error
    assert f"--env {shlex.quote(name)}" in error


@pytest.mark.parametrize("form", NAMES)
def test_neither_does_loading_from_python(form, state, evil, canary):
    name = NAMES[form].format(folder=evil)
    path = sent(evil, described(state, environment=name)) / "checkpoints" / "best.etude"
    for load in (etude.load, lambda path: from_state(checkpoint.read(path))):
        with pytest.raises(UntrustedError) as caught:
            load(path)
        assert repr(name) in str(caught.value)
        assert "trust=True" in str(caught.value)
        assert f"env={name!r}" in str(caught.value)
    assert not canary.exists()


def test_plot_imports_nothing(state, evil, canary):
    path = sent(evil, described(state, environment="tasks.py:make"))
    records = [{"step": 0, "started": {"environment": "tasks.py:make"}}]
    records += [{"step": step, "eval/returns": [1.0]} for step in (8, 9)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert cli.main(["plot", "run"]) == 0
    assert not canary.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_that_the_error_names_goes_on(command, state, evil, canary, capsys):
    sent(evil, described(state, environment="tasks.py:make"))
    cli.main(COMMANDS[command])
    (line,) = capsys.readouterr().err.splitlines()
    told = line.partition("If you trust it: ")[2].partition(" Or give")[0]
    assert cli.main(shlex.split(told)[1:]) == 0
    assert canary.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_environment_that_is_given_again_needs_no_trust(command, state, evil, canary):
    sent(evil, described(state, environment="tasks.py:make"))
    assert cli.main([*COMMANDS[command], "--env", "CartPole-v1"]) == 0
    assert not canary.exists()


def test_python_goes_on_where_the_environment_is_given_or_trusted(state, evil, canary):
    path = sent(evil, described(state, environment="tasks:make")) / "checkpoints" / "best.etude"
    with etude.load(path, env="CartPole-v1") as run:
        assert run.step == 40
    assert not canary.exists()
    with etude.load(path, trust=True) as run:
        assert run.step == 40
    assert canary.exists()


def test_a_registered_id_an_example_and_an_installed_environment_go_on_unasked(state, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with from_state(state) as run:
        assert run.environment == "CartPole-v1"
    for name in (
        "etude.examples.cart_pole:WithoutVelocities",
        "etude.examples.speaker_listener:speaker_listener",
        "mpe2:simple_spread_v3",
        "mpe2.simple_spread_v3:parallel_env",
        "pettingzoo.classic:rps_v2",
        "gymnasium:CartPole-v1",
    ):
        trust.require({}, name, None)
    assert not home.exists()


def test_other_names_in_known_packages_are_asked_about(home):
    for name in ("mpe2:rmtree", "mpe2.simple_spread_v3:os", "pettingzoo.utils:wrappers", "gymnasium:make",
                 "os:abort", "builtins:exit", "__main__:make", "shutil:rmtree", "etude.run:load", "etude:Run",
                 ":make", ".:make", "..py:make", "\0.py:make", "\0:make", "\ud800.py:make", "a..b:c"):  # fmt: skip
        with pytest.raises(UntrustedError):
            trust.require({}, name, None)


def test_an_id_that_nothing_registered_is_unknown(state, evil, canary):
    with pytest.raises(CheckpointError, match="There is no Gymnasium environment 'tasks/Nothing-v0'"):
        from_state(described(state, environment="tasks/Nothing-v0"))
    assert not canary.exists()


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_replay_folder_is_not_written_to_on_the_word_of_a_file(state, evil, tmp_path, capsys):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "0000.ring").write_text("kept")
    setup = {**state["description"]["setup"], "replay_folder": str(theirs)}
    sent(evil, described(state, setup=setup))
    assert cli.main(COMMANDS["resume"]) == 2
    assert f"--replay-folder {theirs}" in capsys.readouterr().err
    assert repr(str(theirs)) in refused(described(state, setup=setup))
    assert (theirs / "0000.ring").read_text() == "kept"
    assert cli.main(COMMANDS["evaluate RUN"]) == 0, "acting needs no replay"
    assert cli.main([*COMMANDS["resume"], "--replay-folder", str(tmp_path / "mine")]) == 0
    assert (theirs / "0000.ring").read_text() == "kept"
    from_state(described(state, setup=setup), replay_folder=None).close()


def test_the_user_s_own_replay_folder_is_used_again_where_it_was(evil, tmp_path, monkeypatch):
    with trained(replay_folder="replay") as run:
        own = {**run.state()}
        run.learner.replay.close()
    from_state(own).close()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert str(tmp_path / "other" / "replay") in refused(own)


def test_resuming_follows_no_link_out_of_a_run_directory(state, evil, tmp_path, capsys):
    path = sent(evil, state)
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    for name in ("metrics.jsonl", "metrics.jsonl.partial", "curve.png", "curve.png.partial", "config.json.partial"):
        (path / name).symlink_to(theirs)
    assert cli.main(COMMANDS["resume"]) == 0
    assert theirs.read_text() == "kept"
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(theirs)
    assert cli.main([*COMMANDS["resume"][:-1], "56"]) == 2
    assert theirs.read_text() == "kept"


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_folders_of_a_run_directory_that_lead_elsewhere_are_asked_about(name, state, evil, tmp_path, capsys):
    path, elsewhere = sent(evil, state), tmp_path / "elsewhere"
    elsewhere.mkdir()
    if name == "checkpoints":
        elsewhere.rmdir()
        (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    assert cli.main(COMMANDS["resume"]) == 2
    assert str(elsewhere) in capsys.readouterr().err
    assert sorted(elsewhere.iterdir()) == before
    assert cli.main([*COMMANDS["resume"], "--trust"]) == 0


def test_what_an_environment_s_dependencies_lack_is_not_taken_from_the_current_folder(evil, home, canary, monkeypatch):
    from etude.envs import make_environment

    package = home.parent / "installed"
    package.mkdir(parents=True)
    (package / "installed_tasks.py").write_text(
        "try:\n    import tasks\nexcept ImportError:\n    from gymnasium.envs.classic_control import CartPoleEnv\n"
    )
    monkeypatch.setattr(sys, "path", [str(package), *sys.path])
    make_environment("installed_tasks:CartPoleEnv").close()
    sys.modules.pop("installed_tasks")
    assert not canary.exists()


def test_workers_run_nothing_of_the_current_folder(state, evil, tmp_path, canary):
    sent(evil, state)
    for name in ("multiprocessing", "runpy", "jax", "ale_py"):
        Path(f"{name}.py").write_text(SOURCE.format(canary=str(canary)))
    program = tmp_path / "bin" / "etude"  # as it is installed: Python looks for modules where the program is
    program.parent.mkdir()
    program.write_text("import sys\nfrom etude.cli import main\nsys.exit(main())")
    own, told = tmp_path / "own.py", tmp_path / "told"
    own.write_text(
        f"import os\nwith open({str(told)!r}, 'a') as file:\n    print(os.environ.get('PYTHONSAFEPATH'), file=file)\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
    )
    command = [sys.executable, str(program), *COMMANDS["resume"], "--workers", "1", "--env", f"{own}:CartPoleEnv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not canary.exists()
    assert done.returncode == 0, done.stderr
    assert told.read_text().split() == ["None", "None"], "what environments start looks where it always does"


def test_a_made_up_run_needs_no_signature(home):
    assert trust.claims(SimpleNamespace, None) == {}
