import pytest
from events_of_a_run import a_run, collected, estimated, evaluated_of_two, of_two, started

from etude.base.events import Adjusted, Collected, Evaluated, Learned, Saving, Warned
from etude.report.records import MetricsRecorder, scalars


def test_a_record_holds_the_means_over_the_episodes_and_learn_calls_of_its_interval():
    now = [0.0]
    record = MetricsRecorder(every=100, clock=lambda: now[0])
    assert record(started()) == [{"step": 0, "started": started().description}]
    assert record(collected(50, 1.0, 2.0)) == []
    assert record(Learned(50, 5, {"q": 0.5}, {"td_error": 1.0}, 0.1)) == []
    assert record(Learned(60, 9, {"q": 1.5}, {}, 0.1)) == []
    now[0] = 2.0
    assert record(collected(100, 6.0)) == []  # the learn call of this step may follow
    assert record(collected(110)) == [
        {
            "step": 100,
            "rollout/ep_rew_mean": 3.0,
            "rollout/ep_rew_min": 1.0,
            "rollout/ep_rew_max": 6.0,
            "rollout/ep_len_mean": 10.0,
            "rollout/episodes": 3,
            "train/q": 1.0,
            "train/td_error": 1.0,
            "train/gradient_steps": 9,
            "time/fps": 50.0,
        }
    ]
    now[0] = 3.0
    assert record(collected(200)) == []
    assert record(Evaluated(200, (1.0,), (5,), True))[0] == {"step": 200, "time/fps": 100.0}


def test_an_interval_that_is_stepped_over_gives_one_record():
    record = MetricsRecorder(every=100)
    record(started())
    assert record(collected(950, 1.0)) == []
    assert [r["step"] for r in record(collected(999, 1.0))] == [950]
    assert record(collected(1000, 1.0)) == []
    assert [r["step"] for r in record(Learned(1000, 1, {}, {}, 0.1))] == [1000]


def test_training_has_one_record_a_step_also_where_a_save_or_an_evaluation_follows():
    record = MetricsRecorder(every=1_000)
    steps = [r["step"] for event in a_run(save_every=500) for r in record(event) if "train/q" in r]
    assert steps == sorted(set(steps)) and set(range(500, 10_001, 500)) == set(steps)
    steps = [r["step"] for event in a_run() for r in record(event) if "rollout/episodes" in r]
    assert steps == [1_000, 2_000, 3_000, 3_500, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000]


def test_a_save_ends_the_interval_so_that_nothing_is_carried_over_it():
    record = MetricsRecorder(every=100)
    record(started())
    record(collected(50, 4.0))
    assert record(Saving(50, "last"))[0]["rollout/ep_rew_mean"] == 4.0
    record(collected(100, 8.0))
    assert record(Saving(100, "last"))[0]["rollout/ep_rew_mean"] == 8.0


def test_a_resumed_run_writes_the_records_of_the_uninterrupted_one():
    def records(*runs):
        record = MetricsRecorder(every=1_000)
        found = [r for run in runs for event in run for r in record(event)]
        return [
            {k: v for k, v in r.items() if k != "time/fps"} for r in found if "started" not in r and "finished" not in r
        ]

    assert records(a_run()) == records(a_run(until=7_000), a_run(start=7_000))
    assert records(a_run()) != records(a_run(until=7_000), a_run(start=7_000, seed=1))


def test_scalars_are_the_numbers_that_belong_on_a_chart():
    record = MetricsRecorder()
    (evaluation,) = record(Evaluated(10, (1.0, 3.0), (5, 7), True))
    assert scalars(evaluation) == {"eval/mean_reward": 2.0, "eval/mean_ep_length": 6.0, "eval/cut_off": 0}
    (change,) = record(Adjusted(10, "learning_rate", 0.1, 0.05, "plateau"))
    assert scalars(change) == {"train/learning_rate": 0.05}
    (estimate,) = record(estimated(10))
    assert estimate["notes"] == ["far"] and scalars(estimate) == {
        "estimate/wis": 30.0, "estimate/wis_low": 25.0, "estimate/wis_high": 35.0, "estimate/wis_gain": 1.5,
        "estimate/wis_effective_episodes": 12.5, "estimate/wis_largest_weight": 3.0, "estimate/behaviour": 20.0,
    }  # fmt: skip
    (warning,) = record(Warned(10, "a worker was replaced"))
    assert scalars(warning) == {}


@pytest.mark.parametrize("tag", ["rollout/ep_rew_mean", "eval/mean_reward", "train/q", "time/fps"])
def test_a_run_has_the_tags_that_the_tools_of_the_field_show(tag):
    record = MetricsRecorder()
    assert any(tag in scalars(r) for event in a_run() for r in record(event))


def test_the_mean_return_of_each_of_several_agents_has_a_tag_of_its_own():
    record = MetricsRecorder(every=100)
    record(started())
    # Of the last one the returns by agent are not known: its beginning was in a checkpoint that did not hold them.
    record(Collected(100, (*of_two(100, (3.0, -3.0), (1.0, -1.0)).episodes, *collected(100, 6.0).episodes), 1.0))
    (training,) = record(Saving(100, "last"))
    assert training["rollout/ep_rew_mean"] == 2.0
    assert (training["rollout/ep_rew_mean/ann"], training["rollout/ep_rew_mean/bob"]) == (2.0, -2.0)
    (evaluation,) = record(evaluated_of_two(100, (3.0, -3.0), (0.0, 1.0)))
    assert scalars(evaluation) == {
        "eval/mean_reward": 0.5,
        "eval/mean_ep_length": 10.0,
        "eval/cut_off": 0,
        "eval/mean_reward/ann": 1.5,
        "eval/mean_reward/bob": -1.0,
    }
    assert evaluation["eval/returns/bob"] == [-3.0, 1.0]
