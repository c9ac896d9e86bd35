import dataclasses
import gc
import json

import numpy as np
import pytest
from events_of_a_run import a_run, evaluated_of_two, of_two, started
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from etude.base.errors import ConfigError
from etude.base.events import Adjusted
from etude.envs import ConfiguredEnvironment
from etude.report import Curve, JsonLines, draw_run, draw_runs, read_run
from etude.report.configurations import lines_in
from etude.report.plots import aggregate
from etude.report.series import Series, find_runs
from etude.training.build.described import plain_environment


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


def test_a_panel_below_has_the_hyperparameters_that_rules_have_changed(tmp_path):
    events = [
        *a_run(),
        Adjusted(700, "batch_size", 32.0, 64.0, "ess 0.2"),
        Adjusted(900, "batch_size", 64.0, 16.0, "ess 0.1"),
    ]
    events += [
        Adjusted(900, "gamma", 0.9, 0.9, "unchanged: why"),
        Adjusted(900, "optimizer.beta1", 0.0, 0.5, "ess 0.1"),
    ]
    reporter = JsonLines(tmp_path / "metrics.jsonl")
    for event in events:
        reporter(event)
    reporter.close()
    run = read_run(tmp_path)
    assert {name: [part.tolist() for part in parts] for name, parts in run.adjusted.items()} == {
        "batch_size": [[0, 700, 900, 10_000], [32, 64, 16, 16]],
        "optimizer.beta1": [[0, 900, 10_000], [0, 0.5, 0.5]],
    }
    draw_run(run, tmp_path / "both.png")
    draw_run(dataclasses.replace(run, adjusted={}), tmp_path / "one.png")
    heights = [imread(tmp_path / name).shape[0] for name in ("both.png", "one.png")]
    assert heights[0] == 2 * heights[1]
    assert not read_run(tmp_path, "train/batch_size").adjusted


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


def lines(*runs, labels=()):
    panels, notes = lines_in(runs, labels)
    return {line.label: [run.seed for run in line.runs] for panel in panels.values() for line in panel}, notes


def test_runs_of_another_configuration_are_another_line_named_by_what_differs(tmp_path):
    runs = [
        read_run(written(tmp_path / f"{rate}{seed}", seed=seed, config={"learning_rate": rate, "gamma": 0.99}))
        for rate in (0.1, 0.2)
        for seed in (0, 1)
    ]
    found, notes = lines(*runs)
    assert found == {"dqn learning_rate=0.1": ["0", "1"], "dqn learning_rate=0.2": ["0", "1"]}
    assert not notes


def test_runs_of_other_environment_arguments_or_frames_are_another_line(tmp_path):
    given = [ConfiguredEnvironment("FrozenLake-v1", {"is_slippery": slips}, (), 2) for slips in (True, False)]
    runs = [read_run(written(tmp_path / str(i), made_from=plain_environment(env))) for i, env in enumerate(given)]
    assert list(lines(*runs)[0]) == [f"dqn environment_args.is_slippery={slips}" for slips in (True, False)]
    given = [ConfiguredEnvironment("FrozenLake-v1", {}, (), frames) for frames in (1, 4)]
    runs = [read_run(written(tmp_path / f"{i}f", made_from=plain_environment(env))) for i, env in enumerate(given)]
    assert list(lines(*runs)[0]) == ["dqn frame_stack=1", "dqn frame_stack=4"]


def test_a_schedule_is_one_difference(tmp_path):
    falling = {"class": "Linear", "start": 0.001, "end": 0.0, "fraction": 1.0}
    configs = [{"learning_rate": rate} for rate in (falling, 0.5)]
    runs = [read_run(written(tmp_path / str(i), config=config)) for i, config in enumerate(configs)]
    assert list(lines(*runs)[0]) == ["dqn learning_rate=0.001:0:1", "dqn learning_rate=0.5"]
    for i, more in enumerate(({"steps": None, "then": []}, {"steps": 100, "then": [[200, 0.5]]})):  # since it has them
        runs.append(read_run(written(tmp_path / f"since {i}", config={"learning_rate": falling | more})))
    expected = ["dqn learning_rate=0.001:0:1", "dqn learning_rate=0.5", "dqn learning_rate=0:0.001,100:0,200:0.5"]
    assert list(lines(*runs)[0]) == expected


