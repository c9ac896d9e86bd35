import dataclasses
import gc
import json

import numpy as np
import pytest
from events_of_a_run import a_run, evaluated_of_two, of_two, started
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Finished
from etude.envs import ConfiguredEnvironment
from etude.report import Curve, JsonLines, draw_episodes, draw_run, draw_runs, plot, read_records, read_run
from etude.report.pictures import legend
from etude.report.series import EVALUATION, TRAINING, Series, aggregate, compared, find_runs
from etude.training.assembly.described import plain_environment


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
    assert len(draw_run(run).axes) == 2 and len(draw_run(dataclasses.replace(run, adjusted={})).axes) == 1
    assert not read_run(tmp_path, "train/batch_size").adjusted


def test_the_only_number_of_a_configuration_is_a_point_also_where_nan_follows():
    wide, alone = (
        series([100, 200, 300], [1.0, 2.0, 3.0], [1, 1, 1]),
        series([100, 200, 300], [4.0, np.nan, np.nan], [1] * 3),
    )
    figure = draw_runs([wide, dataclasses.replace(alone, algorithm="ppo")])
    looks = {line.get_label(): line.get_marker() for line in figure.axes[0].lines}
    assert looks == {"dqn": "None", "ppo": "."}


def test_a_seed_that_has_one_number_is_a_point_beside_its_mean():
    seeds = [series([100], [value], [1]) for value in (1.0, 3.0)]
    figure = draw_runs([dataclasses.replace(each, seed=str(i)) for i, each in enumerate(seeds)])
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines] == [[[100, 1]], [[100, 3]], [[100, 2]]]


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
    _, mean, low, high = aggregate(curves, "bootstrap", "mean")
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


def test_steps_are_named_as_the_run_counts_them(tmp_path):
    runs = [read_run(written(tmp_path / kind, steps=kind)) for kind in ("environment", "gradient")]
    figures = draw_run(runs[1]), draw_runs(runs)
    assert [each.axes[0].get_xlabel() for each in figures] == [
        "gradient steps", "environment steps or gradient steps",
    ]  # fmt: skip


def test_pictures_have_a_panel_for_each_environment(tmp_path):
    runs = [
        read_run(written(tmp_path / f"{algorithm}{env}{seed}", seed=seed, algorithm=algorithm, env=env))
        for algorithm in ("dqn", "ppo")
        for env in ("CartPole-v1", "Acrobot-v1")
        for seed in (0, 1)
    ]
    figure = draw_runs(runs)
    assert [axes.get_title() for axes in figure.axes] == ["Acrobot-v1", "CartPole-v1"]
    assert [entry.get_text() for entry in figure.legends[0].get_texts()] == ["dqn", "ppo"]
    for axes in figure.axes:
        assert [to_hex(line.get_color()).upper() for line in axes.lines] == ["#0072B2", "#D55E00"]


def lines(*runs, labels=()):
    panels, _, notes = compared(runs, labels)
    return {line.label: [run.seed for run in line.runs] for panel in panels.values() for line in panel}, notes


def test_runs_of_another_configuration_are_another_line_named_by_what_differs(tmp_path):
    runs = [
        read_run(written(tmp_path / f"{rate}{seed}", seed=seed, config={"learning_rate": rate, "gamma": 0.99}))
        for rate in (0.1, 0.2)
        for seed in (0, 1)
    ]
    found, notes = lines(*runs)
    assert found == {"learning_rate=0.1": ["0", "1"], "learning_rate=0.2": ["0", "1"]}
    assert not notes


def test_runs_of_other_environment_arguments_or_frames_are_another_line(tmp_path):
    given = [ConfiguredEnvironment("FrozenLake-v1", {"is_slippery": slips}, (), 2) for slips in (True, False)]
    runs = [read_run(written(tmp_path / str(i), made_from=plain_environment(env))) for i, env in enumerate(given)]
    assert list(lines(*runs)[0]) == [f"environment_args.is_slippery={slips}" for slips in (True, False)]
    given = [ConfiguredEnvironment("FrozenLake-v1", {}, (), frames) for frames in (1, 4)]
    runs = [read_run(written(tmp_path / f"{i}f", made_from=plain_environment(env))) for i, env in enumerate(given)]
    assert list(lines(*runs)[0]) == ["frame_stack=1", "frame_stack=4"]


