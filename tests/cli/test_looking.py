"""The commands that change nothing: plot, list, check-env, doctor, watch."""

import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from a_made_up_run import MadeUpRun

import etude
from etude import cli
from etude.algorithms import DQN, DQNConfig
from etude.base.spaces import Box, Discrete, Spaces
from etude.checkpoint.run_directory import RunDirectory
from etude.cli import doctor
from etude.cli.sessions import carry_out
from etude.cli.watch import Watch, play
from etude.run import Schedule


@pytest.fixture
def runs(tmp_path):
    paths = []
    for name in ("a", "b"):
        with RunDirectory.create(tmp_path / name, "dqn") as directory:
            carry_out(MadeUpRun(directory), 1_000, Schedule(50, 3, None, 500))
        paths.append(tmp_path / name)
    return paths


def test_plot_draws_one_run_into_its_directory_and_several_beside(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (runs[0] / "curve.png").unlink()
    assert cli.main(["plot", str(runs[0])]) == 0
    assert (runs[0] / "curve.png").exists()
    assert cli.main(["plot", *map(str, runs), "--band", "range"]) == 0
    assert (tmp_path / "curves.png").exists()
    assert cli.main(["plot", *map(str, runs), "--output", "deep/both.png"]) == 0
    assert (tmp_path / "deep" / "both.png").exists()
    *_, chosen, repeated, drawn = capsys.readouterr().out.splitlines()
    assert chosen == "All lines are of one metric, smoothed training return. Another one: --metric eval/mean_reward"
    assert "1 of 2 runs repeat a seed" in repeated and drawn == "Drawn: deep/both.png"
    given = ["--format", "svg", "--style", "paper", "--labels", "a", "b", "--statistic", "median"]
    for kind in ("curves", "profile", "improvement"):
        assert cli.main(["plot", *map(str, runs), *given, "--kind", kind]) == 0
        assert (tmp_path / "curves.svg").read_text().startswith("<?xml")
    assert cli.main(["plot", str(runs[0]), "--metric", "rollout/ep_len_mean", "--format", "pdf"]) == 0
    assert (runs[0] / "rollout_ep_len_mean.pdf").read_bytes().startswith(b"%PDF")
    assert cli.main(["plot", str(runs[0]), "--output", "a.png", "--format", "pdf"]) == 2
    assert "two formats" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_is_one_clear_error(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for paths in (runs[:1], runs):
        assert cli.main(["plot", *map(str, paths), "--output", str(tmp_path / "file" / "both.png")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"etude: The picture {tmp_path / 'file' / 'both.png'} cannot be written: ")
        assert "--output" in error


def test_list_names_algorithms_with_their_actions_and_presets(capsys):
    assert cli.main(["list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["dqn", "Discrete", "Deep", "Q-network,"] in [line[:4] for line in lines]
    assert ["dqn", "CartPole-v1", "50,000", "steps"] in lines


BROKEN = """
import gymnasium as gym, numpy as np
class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, {}
"""


def test_check_env_names_a_mistake_and_fails(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_task.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check-env", "broken_task:Broken"]) == 1
    assert "four values" in capsys.readouterr().out
    assert cli.main(["check-env", "CartPole-v1"]) == 0
    assert "nothing found wrong" in capsys.readouterr().out
    assert cli.main(["check-env"]) == 2


def test_check_env_takes_arguments_of_the_environment(tmp_path, monkeypatch, capsys):
    given = BROKEN.replace("0.0, True, {}", "0.0, True, False, {}")
    (tmp_path / "sized_task.py").write_text(f"{given}\n    def __init__(self, size):\n        self.size = size\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check-env", "sized_task:Broken"]) == 1
    assert "--env-arg NAME=VALUE" in capsys.readouterr().out
    assert cli.main(["check-env", "sized_task:Broken", "--env-arg", "size=4"]) == 0
    assert cli.main(["check-env", "sized_task:Broken", "--env-arg", "sise=4"]) == 1
    assert "sise" in capsys.readouterr().out


def test_doctor_tells_versions_and_the_engine_that_auto_takes(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "version", {"keras": "3.1", "jax": "0.9", "numpy": "2.0"}.get)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "`--engine auto` takes jax" in text
    assert "torch       not installed: pip install 'etude[torch]'" in text
    assert "forked by a process of their own" in text or sys.platform != "linux"


def test_doctor_fails_where_no_engine_can_train(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "version", {"keras": "3.1"}.get)  # Keras alone computes nothing
    assert cli.main(["doctor"]) == 1
    assert "pip install 'etude[jax]'" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there is always a display")
def test_watch_without_a_display_says_how_to_film(monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert cli.main(["watch", "runs/x"]) == 2
    assert "etude watch runs/x --video out.gif" in capsys.readouterr().err


class Countdown(gym.Env):
    """Rewards each step with 1 and ends after three; tells its seeds and actions."""

    def __init__(self):
        self.spaces = Spaces(Box(-1, 1, (1,), np.float32), Discrete(2))
        self.seeds, self.actions = [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.left = 3
        return np.zeros(1, np.float32)

    def step(self, action):
        self.actions.append(int(action))
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_watching_plays_whole_episodes_with_the_best_actions(capsys):
    env = Countdown()
    actor = SimpleNamespace(state_size=0, act=lambda observation: np.tile([0.0, 1.0], (len(observation), 1)))
    run = SimpleNamespace(actor=lambda: actor, agent=DQN(DQNConfig()))
    pictures = list(play(run, env, Watch(episodes=2, seed=7)))
    assert len(pictures) == 2 * (1 + 3)
    assert env.seeds == [7, 8]
    assert env.actions == [1] * 6
    assert capsys.readouterr().out == "episode 1: return 3.0\nepisode 2: return 3.0\n"


def test_watching_ends_with_an_episode_that_does_not(capsys):
    env = Countdown()
    actor = SimpleNamespace(state_size=0, act=lambda observation: np.zeros((1, 2)))
    run = SimpleNamespace(actor=lambda: actor, agent=DQN(DQNConfig()))
    assert len(list(play(run, env, Watch(max_steps=2)))) == 3
    assert "cut off after 2 steps" in capsys.readouterr().out


WORLD = """
import gymnasium as gym
import numpy as np


class Levels(gym.Env):
    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    task = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), float(self.task), self.time == 3, False, {}

    def render(self):
        return np.full((16, 16, 3), 20 * self.task, np.uint8)
"""


@pytest.fixture
def with_a_task(tmp_path, monkeypatch):
    """The path of a run whose task is 2: the return of an episode is three times the task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text(WORLD)
    with etude.Run("dqn", "world.py:Levels", engine="torch", run_dir="mine") as run:
        run.set_task(2)
        run.train(8)
    return "mine"


def test_evaluate_and_watch_play_the_task_of_the_run_or_the_one_that_they_are_given(with_a_task, capsys):
    film = ["--video", "out.gif", "--trust"]
    for task, expected in (([], 6.0), (["--task", "5"], 15.0)):
        assert cli.main(["evaluate", with_a_task, "--episodes", "2", *task]) == 0
        assert f"return {expected} ± 0.0 over 2 episodes" in capsys.readouterr().out
        assert cli.main(["watch", with_a_task, *film, *task]) == 0
        assert f"episode 1: return {expected}" in capsys.readouterr().out
    assert cli.main(["evaluate", with_a_task, "--episodes", "1", "--steps", "10"]) == 0
    assert "over 4 episodes" in capsys.readouterr().out


def test_a_task_that_an_environment_does_not_take_is_one_clear_error(with_a_task, tmp_path, capsys):
    assert cli.main(["evaluate", with_a_task, "--task", "{1, 2}"]) == 2
    assert "task = {1, 2}; expected plain data" in capsys.readouterr().err
    assert cli.main(["evaluate", with_a_task, "--task", "'far'"]) == 2
    assert "could not convert string to float" in capsys.readouterr().err
    (tmp_path / "deaf.py").write_text(WORLD.replace("def set_task", "def no_task").replace(", options=None", ""))
    deaf = ["--task", "3", "--env", "deaf.py:Levels", "--video", "out.gif"]
    assert cli.main(["watch", with_a_task, *deaf]) == 2
    assert "Levels takes no task: it has no method set_task(task)" in capsys.readouterr().err
