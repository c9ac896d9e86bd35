"""Custom metrics go wherever the built-in ones go; films and lines of events."""

import io
import json
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from events_of_a_run import collected
from PIL import Image

import etude
from etude import cli
from etude.base.data import Batch
from etude.base.errors import CallbackError, ConfigError
from etude.base.events import Collected, Saved, Warned, WorkerReplaced
from etude.report import EventLines, JsonLines, Plasticity, Progress, TensorBoard, Video, read_records
from etude.report.records import MetricsRecorder
from etude.report.series import of_metric
from etude.training.callbacks import Metrics


def with_metric(step, *values):
    event = collected(step, 1.0)
    return Collected(step, event.episodes, event.seconds, {"pole_angle": np.array(values)})


def run_of(**more):
    return etude.Run("ppo", "CartPole-v1", engine="torch", seed=1, environments=4, rollout_length=25, epochs=1, **more)


def test_mean_minimum_and_maximum_are_over_all_values_of_an_interval():
    recorder = MetricsRecorder(100)
    assert recorder(with_metric(50, 1.0, 3.0)) == []
    assert recorder(with_metric(100, 8.0)) == []
    (record,) = recorder(collected(150, 1.0))
    assert (record["rollout/pole_angle_mean"], record["rollout/pole_angle_min"], record["rollout/pole_angle_max"]) == (
        4,
        1,
        8,
    )
    assert recorder(collected(200, 1.0)) == []
    assert "rollout/pole_angle_mean" not in recorder(collected(250, 1.0))[0]
    assert recorder(WorkerReplaced(200, 0, (0,), "exited")) == [], "the warning says it"


def test_a_metric_reaches_every_reporter_and_the_plot(tmp_path, capsys):
    tensorboard = pytest.importorskip("tensorboardX")
    lines, board = JsonLines(tmp_path / "run" / "metrics.jsonl", 100), TensorBoard(tmp_path / "board", 100)
    (tmp_path / "run").mkdir()
    from rich.console import Console

    printed = io.StringIO()
    progress = Progress(Console(file=printed, width=200))
    with run_of() as run:
        run.metric("pole_angle", lambda steps: np.abs(steps.observation[..., 2]))
        run.train(400, [lines, board, progress])
    for reporter in (lines, board, progress):
        reporter.close()
    records = [json.loads(line) for line in lines.path.read_text().splitlines()]
    means = [record["rollout/pole_angle_mean"] for record in records if "rollout/pole_angle_mean" in record]
    assert len(means) == 4
    assert all(0 < mean < 0.42 for mean in means)
    assert "pole_angle" in printed.getvalue()
    written = b"".join(path.read_bytes() for path in (tmp_path / "board").iterdir())
    assert b"rollout/pole_angle_mean" in written
    assert b"rollout/pole_angle\x2a" in written, "the tag of the histogram, and what follows it"
    assert tensorboard is not None
    for name in ("pole_angle", "rollout/pole_angle_max", "train/entropy"):
        assert cli.main(["plot", str(tmp_path / "run"), "--metric", name]) == 0
        assert (tmp_path / "run" / f"{name.replace('/', '_')}.png").stat().st_size > 1000
    assert cli.main(["plot", str(tmp_path / "run"), "--metric", "angle"]) == 2
    assert "There is no metric 'angle' in these records; there are" in capsys.readouterr().err
    np.testing.assert_allclose(of_metric(records, "pole_angle").returns, means)


def test_a_metric_is_replaced_and_removed_by_its_name():
    seen = []
    with run_of() as run:
        run.metric("m", lambda steps: 1.0)
        run.metric("m", lambda steps: [2.0] * len(steps.episodes))
        look = lambda event: seen.append(event.metrics) if isinstance(event, Collected) else None  # noqa: E731
        run.train(100, look)
        run.metric("m", None)
        run.train(100, look)
        with pytest.raises(ConfigError, match="There is no metric 'm' to remove; the run has: none"):
            run.metric("m", None)
        for wrong in ("", " m", "ep_rew", 3):
            with pytest.raises(ConfigError, match="metric name ="):
                run.metric(wrong, len)
        with pytest.raises(ConfigError, match="metric 'm' = 3; expected a function of steps"):
            run.metric("m", 3)
    assert set(seen[0]["m"]) == {2.0}
    assert seen[-1] == {}


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"workers": 2, "overlap": True}])
def test_a_metric_that_raises_is_one_clear_error_and_the_run_is_saved(settings, tmp_path):
    def pole_angle(steps):
        raise IndexError("no third entry")

    events = []
    with run_of(**settings, run_dir=tmp_path / "run") as run:
        run.metric("pole_angle", pole_angle)
        with pytest.raises(IndexError, match=r"Metric 'pole_angle' raised IndexError: no third entry .* step 100"):
            run.train(400, events.append)
        assert run.step == 100
    assert sum(isinstance(event, Collected) for event in events) == 1, "what came before the error is not lost"
    assert isinstance(events[-1], Saved)
    with etude.load(tmp_path / "run") as again:
        assert again.step == 100


@pytest.mark.parametrize("wrong", ["many", [1.0, 2.0, 3.0], None])
def test_a_metric_of_another_shape_is_refused(wrong):
    with run_of() as run:
        run.metric("m", lambda steps: wrong)
        with pytest.raises(CallbackError, match=r"Metric 'm' returned .*expected a number, an array \[T, N\] = "):
            run.train(100)


