"""What a run shows of itself in Python and in a notebook: its line, its curve, its config, its history."""

import dataclasses
import importlib.util
from typing import ClassVar

import numpy as np
import pytest
from run_makers import DQN_TINY, tiny
from run_worlds import Counted

import etude
from etude.algorithms import DQNConfig, PPOConfig
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Finished, Warned
from etude.offline import Dataset
from etude.report import JsonLines, RunHistory
from etude.run import Run
from etude.training.evaluate import Evaluation


def test_a_run_is_a_line_and_a_small_curve_in_a_notebook():
    with tiny(seed=3) as run:
        assert repr(run) == "<Run: dqn on Counted, step 0, torch, seed 3>"
        assert run._repr_html_().count("<svg") == 0
        run.train(2_400, schedule=etude.Schedule(evaluate_every=1_200, evaluate_episodes=1, evaluate_max_steps=10))
        last = [record for record in run.history if "eval/mean_reward" in record][-1]["eval/mean_reward"]
        assert f"step 2,400, return {last:.1f}, {run.engine.name}, seed 3>" in repr(run)
        shown = run._repr_html_()
        assert type(run.plot()).__name__ == "Figure"
    assert shown.startswith("<div><code>&lt;Run: dqn on")
    assert shown.count("<polyline") == 1
    assert "return per episode" in shown


