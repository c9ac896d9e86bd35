"""The commands that change nothing: plot, list, check-env, doctor, watch."""

import sys
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from a_made_up_run import MadeUpRun

import etude
from etude import cli
from etude.base.errors import ConfigError
from etude.checkpoint.run_directory import RunDirectory
from etude.cli import looking
from etude.cli.train import carry_out
from etude.envs.check import check_environment
from etude.report import filming
from etude.run import Schedule


@pytest.fixture
def runs(tmp_path, drawn_curves):
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


def test_list_keeps_whole_sentences_within_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    told = " ".join(text.split())
    assert "so that training goes on online without unlearning first." in told
    assert "ppo any Proximal policy optimisation with the clipped objective or an adaptive KL penalty." in told


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
    monkeypatch.setattr(looking, "version", {"keras": "3.1", "jax": "0.9", "numpy": "2.0"}.get)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "`--engine auto` takes jax" in text
    assert "torch       not installed: pip install 'etude[torch]'" in text
    assert "forked by a process of their own" in text or sys.platform != "linux"


def test_doctor_fails_where_no_engine_can_train(capsys, monkeypatch):
    monkeypatch.setattr(looking, "version", {"keras": "3.1"}.get)  # Keras alone computes nothing
    assert cli.main(["doctor"]) == 1
    assert "pip install 'etude[jax]'" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there is always a display")
def test_watch_without_a_display_says_how_to_film(with_a_task, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert cli.main(["watch", with_a_task]) == 2
    assert f"etude watch {with_a_task} --video out.gif" in capsys.readouterr().err


class Countdown(gym.Env):
    """Rewards each step with 1 and ends after three; keeps its seeds."""

    seeds: ClassVar[list] = []
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.left = 3
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}

    def render(self):
        return np.full((16, 16, 3), 40 * self.left, np.uint8)


def test_watching_plays_whole_episodes_and_ends_with_one_that_does_not(tmp_path, monkeypatch):
    ended = []
    with etude.Run("dqn", Countdown, engine="torch") as run:
        Countdown.seeds.clear()
        film = etude.report.watch(run, tmp_path / "a.gif", 2, 5_000, 7, ended=ended.append)
        assert (film.frames, Countdown.seeds[-2:]) == (2 * (1 + 3), [7, 8])
        assert [(episode.reward, episode.ended) for episode in ended] == [(3.0, True)] * 2
        assert repr(film) == f"{tmp_path / 'a.gif'}: 8 frames, 0.8 s at 10 frames per second"
        assert run.watch(tmp_path / "b.gif", max_steps=2).frames == 3
        monkeypatch.setattr(filming, "has_display", lambda: False)
        with pytest.raises(ConfigError, match=r"no display for a window. Record a video: run.watch\('out.gif'\)"):
            run.watch()
        monkeypatch.setattr(filming, "in_notebook", lambda: True)
        shown = run.watch()
        assert shown.frames == 4
        assert shown._repr_html_().startswith(("<img src=", "<video controls"))


def test_an_environment_that_declares_pictures_and_has_none_is_one_sentence(tmp_path):
    class Blind(Countdown):
        render = gym.Env.render

    with etude.Run("dqn", Blind, engine="torch") as run, pytest.raises(ConfigError, match=r"has no render\(\): write"):
        run.watch(tmp_path / "a.gif")
    found = check_environment(Blind)
    assert [finding.name for finding in found if "has no render()" in finding.message] == ["render"]


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


def test_evaluate_and_exports_name_the_environment_as_it_was_given(tmp_path, capsys):
    folder = str(tmp_path / "run")
    environment = etude.Environment("FrozenLake-v1", args={"map_name": "4x4"})
    with etude.Run("dqn", environment, run_dir=folder, learning_starts=8) as run:
        run.train(8)
        run.export(tmp_path / "policy", to="numpy")
    assert (tmp_path / "policy" / "act.py").read_text().startswith('"""dqn on FrozenLake-v1 after 8 steps, exported')
    assert cli.main(["evaluate", folder, "--episodes", "1"]) == 0
    assert capsys.readouterr().out.startswith("dqn on FrozenLake-v1 after 8 steps: return")


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