def test_a_long_label_leaves_room_for_the_curves(tmp_path, monkeypatch):
    names = [f"a_hyperparameter_with_a_long_name_{i}" for i in range(3)]
    runs = [read_run(written(tmp_path / str(x), config=dict.fromkeys(names, x * 1e-7))) for x in range(2)]
    shares = []

    def draw_then_look(figure, path, **how):
        figure.draw_without_rendering()
        (axes,) = figure.axes
        shares.append(axes.get_window_extent().width / figure.bbox.width)
        shares.append(axes.get_legend().get_window_extent().x1 / figure.bbox.width)
        savefig(figure, path, **how)

    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", draw_then_look)
    draw_runs(runs, tmp_path / "both.png")
    assert shares[0] > 0.4 and shares[1] <= 1.0


def test_many_differences_are_counted(tmp_path):
    configs = [dict.fromkeys("abcde", i) for i in range(2)]
    runs = [read_run(written(tmp_path / str(i), config=config)) for i, config in enumerate(configs)]
    assert list(lines(*runs)[0]) == ["dqn a=0 b=0 c=0 and 2 more", "dqn a=1 b=1 c=1 and 2 more"]


def test_the_same_seed_twice_is_no_second_seed_and_the_longest_is_drawn(tmp_path):
    short, long = (read_run(written(tmp_path / str(until), until=until)) for until in (6_000, 10_000))
    (panel,), notes = (list(part) for part in lines_in([long, short]))
    assert panel == "CartPole-v1" and "1 of 2 runs repeat a seed" in notes[0]
    ((line,),) = lines_in([long, short])[0].values()
    assert [run.steps[-1] for run in line.runs] == [10_000]


def test_labels_say_which_runs_are_one_line(tmp_path):
    runs = [read_run(written(tmp_path / str(seed), seed=seed, config={"x": seed})) for seed in range(3)]
    assert lines(*runs, labels=["old", "new", "new"])[0] == {"old": ["0"], "new": ["1", "2"]}
    with pytest.raises(ConfigError, match="2 labels for 3 runs"):
        draw_runs(runs, tmp_path / "x.png", labels=["old", "new"])


def test_the_legend_covers_no_curve(tmp_path, monkeypatch):
    beside = []

    def draw_then_look(figure, path, **how):
        figure.draw_without_rendering()
        for axes in figure.axes:
            beside.append(axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1 - 1)
        savefig(figure, path, **how)

    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", draw_then_look)
    runs = [read_run(written(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    draw_run(runs[0], tmp_path / "one.png")
    draw_runs(runs, tmp_path / "both.png")
    assert beside == [True, True]


def test_a_folder_stands_for_the_runs_in_it(tmp_path):
    for name in ("b", "a", "deep/c"):
        (tmp_path / name).mkdir(parents=True)
        written(tmp_path / name)
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a", "b", "deep/c"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="No run at"):
        find_runs(tmp_path / "empty")


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


def test_no_picture_of_the_curve_stays_in_memory(tmp_path):
    gc.collect()
    gc.disable()  # so that only the curve can have freed them
    try:
        curve = Curve(tmp_path / "curve.png", seconds=0.0)
        for event in a_run(until=1_000):
            curve(event)
        assert not [each for each in gc.get_objects() if isinstance(each, Figure)]
    finally:
        gc.enable()


def test_what_cannot_be_drawn_is_explained(tmp_path):
    with pytest.raises(ConfigError, match="No metrics at"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "started": {}}) + "\n")
    with pytest.raises(ConfigError, match="nothing to draw"):
        read_run(tmp_path)


def test_the_curve_of_each_of_several_agents_is_drawn_from_evaluations_or_else_from_training(tmp_path, monkeypatch):
    labels = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda axes, *points, **how: labels.append(how.get("label")) or plot(axes, *points, **how)
    )
    events = [started(), of_two(1_000, (3.0, -3.0)), evaluated_of_two(1_000, (4.0, -4.0)), of_two(2_000, (5.0, -5.0))]
    for more, expected in (
        ([], ([1_000, 2_000], [3, 5])),
        ([evaluated_of_two(2_000, (6.0, 0.0))], ([1_000, 2_000], [4, 6])),
    ):
        reporter = JsonLines(tmp_path / "metrics.jsonl")
        for event in [*events, *more]:
            reporter(event)
        reporter.close()
        run = read_run(tmp_path)
        assert [points.tolist() for points in run.by_agent["ann"]] == [*expected]
        assert list(run.by_agent) == ["ann", "bob"]
    draw_run(run, tmp_path / "one.png")
    assert labels[-2:] == ["ann", "bob"]