def test_a_schedule_is_one_difference(tmp_path):
    falling = {"class": "Linear", "start": 0.001, "end": 0.0, "fraction": 1.0}
    configs = [{"learning_rate": rate} for rate in (falling, 0.5)]
    runs = [read_run(written(tmp_path / str(i), config=config)) for i, config in enumerate(configs)]
    assert list(lines(*runs)[0]) == ["learning_rate=0.001:0:1", "learning_rate=0.5"]
    for i, more in enumerate(({"steps": None, "then": []}, {"steps": 100, "then": [[200, 0.5]]})):  # since it has them
        runs.append(read_run(written(tmp_path / f"since {i}", config={"learning_rate": falling | more})))
    expected = ["learning_rate=0.001:0:1", "learning_rate=0.5", "learning_rate=0:0.001,100:0,200:0.5"]
    assert list(lines(*runs)[0]) == expected


def test_many_differences_are_counted(tmp_path):
    configs = [dict.fromkeys("abcde", i) for i in range(2)]
    runs = [read_run(written(tmp_path / str(i), config=config)) for i, config in enumerate(configs)]
    assert list(lines(*runs)[0]) == ["a=0 b=0 c=0 and 2 more", "a=1 b=1 c=1 and 2 more"]


def test_the_same_seed_twice_is_no_second_seed_and_the_longest_is_drawn(tmp_path):
    short, long = (read_run(written(tmp_path / str(until), until=until)) for until in (6_000, 10_000))
    panels, _, notes = compared([long, short])
    assert list(panels) == ["dqn on CartPole-v1"] and "1 of 2 runs repeat a seed" in notes[0]
    ((line,),) = panels.values()
    assert [run.evaluated[-1] for run in line.runs] == [10_000]


def test_labels_say_which_runs_are_one_line(tmp_path):
    runs = [read_run(written(tmp_path / str(seed), seed=seed, config={"x": seed})) for seed in range(3)]
    assert lines(*runs, labels=["old", "new", "new"])[0] == {"old": ["0"], "new": ["1", "2"]}
    with pytest.raises(ConfigError, match="2 labels for 3 runs"):
        draw_runs(runs, tmp_path / "x.png", labels=["old", "new"])


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
    monkeypatch.setattr("etude.report.plots.draw_run", lambda run, path: drawn.append(run))
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
    monkeypatch.setattr("etude.report.plots.draw_run", lambda run, path: drawn.append(run.steps[-1]))
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


def test_the_curve_of_each_of_several_agents_is_drawn_from_evaluations_or_else_from_training(tmp_path):
    events = [started(), of_two(1_000, (3.0, -3.0)), evaluated_of_two(1_000, (4.0, -4.0)), of_two(2_000, (5.0, -5.0))]
    for more, expected in (
        ([], ([1_000, 2_000], [3, 5])),
        ([evaluated_of_two(2_000, (6.0, 0.0))], ([1_000, 2_000], [4, 6])),
    ):
        reporter = JsonLines(tmp_path / "metrics.jsonl")
        for event in [*events, *more, Finished(2_000, "steps", 1.0, {})]:
            reporter(event)
        reporter.close()
        run = read_run(tmp_path)
        assert [points.tolist() for points in run.by_agent["ann"]] == [*expected]
        assert list(run.by_agent) == ["ann", "bob"]
    assert [entry.get_text() for entry in draw_run(run).legends[0].get_texts()][-2:] == ["ann", "bob"]


# -- what is measured of a picture -------------------------------------------------------------------------------------


def many(configurations, seeds=1, evaluations=20):
    """Runs of so many learning rates and seeds, whose returns grow with both."""
    rng = np.random.default_rng(0)
    rates = np.exp(rng.uniform(np.log(1e-5), np.log(1e-2), configurations))
    steps = np.linspace(0, 100_000, evaluations)
    return [
        Series(
            "ppo", "CartPole-v1", str(seed), np.empty(0), np.empty(0), np.empty(0), steps,
            tuple(500 * np.sqrt(steps / 1e5 * (i + 1) / configurations)[:, None] + rng.normal(0, 20, (len(steps), 5))),
            configuration={"gamma": "0.99", "learning_rate": repr(float(rate))},
        )
        for i, rate in enumerate(rates) for seed in range(seeds)
    ]  # fmt: skip


def check_layout(figure, panels=1):
    """Boxes lie in the figure and do not overlap; panels have most of it; text is readable in 400 pixels."""
    figure.draw_without_rendering()
    whole, boxes = figure.bbox, [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for i, box in enumerate(boxes):
        assert min(box.x0 - whole.x0, whole.x1 - box.x1, box.y0 - whole.y0, whole.y1 - box.y1) >= -1, box
        for other in boxes[:i]:
            apart = max(box.x0 - other.x1, other.x0 - box.x1, box.y0 - other.y1, other.y0 - box.y1)
            assert apart >= -1, (box, other)
    inches = [axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted()) for axes in figure.axes]
    assert all(each.height > 1.25 for each in inches), inches
    assert sum(each.width for each in inches) > 0.65 * figure.get_size_inches()[0]
    texts = [text for text in figure.findobj(lambda each: hasattr(each, "get_fontsize")) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) / 72 * 400 / figure.get_size_inches()[0] >= 6.9


