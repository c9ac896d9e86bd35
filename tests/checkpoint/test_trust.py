"""A run from elsewhere imports nothing and writes nowhere unless its user agrees; one's own goes on unasked."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import etude
from etude import checkpoint, cli
from etude.base.errors import CheckpointError, UntrustedError
from etude.checkpoint import trust
from etude.checkpoint.run_directory import RunDirectory
from etude.envs import ConfiguredEnvironment
from etude.run import from_state

SOURCE = """
from pathlib import Path
with Path({canary!r}).open("a") as file:
    file.write("ran ")

from gymnasium.envs.classic_control import CartPoleEnv

def make(render_mode=None):
    return CartPoleEnv(render_mode=render_mode)

parallel_env = make
"""
CONFIG = etude.algorithms.DQNConfig(
    network=etude.Mlp((4,)), learning_starts=16, train_every=8, batch_size=8, buffer_size=100
)
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
COMMANDS = {
    "evaluate FILE": ["evaluate", "run/checkpoints/step_000000040.etude", "--episodes", "1"],
    "evaluate RUN": ["evaluate", "run", "--episodes", "1"],
    "evaluate the best": ["evaluate", "run", "--checkpoint", "best", "--episodes", "1"],
    "watch": ["watch", "run", "--video", "out.mp4", "--max-steps", "3"],
    "resume": ["resume", "run", "--steps", "48"],
}


def trained(env: str = "CartPole-v1", **more) -> etude.Run:
    """A run of 40 steps."""
    run = etude.Run("dqn", env, config=CONFIG, engine="torch", **more)
    run.train(40)
    return run


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> dict:
    """What a checkpoint on CartPole-v1 holds."""
    path = tmp_path_factory.mktemp("state") / "run.etude"
    with trained() as run:
        run.save(path)
    return checkpoint.read(path)


def described(state: dict, **changed) -> dict:
    return {**state, "description": {**state["description"], **changed}}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The user's state folder, without a key; what is imported and looked for is forgotten afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path / "state" / "etude"
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"tasks", "package", "plain", "ta:sks", "minigrid"} or "etude_environment" in name:
            del sys.modules[name]


@pytest.fixture
def canary(tmp_path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def evil(home, tmp_path, canary, monkeypatch) -> Path:
    """A folder from elsewhere with code under many names, which is the current one."""
    folder = tmp_path / "evil"
    places = (
        "tasks.py",
        "package/__init__.py",
        "package/tasks.py",
        "plain/tasks.py",
        "plain/inner/tasks.py",
        "ta:sks.py",
        "minigrid.py",
    )
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(SOURCE.format(canary=str(canary)))
    monkeypatch.chdir(folder)
    return folder


def sent(folder: Path, state: dict) -> Path:
    """A run directory from elsewhere."""
    directory = RunDirectory(folder / "run")
    directory.checkpoints.mkdir(parents=True)
    directory.save(40, state)
    directory.save_best(40, state)
    schedule = {"evaluate_every": None, "evaluate_episodes": 1, "target": None, "save_every": None}
    directory.write_config({"schedule": schedule})
    return directory.path


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


# -- one's own runs ----------------------------------------------------------------------------------------------------


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


def refused(state: dict, **given) -> str:
    with pytest.raises(UntrustedError) as caught:
        from_state(state, **given)
    return str(caught.value)


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
    own = saved("tasks.py:make")
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
