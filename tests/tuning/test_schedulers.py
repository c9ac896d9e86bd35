"""Which trials go on, stop and are copied. Trials here are numbers: nothing is trained."""

from __future__ import annotations

import dataclasses
import math

import pytest
from study_worlds import TINY

from etude.base.errors import ConfigError
from etude.tuning import (
    ASHA,
    PBT,
    Copy,
    Fifo,
    Genome,
    Go,
    Log,
    MedianStopping,
    New,
    OptunaSearch,
    Score,
    Space,
    Stop,
    StudyPlan,
    Uniform,
)
from etude.tuning.trial import StudyState, Trial

SPACE = Space(TINY, {"learning_rate": Log(1e-5, 1e-1), "gamma": Uniform(0.9, 1.0)})
LENGTHS = Space(TINY, {"rollout_length": [8, 16]})


def play(scheduler, plan, score, search=None):
    """Carry out a study whose trials score `score(configuration, step, trial)`; (trials, steps taken)."""
    trials: list[Trial] = []
    state = StudyState(plan, SPACE, trials)
    scheduler.check(state)
    while decisions := scheduler.decide(state):
        for each in sorted(decisions, key=lambda each: not isinstance(each, Copy)):  # before its parent goes on
            if isinstance(each, New):
                number = len({trial.configuration for trial in trials})
                values = search.propose(number, state) if search else {}
                for seed in plan.seeds:
                    genome = Genome("ppo", SPACE.config(values), seed)
                    trials.append(Trial(len(trials), genome, number, until=each.until))
                    take(trials[-1], plan, each.until, score)
            elif isinstance(each, Go):
                take(trials[each.trial], plan, each.until, score)
            elif isinstance(each, Stop):
                trials[each.trial].status = "stopped"
            elif isinstance(each, Copy):
                trials[each.replaces].status, parent = "stopped", trials[each.parent]
                trials.append(
                    Trial(len(trials), each.genome, len(trials), each.parent, parent.until, change=each.change)
                )
                trials[-1].step = trials[-1].started = parent.step
                take(trials[-1], plan, each.until, score)
    return trials, sum(trial.taken for trial in trials)


def take(trial, plan, until, score):
    trial.until = until
    for step in range(trial.step + plan.evaluate_every, until + 1, plan.evaluate_every):
        value = score(trial, step)
        if value is None:
            trial.status, trial.reason = "failed", "it does"
            return
        trial.add(Score(step, (value,)))
        trial.step = step
    trial.checkpoint = "saved"
    trial.status = "finished" if until == plan.steps else "paused"


def test_fifo_takes_every_trial_to_its_end_in_order():
    trials, steps = play(Fifo(), StudyPlan(100, 10, 3, (1, 2)), lambda trial, step: 0.0)
    assert steps == 600 and [trial.genome.seed for trial in trials] == [1, 2] * 3
    assert all(trial.status == "finished" for trial in trials)


def test_asha_takes_the_best_third_from_rung_to_rung():
    scheduler, plan = ASHA(), StudyPlan(900, 100, 9)
    assert scheduler.rungs(StudyState(plan, SPACE, [])) == [100, 300, 900]
    trials, steps = play(scheduler, plan, lambda trial, step: -trial.configuration)
    assert [trial.until for trial in trials] == [900, 300, 300, *[100] * 6]
    assert steps == 900 + 2 * 300 + 6 * 100 <= 0.4 * 9 * 900


def test_asha_promotes_early_and_still_finds_the_best_of_a_rising_order_in_the_steps_of_successive_halving():
    trials, steps = play(ASHA(), StudyPlan(900, 100, 9), lambda trial, step: trial.configuration)
    assert trials[8].status == "finished"
    assert [trial.until for trial in trials] == [100, 100, 300, 100, 100, 300, 100, 100, 900]
    assert steps == 900 + 2 * 300 + 6 * 100


def test_asha_counts_what_is_on_its_way_to_the_next_rung():
    plan, trials = StudyPlan(900, 100, 9), []
    for number in range(6):
        trials.append(Trial(number, Genome("ppo", TINY, 0), number, until=100))
        take(trials[-1], plan, 100, lambda trial, step: -trial.configuration)
    for promoted in trials[:2]:
        promoted.until, promoted.status = 300, "running"
    assert ASHA().decide(StudyState(plan, SPACE, trials)) == [New(100)], "the third of six went on"


def test_asha_never_promotes_what_failed_and_takes_one_to_the_end_where_rungs_are_too_small():
    def score(trial, step):
        return None if trial.configuration == 1 else float(trial.configuration)

    trials, _ = play(ASHA(min_steps=100, reduction=4), StudyPlan(800, 100, 3), score)
    assert [trial.status for trial in trials] == ["paused", "failed", "finished"]