def entries(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("count", [1, 5, 14, 100, 1000])
def test_the_layout_holds_for_any_number_of_configurations(count):
    figure = draw_runs(many(count))
    check_layout(figure)
    found = entries(figure)
    assert len(found) == min(count, 8) and len(set(found)) == len(found)
    if count > 8:
        assert found[-1] == f"{count - 7} others"
        assert figure.legends[0].get_title().get_text() == f"the 7 highest of {count}; one seed each"
        own = [to_hex(line.get_color()) for line in figure.axes[0].lines]
        assert len(own) == len(set(own)) == 7
    for entry in set(found) - {f"{count - 7} others", "ppo"}:
        value = entry.removeprefix("learning_rate=")
        assert value == f"{float(value):.3g}"


@pytest.mark.parametrize("kind", ["curves", "profile", "improvement"])
@pytest.mark.parametrize("style", ["screen", "paper"])
def test_the_layout_holds_for_every_kind_and_style_of_picture(kind, style):
    check_layout(draw_runs(many(3, seeds=4), kind=kind, style=style))


def test_the_layout_holds_for_a_thousand_seeds_of_one_configuration():
    figure = draw_runs(many(1, seeds=1000, evaluations=5))
    check_layout(figure)
    assert figure.legends[0].get_title().get_text() == (
        "interquartile mean of 1000 seeds; shaded: 95 % interval; thin: each"
    )


def test_long_labels_leave_room_for_the_curves(tmp_path):
    names = [f"a_hyperparameter_with_a_long_name_{i}" for i in range(3)]
    configs = [dict.fromkeys(names, x * 1e-7) for x in (1, 2)]
    runs = [read_run(written(tmp_path / str(i), config=config)) for i, config in enumerate(configs)]
    check_layout(draw_runs(runs))


@pytest.mark.parametrize(("environments", "style"), [(1, "screen"), (2, "screen"), (1, "paper")])
def test_a_long_title_stays_above_its_panel(environments, style):
    names = [f"my_company.simulation.environments.warehouse:RobotArmReachingWithObstacles-v{i}" for i in range(2)]
    runs = [dataclasses.replace(each, environment=name) for each in many(1) for name in names[:environments]]
    check_layout(draw_runs(runs, style=style))
    check_layout(draw_run(runs[0], style=style))


def test_a_run_with_everything_that_it_may_have_keeps_its_layout(tmp_path):
    run = read_run(written(tmp_path))
    many_agents = {f"agent_{i}": (run.steps, run.returns + i) for i in range(12)}
    changed = {"batch_size": (np.array([0.0, 10_000.0]), np.array([32.0, 64.0]))}
    figure = draw_run(dataclasses.replace(run, by_agent=many_agents, adjusted=changed))
    check_layout(figure)
    assert len(entries(figure)) == 8 and "8 others" in entries(figure)


def test_configurations_that_three_digits_do_not_tell_apart_have_all():
    (run,) = many(1)
    runs = [dataclasses.replace(run, configuration={"x": value}) for value in ("0.12345", "0.12349", "0.2000001")]
    assert entries(draw_runs(runs)) == ["x=0.12345", "x=0.12349", "x=0.2"]


def test_numbers_of_schedules_have_three_digits_and_whole_ones_all():
    (run,) = many(1)
    values = ("0.00095957928:0:0.5", "[0.1234, 64]", "1.23456789e-05", "1234567", "none")
    runs = [dataclasses.replace(run, configuration={"x": value}) for value in values]
    assert list(lines(*runs)[0]) == ["x=0.00096:0:0.5", "x=[0.123, 64]", "x=1.23e-05", "x=1234567", "x=none"]


def test_seeds_without_a_common_step_are_thin_lines_and_a_note():
    runs = many(1, seeds=2)
    late = dataclasses.replace(runs[1], evaluated=runs[1].evaluated + 200_000)
    assert compared([runs[0], late]).notes == (
        "ppo on CartPole-v1: 1 of 1 lines have seeds without a common step. Each is thin.",
    )
    check_layout(draw_runs([runs[0], late]))


def test_all_lines_are_of_one_metric_which_the_axis_names(tmp_path):
    often = read_run(written(tmp_path / "often", config={"x": 1}))
    once = dataclasses.replace(often, evaluated=often.evaluated[:1], evaluations=often.evaluations[:1],
                               configuration={"x": "2"})  # fmt: skip
    never = dataclasses.replace(once, evaluated=np.empty(0), evaluations=())
    for runs, quantity in (([often, often], EVALUATION), ([often, once], TRAINING), ([often, never], TRAINING)):
        figure = draw_runs(runs)
        assert figure.axes[0].get_ylabel() == quantity
        for line in figure.axes[0].lines:
            assert line.get_xdata()[-1] == 10_000 and len(line.get_xdata()) == (5 if quantity == EVALUATION else 11)
    offline = dataclasses.replace(often, steps=np.empty(0), returns=np.empty(0), episodes=np.empty(0))
    found = compared([offline, dataclasses.replace(never, seed="7"), once])
    assert found.quantity == TRAINING and found.notes == (f"1 of 3 runs are left out: they have no {TRAINING}.",)


def test_a_metric_of_its_name_draws_training_or_evaluations_alone(tmp_path):
    path = written(tmp_path)
    training, evaluated = (read_run(path, name) for name in ("rollout/ep_rew_mean", "eval/mean_reward"))
    assert training.quantity == TRAINING and len(training.curve()[0]) == 11 and not len(training.evaluated)
    assert evaluated.quantity == EVALUATION and len(evaluated.curve()[0]) == 5 and not len(evaluated.steps)


def test_a_metric_has_one_point_a_step(tmp_path):
    run = read_run(written(tmp_path), "train/q")
    assert run.steps.tolist() == sorted({*range(1_000, 10_001, 1_000), 3_500, 7_000})
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in (
            {"step": 0, "started": {}}, {"step": 10, "train/q": 4.0}, {"step": 10, "train/q": 9.0},
            {"step": 20, "train/q": 3.0}, {"step": 20, "adjusted": "q", "before": 3.0, "after": 5.0, "train/q": 5.0},
        ))
    )  # fmt: skip
    assert read_run(tmp_path, "train/q").returns.tolist() == [4.0, 5.0]