def test_the_history_of_a_run_is_what_its_metrics_file_holds(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(1_200, save_every=600)
        steps = [record["step"] for record in run.history]
        assert run.config == DQN_TINY and isinstance(run.history, list)
    assert steps == [record["step"] for record in etude.report.read_records(tmp_path / "mine" / "metrics.jsonl")]
    loaded = etude.load(tmp_path / "mine", Counted)
    assert [record["step"] for record in loaded.history] == steps[:-1]  # up to its save
    loaded.close()
    with etude.resume(tmp_path / "mine", Counted) as again:
        again.train(400)
        assert [record["step"] for record in again.history][: len(steps) - 1] == steps[:-1]
        assert again.history[-1]["finished"] == "steps"
        assert again.history[-1]["step"] == 1_600
        assert again.history == etude.report.read_records(tmp_path / "mine" / "metrics.jsonl")


def test_a_long_history_keeps_every_second_record_of_training_and_all_others(monkeypatch):
    monkeypatch.setattr(etude.report.records, "MOST", 6)
    history = RunHistory()
    history += [{"step": 1000 * i, "time/fps": 1.0} for i in range(1, 6)]
    history.insert(2, {"step": 2000, "eval/mean_reward": 5.0})
    history(Warned(6000, "slow"))
    assert [record["step"] for record in history] == [1000, 2000, 3000, 5000, 6000]


def test_a_reporter_of_ones_own_may_write_the_file_of_the_directory(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(1_200, JsonLines(run.directory.metrics, every=200))
    records = etude.report.read_records(tmp_path / "mine" / "metrics.jsonl")
    assert [record["step"] for record in records if "time/fps" in record] == list(range(200, 1_201, 200))


def test_a_run_of_a_file_alone_begins_its_history_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "rollout/ep_rew_mean": 7.0}\n')
    with tiny() as run:
        run.train(40)
        run.save("mine.etude")
    with etude.load("mine.etude", Counted) as loaded:
        assert loaded.history == []


def test_resume_goes_on_in_the_directory_and_closes_it_again(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(40)
    with etude.resume(tmp_path / "mine", Counted, dataclasses.replace(DQN_TINY, learning_rate=1e-4)) as run:
        run.train(20)
        assert (run.step, run.config.learning_rate) == (60, 1e-4)
        with pytest.raises(ConfigError, match="Another run is writing"):
            etude.resume(tmp_path / "mine", Counted)
    assert 60 in run.directory.saved()
    with pytest.raises(ConfigError, match="is a file. Give the run directory"):
        etude.resume(run.directory.saved()[60])
    with pytest.raises(CheckpointError, match="There is no run to resume"):
        etude.resume(tmp_path)


def test_a_history_is_a_frame_of_pandas_or_of_polars(monkeypatch):
    history = RunHistory()
    with tiny() as run:
        for event in run.steps(1_200):
            history(event)
    numbers = [record for record in history if "rollout/ep_rew_mean" in record]

    class Frames:
        made: ClassVar[list] = []

        def DataFrame(self, rows, **options):
            self.made.append((rows, options))
            return self

    def installed(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in names else None)
        monkeypatch.setattr(importlib, "import_module", lambda name: Frames())

    for names, options in (("pandas", "polars"), {}), (("polars",), {"infer_schema_length": None}):
        installed(*names)
        history.frame()
        rows, given = Frames.made[-1]
        assert given == options
        assert [row["step"] for row in rows if "rollout/ep_rew_mean" in row] == [record["step"] for record in numbers]
        assert all(isinstance(value, int | float) for row in rows for value in row.values())
    installed()
    with pytest.raises(ConfigError, match="pip install pandas"):
        history.frame()


def test_configs_show_what_differs_from_their_defaults():
    assert repr(DQNConfig()) == "DQNConfig()"
    network = etude.Mlp((8,), layer_norm=True)
    config = PPOConfig(gamma=0.9, learning_rate=etude.Linear(0.1, 0.0), network=network)
    assert eval(repr(config), {**vars(etude.algorithms), "Linear": etude.Linear, "Mlp": etude.Mlp}) == config
    assert repr(config) == (
        "PPOConfig(network=Mlp(widths=(8,), layer_norm=True), learning_rate=Linear(start=0.1, end=0.0), gamma=0.9)"
    )

    @dataclasses.dataclass(frozen=True)
    class Own(DQNConfig):
        penalty: float = 0.5

    assert repr(Own(penalty=1.0)).endswith("Own(penalty=1.0)")


def test_results_and_data_are_one_line_each():
    assert repr(Evaluation((1.0, 3.0), (5, 7))) == (
        "<Evaluation: return 2.0 ± 1.0 over 2 episodes (lowest 1.0, highest 3.0, mean length 6)>"
    )
    small = "<Evaluation: return 1.5e-09 ± 5e-10 over 2 episodes (lowest 1e-09, highest 2e-09, mean length 6)>"
    assert repr(Evaluation((1e-9, 2e-9), (5, 7))) == small
    assert "return 2e+30 ± 0.0 over 1 episodes (lowest 2e+30, " in repr(Evaluation((2e30,), (5,)))
    assert "return 0.0 ± 0.0 over 1 episodes (lowest 0.0, " in repr(Evaluation((-0.0,), (5,)))
    assert repr(Evaluation((), (), metrics={"wins": 0.25})) == "<Evaluation: wins 0.25>"
    totals = {"episodes": 1200, "gradient_steps": 30}
    expected = "<Finished at step 9,000 (steps) after 2.5 s, 1,200 episodes, 30 gradient steps>"
    assert repr(Finished(9_000, "steps", 2.5, totals)) == expected
    data = etude.record("CartPole-v1", 2)
    assert repr(data) == (
        f"<Dataset of CartPole-v1: 2 episodes, {len(data)} transitions, mean return {data.returns.mean():.1f}>"
    )
    assert repr(Dataset((), data.source)) == "<Dataset: 0 episodes, 0 transitions>"


def test_studies_and_sweeps_are_a_line_and_a_table(tmp_path):
    with etude.Study("dqn", "CartPole-v1", {"gamma": [0.9, 0.99]}, steps=100, folder=tmp_path / "study") as study:
        expected = "<Study of dqn-CartPole-v1: 0 of 2 configurations: 0 under way; 0 steps>"
        assert repr(study) == expected
        assert study._repr_html_().startswith("<div><code>&lt;Study of dqn-CartPole-v1")
    with etude.tuning.Sweep("dqn", "CartPole-v1", seeds=3, steps=100, folder=tmp_path / "sweep") as sweep:
        assert repr(sweep) == "<Sweep of dqn-CartPole-v1: 0 of 3 seeds finished, 0 failed>"
        assert repr(sweep.result) == f"<SweepResult in {tmp_path / 'sweep'}: No seed has finished an episode yet.>"
        assert sweep.result._repr_html_().count("<tr>") == 4


def test_record_says_what_films():
    with pytest.raises(ConfigError, match=r"For a video: run.watch\('x.mp4'\)"):
        etude.record("CartPole-v1", "x.mp4")


def test_the_package_lists_what_is_public():
    assert dir(etude) == sorted([*etude.__all__, "__version__"])


@pytest.mark.parametrize(
    ("name", "there"),
    [("learn", "`train`"), ("predict", "`act`"), ("env", "run.environment"), ("logger", "run.history.frame"),
     ("num_timesteps", "run.step"), ("render", "run.watch")],
)  # fmt: skip
def test_words_of_other_libraries_are_answered(name, there):
    run = object.__new__(Run)
    with pytest.raises(AttributeError, match=there):
        getattr(run, name)


def test_errors_of_python_name_no_options_of_the_command_line(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(40)
    with pytest.raises(ConfigError) as refused:
        tiny(run_dir=tmp_path / "mine")
    assert "--" not in str(refused.value) and "run_dir=." in str(refused.value)
    assert "run_dir= (--run-dir)." in refused.value.with_options
    assert np.array_equal(str(ConfigError("a (b) -- c (--x 1).")), "a (b) -- c.")