def test_nan_is_no_value():
    metrics = Metrics(())
    metrics.set("m", lambda steps: np.where(steps.reward > 0, steps.reward, np.nan))
    with run_of() as run:
        for event in run.steps(100):
            if isinstance(event, Collected):
                assert metrics(event.steps, 100)["m"].shape == (100,)
                metrics.set("m", lambda steps: np.nan)
                assert metrics(event.steps, 100) == {}


def test_steps_batches_and_episodes_are_summarised_as_text():
    with run_of(keep_info=("nothing",)) as run:
        for event in run.steps(100):
            if isinstance(event, Collected):
                lines = event.steps[0].summary().splitlines()
    assert lines[0].split() == ["name", "shape", "dtype", "min", "max", "mean"]
    rows = {line.split()[0]: line for line in lines}
    assert "(25, 4, 4)" in rows["observation"]
    assert rows["reward"].split()[-4:] == ["float32", "1", "1", "1"]
    assert rows["extras.info.nothing"].split()[-1] == "float32", "NaN alone has no range"
    ones = np.ones((2,), np.float32)
    batch = Batch({"a": ones, "b": ones}, ones, ones, ones, None, ones, ones, {"log_prob": -ones})
    assert "observation.a" in batch.summary()
    assert "next_observation" not in batch.summary()


def test_every_event_is_a_line():
    stream = io.StringIO()
    lines = EventLines(stream)
    for event in (with_metric(1_000, 1.0, 3.0), Warned(7, "look here")):
        lines(event)
    first, second = stream.getvalue().splitlines()
    assert first == "step 1,000  Collected  returns 1  seconds 0.01  pole_angle 2"
    assert second == "step 7  Warned  message look here"


def test_films_are_taken_while_training_and_change_no_number(tmp_path):
    with run_of() as filmed, run_of() as alone:
        filmed.train(250, Video(every=100, folder=tmp_path / "films", max_steps=20, format="gif"))
        alone.train(250)
        for name, weight in alone.engine.weights().items():
            np.testing.assert_array_equal(weight, filmed.engine.weights()[name])
    names = sorted(path.name for path in (tmp_path / "films").iterdir())
    assert names == ["step-0.gif", "step-100.gif", "step-200.gif", "step-250.gif"]


class Shaded(gym.Env):
    """Renders its task."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    task = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def render(self):
        return np.full((16, 16, 3), 50 * self.task, np.uint8)


def test_films_show_the_present_task_or_one_of_their_own(tmp_path):
    with etude.Run("dqn", Shaded, engine="torch") as run:
        run.set_task(2)
        films = [Video(8, tmp_path / "present", format="gif"), Video(8, tmp_path / "own", format="gif", task=4)]
        run.train(8, films)
    for folder, shade in (("present", 100), ("own", 200)):
        assert abs(Image.open(tmp_path / folder / "step-8.gif").convert("L").getextrema()[1] - shade) < 5
    with pytest.raises(ConfigError, match="expected plain data"):
        Video(8, task=object())


def test_what_cannot_be_filmed_is_said_before_the_first_step(tmp_path):
    from gymnasium.envs.classic_control import CartPoleEnv

    with etude.Run("ppo", lambda: CartPoleEnv(), engine="torch") as run:
        with pytest.raises(ConfigError, match="Callback Video raised ConfigError: .*render_mode"):
            run.train(100, Video(100, tmp_path))
        assert run.step == 0
    for wrong in ({"every": 0}, {"every": 10, "format": "avi"}, {"every": 10, "max_steps": 0.5}):
        with pytest.raises(ConfigError, match="Video: "):
            Video(**wrong)


def test_plasticity_is_measured_by_gradient_steps_and_changes_no_number(tmp_path):
    steady = {"learning_rate": 1e-3, "epsilon": 0.5}  # whatever the length of a part
    small = {"network": etude.Mlp((8,)), "learning_starts": 64, "train_every": 16, "gradient_steps": 8}
    config = etude.config("dqn", **small, **steady)
    found, weights = [], []
    for name, parts in (("plain", (200,)), ("whole", (200,)), ("parts", (110, 90))):
        lines = JsonLines(tmp_path / f"{name}.jsonl", 1)
        run = etude.Run("dqn", "CartPole-v1", engine="torch", seed=1, environments=1, config=config)
        for steps in parts:
            run.train(steps, [lines] if name == "plain" else [lines, Plasticity(every=12)])
            run.save(tmp_path / "run.etude")
            weights.append(run.engine.weights())
            run.close()
            run = etude.load(tmp_path / "run.etude")
        run.close()
        records = read_records(lines.path)
        found.append([(r["step"], r["train/q_dormant"]) for r in records if "train/q_dormant" in r])
    # The 12th, 24th, 36th ... gradient step are within the phases that end with these
    assert [step for step, _ in found[1]] == [80, 96, 128, 144, 176, 192]
    assert found[0] == [] and found[2] == found[1]
    for each in (weights[1], weights[3]):
        assert all(np.array_equal(x, weights[0][name]) for name, x in each.items())


def test_plasticity_without_steps_and_without_gradients_and_what_it_refuses(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl", 1)
    with etude.Run("es", "CartPole-v1", engine="torch", environments=2, network=etude.Mlp((4,))) as run:
        run.train(100, [lines, Plasticity(every=1)])
    names = {name for record in read_records(lines.path) for name in record}
    assert any(name.endswith("_weight_norm") for name in names) and not any("dormant" in name for name in names)
    for wrong in ({"every": 0}, {"rows": 2.5}, {"tau": 1.0}, {"delta": -0.1}):
        with pytest.raises(ConfigError, match=f"Plasticity: {next(iter(wrong))} = .*; expected a"):
            Plasticity(**wrong)