def test_where_none_got_to_the_end_asha_takes_the_best_of_the_highest_rung_there():
    plan, trials = StudyPlan(900, 100, 3), []
    for number, until in enumerate((300, 100, 100)):
        trials.append(Trial(number, Genome("ppo", TINY, 0), number, until=until))
        take(trials[-1], plan, until, lambda trial, step: float(trial.configuration))
    assert ASHA().decide(StudyState(plan, SPACE, trials)) == [Go(0, 900)]


def test_the_score_of_a_configuration_is_the_mean_over_its_seeds_in_asha():
    def score(trial, step):  # the first seed of configuration 0 alone is the best of all
        return {0: 10.0 if trial.genome.seed == 1 else 0.0, 1: 6.0, 2: 1.0}[trial.configuration]

    trials, _ = play(ASHA(), StudyPlan(300, 100, 3, (1, 2)), score)
    assert [trial.status for trial in trials if trial.configuration == 1] == ["finished"] * 2
    assert [trial.until for trial in trials if trial.configuration == 0] == [100] * 2


def test_median_stopping_stops_what_stays_below_the_median_of_the_others():
    trials, _ = play(MedianStopping(), StudyPlan(100, 10, 6), lambda trial, step: float(-trial.configuration))
    assert [trial.status for trial in trials] == ["finished"] * 3 + ["stopped"] * 3
    assert all(trial.step == 10 for trial in trials[3:])


def test_pbt_replaces_the_worst_by_changed_copies_of_the_best():
    scheduler, plan = PBT(every=10, resample=0.0), StudyPlan(20, 10, 8)
    trials, steps = play(scheduler, plan, lambda trial, step: float(-trial.number))
    copies = [trial for trial in trials if trial.parent is not None]
    assert len(copies) == 2 and steps == 8 * 20
    assert {trials[i].status for i in (6, 7)} == {"stopped"} and {trial.parent for trial in copies} <= {0, 1}
    for copy in copies:
        before, after = trials[copy.parent].genome.config, copy.genome.config
        assert after.learning_rate / before.learning_rate == pytest.approx(0.8) or after.learning_rate == pytest.approx(
            1.2 * before.learning_rate
        )
        assert 0.9 <= after.gamma <= 1.0 and copy.genome.seed != trials[copy.parent].genome.seed
        assert dataclasses.replace(after, learning_rate=before.learning_rate, gamma=before.gamma) == before


def test_pbt_replaces_members_that_failed_and_ends_where_all_did():
    def score(trial, step):
        return None if trial.number in (0, 1, 2) else 0.0

    trials, _ = play(PBT(every=10), StudyPlan(30, 10, 4), score)
    assert sum(trial.status == "finished" for trial in trials) == 4
    trials, _ = play(PBT(every=10), StudyPlan(30, 10, 4), lambda trial, step: None)
    assert [trial.status for trial in trials] == ["failed"] * 4


def test_optuna_comes_closer_to_the_best_than_its_first_draws():
    def score(trial, step):
        return -abs(math.log10(trial.genome.config.learning_rate) + 3)

    plan = StudyPlan(10, 10, 40, seed=1)
    trials, _ = play(Fifo(), plan, score, OptunaSearch(options={"n_startup_trials": 6}))
    again, _ = play(Fifo(), StudyPlan(10, 10, 8, seed=1), score, OptunaSearch(options={"n_startup_trials": 6}))
    assert [trial.genome for trial in trials[:8]] == [trial.genome for trial in again]
    means = [sum(trial.score() for trial in part) / 12 for part in (trials[:12], trials[-12:])]
    assert means[1] > 0.5 * means[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHA(reduction=1), "at least 2"),
        (lambda: PBT(share=0.9), "0.5 at most"),
        (lambda: PBT(factors=()), "above 0"),
        (lambda: OptunaSearch("grid"), "tpe"),
        (lambda: OptunaSearch(options={"no": 1}), "options"),
        (lambda: ASHA().check(StudyState(StudyPlan(10, 10, 9), SPACE, [])), "Evaluate more often"),
        (lambda: PBT().check(StudyState(StudyPlan(100, 10, 4, (1, 2)), SPACE, [])), "one seed"),
        (lambda: MedianStopping().check(StudyState(StudyPlan(100, 10, 3), SPACE, [])), "3 others"),
        (
            lambda: PBT().check(StudyState(StudyPlan(100, 10, 4), Space(TINY, {"rollout_length": [8, 16]}), [])),
            "cannot",
        ),
    ],
)
def test_schedulers_refuse_what_they_cannot_use(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