@pytest.mark.parametrize("statistic, middle", [("iqm", 2.5), ("mean", 27.0), ("median", 2.5)])
def test_the_statistic_is_that_of_the_seeds_and_the_legend_names_it(statistic, middle):
    steps = np.array([0.0, 10.0])
    runs = [
        Series("ppo", "e", str(seed), np.empty(0), np.empty(0), np.empty(0), steps, (np.array([value]),) * 2)
        for seed, value in enumerate([1.0, 2.0, 3.0, 102.0])
    ]
    figure = draw_runs(runs, statistic=statistic)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [middle] * 2
    named = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}[statistic]
    assert figure.legends[0].get_title().get_text().startswith(f"{named} of 4 seeds; shaded: 95 %")
    with pytest.raises(ConfigError, match="statistic = 'mode'"):
        draw_runs(runs, statistic="mode")


@pytest.mark.parametrize("suffix, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_name_of_the_file_says_its_format(tmp_path, suffix, start):
    draw_runs(many(2), tmp_path / f"a.{suffix}", style="paper")
    assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)
    with pytest.raises(ConfigError, match=r"expected \.png, \.svg or \.pdf"):
        draw_runs(many(2), tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="style = 'poster'"):
        draw_runs(many(2), style="poster")


def test_plot_takes_directories_folders_and_records(tmp_path):
    for seed in (0, 1):
        written(tmp_path / str(seed), seed=seed)
    records = read_records(tmp_path / "0" / "metrics.jsonl")
    assert plot(tmp_path / "0").axes[0].get_title() == plot(records).axes[0].get_title() == "dqn on CartPole-v1, seed 0"
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot(records[:1])
    assert plot(tmp_path, metric="train/q", path=tmp_path / "q.svg").axes[0].get_ylabel() == "train/q"
    assert (tmp_path / "q.svg").exists()


def test_lines_without_names_have_no_legend():
    figure = Figure()
    figure.subplots().plot([1, 2])
    legend(figure)
    assert not figure.legends


def test_series_by_episode_say_which_episodes_they_are_of_and_over_how_many_is_averaged():
    rewards, losses = [float(i) for i in range(40)], [0.5, 0.25]
    above, below = draw_episodes({"reward": rewards, "loss": losses}).axes
    assert (above.get_title(), above.get_xlabel()) == ("reward of each episode, and mean over 2", "episode")
    assert above.lines[1].get_ydata().tolist() == [i + 0.5 for i in range(39)]
    assert above.lines[1].get_xdata().tolist() == list(range(2, 41))
    assert (below.get_title(), below.get_xlabel()) == ("loss of each episode", "episode with gradient steps")
    assert draw_episodes({"reward": rewards, "loss": []}).axes[1].lines[0].get_ydata().tolist() == []
