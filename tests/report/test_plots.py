import json

import numpy as np
import pytest
from events_of_a_run import a_run
from matplotlib.axes import Axes
from matplotlib.image import imread

from etude.errors import ConfigError
from etude.report import Curve, JsonLines, draw_run, draw_runs, read_run
from etude.report.plots import Series, aggregate


def series(steps, returns, episodes):
    empty = np.array([])
    return Series("dqn", "e", "0", np.array(steps), np.array(returns), np.array(episodes), empty, ())


def written(path, **about):
    path.mkdir(exist_ok=True)
    reporter = JsonLines(path / "metrics.jsonl")
    for event in a_run(**about):
        reporter(event)
    reporter.close()
    return path


def test_smoothing_weighs_every_episode_the_same():
    run = series(np.arange(1.0, 41.0), [1.0, 4.0] * 20, [3.0, 1.0] * 20)  # a twentieth of 40 intervals: two
    smooth = run.smoothed()
    assert smooth[0] == 1.0
    np.testing.assert_allclose(smooth[1:], (3 * 1.0 + 1 * 4.0) / 4)


def test_the_band_runs_from_the_lowest_to_the_highest_seed_on_the_steps_that_all_cover():
    curves = [
        (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0])),
        (np.array([0.0, 20.0, 40.0]), np.array([4.0, 24.0, 99.0])),
    ]
    steps, mean, low, high = aggregate(curves, "range")
    assert steps.tolist() == [0.0, 10.0, 20.0]
    assert mean.tolist() == [2.0, 12.0, 22.0]
    assert low.tolist() == [0.0, 10.0, 20.0]
    assert high.tolist() == [4.0, 14.0, 24.0]


def test_the_bootstrap_interval_of_the_mean_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(1)
    curves = [(np.arange(200.0), rng.normal(0.0, 1.0, 200)) for _ in range(40)]
    _, mean, low, high = aggregate(curves, "bootstrap")
    assert np.all((low < mean) & (mean < high))
    # 200 points, each 40 seeds: the percentile bootstrap covers slightly less than 95 %
    assert 0.85 < np.mean((low < 0) & (high > 0)) <= 1.0
    np.testing.assert_allclose(np.mean(high - low), 2 * 1.96 / np.sqrt(40), rtol=0.15)


def test_one_seed_has_no_spread():
    curve = (np.array([1.0, 2.0]), np.array([5.0, 6.0]))
    _, mean, low, high = aggregate([curve], "bootstrap")
    assert mean.tolist() == low.tolist() == high.tolist() == [5.0, 6.0]


def test_a_run_read_back_has_what_its_events_said(tmp_path):
    run = read_run(written(tmp_path, seed=3))
    assert (run.algorithm, run.environment, run.seed) == ("dqn", "CartPole-v1", "3")
    assert run.evaluated.tolist() == [2_000, 4_000, 6_000, 8_000, 10_000]
    assert [len(returns) for returns in run.evaluations] == [5] * 5
    assert run.episodes.sum() == 10_000 / 250 * 3


def test_steps_are_named_as_the_run_counts_them(tmp_path, monkeypatch):
    named = []
    monkeypatch.setattr(Axes, "set_xlabel", lambda axes, text, **how: named.append(text))
    runs = [read_run(written(tmp_path / kind, steps=kind)) for kind in ("environment", "gradient")]
    draw_run(runs[1], tmp_path / "one.png")
    draw_runs(runs, tmp_path / "both.png")
    assert named == ["gradient steps", "environment steps or gradient steps"]


def test_pictures_have_a_panel_for_each_environment(tmp_path):
    runs = [
        read_run(written(tmp_path / f"{algorithm}{env}{seed}", seed=seed, algorithm=algorithm, env=env))
        for algorithm in ("dqn", "ppo")
        for env in ("CartPole-v1", "Acrobot-v1")
        for seed in (0, 1)
    ]
    draw_run(runs[0], tmp_path / "one.png")
    draw_runs(runs, tmp_path / "all.png")
    one, both = imread(tmp_path / "one.png"), imread(tmp_path / "all.png")
    assert both.shape[1] == 2 * one.shape[1]
    colours = {tuple(np.round(255 * np.array(pixel[:3])).astype(int)) for pixel in both[::2, ::2].reshape(-1, 4)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # blue and vermilion: both algorithms are there


def test_the_curve_is_there_when_the_run_ends_and_of_a_resumed_run_whole(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("etude.report.curve.draw_run", lambda run, path: drawn.append(run))
    written(tmp_path, until=7_000)
    curve = Curve(tmp_path / "curve.png", clock=lambda: 0.0)
    for event in a_run(start=7_000):
        curve(event)
    (run,) = drawn
    assert run.steps[0] == 1_000
    assert run.steps[-1] == 10_000
    assert run.evaluated.tolist() == [2_000, 4_000, 6_000, 8_000, 10_000]


def test_the_curve_is_drawn_now_and_then(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("etude.report.curve.draw_run", lambda run, path: drawn.append(run.steps[-1]))
    now = [0.0]
    curve = Curve(tmp_path / "curve.png", seconds=60.0, clock=lambda: now[0])
    for event in a_run():
        now[0] += 1.0
        curve(event)
    assert 1 < len(drawn) < 4
    assert drawn[-1] == 10_000


def test_what_cannot_be_drawn_is_explained(tmp_path):
    with pytest.raises(ConfigError, match="No metrics at"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "started": {}}) + "\n")
    with pytest.raises(ConfigError, match="nothing to draw"):
        read_run(tmp_path)
