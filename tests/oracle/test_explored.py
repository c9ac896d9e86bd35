"""Exploration, and what is drawn at random: noise in layers, schedules of exploration, frequencies, and the draws of
copies of a run."""

import dataclasses
import functools

import gymnasium as gym
import numpy as np
import pytest
from drawing import drawn, pieces, scripts
from hypothesis import strategies as st
from scripted_worlds import Script, ScriptedGoals, ScriptedWorld
from slow_replay import ActsByClock, SlowReplay, key, rows_of, trained
from value_agents import FIELDS, TICKS, Clock, ClockConfig, NoisyClock
from watched import Collection, calls, watch

import etude
from etude.adapt import Adapt
from etude.tuning.evolution import Mutations, mutated

SCRIPT = (Script(7), Script(4, "truncated"))
LONG = functools.partial(ScriptedWorld, SCRIPT, TICKS)


class SlowClock(ActsByClock, SlowReplay):
    """Transitions."""


@drawn(
    few=2, many=20, script=scripts(), environments=st.integers(1, 3), lengths=pieces(80), every=st.integers(1, 9),
    starts=st.sampled_from([0, 30, 200]),
)  # fmt: skip
def test_noise_in_layers_is_drawn_anew_with_every_phase_and_where_one_would_be_due(
    script, environments, lengths, every, starts
):
    """Fortunato et al. 2018: a policy acts with one draw until the next phase, also while learning has not begun."""
    config = ClockConfig(learning_starts=starts, train_every=every, batch_size=2)
    world, acted, step = functools.partial(ScriptedWorld, script, gym.spaces.Discrete(97)), [set()], 0
    with etude.Run(NoisyClock(config), world, environments=environments, engine="torch") as run:
        for length in lengths:
            for entry in watch(run, length):
                if isinstance(entry, Collection):
                    acted[-1] |= {int(action) for part in entry.steps for action in part.action.reshape(-1)}
                    if entry.step // every > step // every:
                        acted.append(set())
                    step = entry.step
    phases = [actions for actions in acted if actions]
    assert all(len(actions) == 1 for actions in phases)
    drawn_anew = sum(one != two for one, two in zip(phases, phases[1:], strict=False))
    assert drawn_anew >= 0.7 * (len(phases) - 1) - 1


def test_as_many_actions_are_random_as_the_schedule_says_at_each_step():
    config = ClockConfig(learning_starts=10**6, epsilon=etude.Linear(1.0, 0.1, 0.5))
    with etude.Run(Clock(config), LONG, environments=3, engine="torch") as run:
        steps = [part for entry in watch(run, 3_000) for part in entry.steps]
    greedy = np.concatenate([part.action for part in steps]) == 0  # [T, N]
    for start in range(0, 1_000, 100):
        each = [1.0 - 0.9 * min(1.0, 3 * t / 1_500) for t in range(start, start + 100)]
        expected, variance = 3 * sum(1 - p for p in each), 3 * sum(p * (1 - p) for p in each)
        assert abs(greedy[start : start + 100].sum() - expected) <= 5 * variance**0.5 + 1


class Frequencies(SlowClock):
    """Counts how often the rows of a full replay were drawn, by their age, and how often they should have been."""

    def check_batch(self, call, batch):
        rows, drawn_rows = self.stored(), [row.number for row in batch]
        weights = np.array([self.priority(row) for row in rows])
        self.found += [drawn_rows.count(row.number) for row in rows]
        self.expected += len(batch) * weights / weights.sum()


@pytest.mark.parametrize("exponent", [0.0, 0.8])
def test_rows_are_drawn_alike_or_by_their_priorities(exponent):
    config = ClockConfig(
        learning_starts=30, train_every=1, gradient_steps=4, batch_size=32, buffer_size=20, priority_exponent=exponent
    )
    slow = Frequencies(config, 1, SCRIPT, TICKS)
    slow.found, slow.expected = np.zeros(20), np.zeros(20)
    with etude.Run(Clock(config), LONG, environments=1, engine="torch") as run:
        trained(run, slow, [79])
    assert slow.found.sum() == 50 * 4 * 32
    assert ((slow.found - slow.expected) ** 2 / slow.expected).sum() < 43.8  # 19 degrees of freedom, one in a thousand


def test_as_many_goals_are_relabelled_as_the_config_says():
    world = functools.partial(ScriptedGoals, (Script(9),), TICKS)
    config = ClockConfig(
        learning_starts=60, train_every=2, batch_size=64, hindsight="final", hindsight_goals=3, buffer_size=60
    )
    with etude.Run(Clock(config), world, environments=1, engine="torch") as run:
        steps = watch(run, 120)
    relabelled = of_others = 0
    for call in calls(steps):
        for achieved, goal, observation in zip(
            call.observation["achieved_goal"], call.observation["desired_goal"], rows_of(call.observation), strict=True
        ):
            seed, _ = key(observation)
            if seed // 9 % 2 == 0 and seed % 3 != seed // 3 % 3:  # achieves the same all the time, and not its own goal
                of_others += 1
                relabelled += goal[0] == achieved[0]
    assert of_others > 300
    assert abs(relabelled - 0.75 * of_others) < 5 * (of_others * 0.75 * 0.25) ** 0.5


def copy_of(run, seed=None, **probabilities):
    """A child of a run."""
    none = dict.fromkeys(("none", "architecture", "parameters", "hyperparameters"), 0.0)
    return mutated(run, Mutations(**{**none, **probabilities}), np.random.default_rng(3), seed)[0]


def test_a_child_draws_rows_and_noise_of_its_own_and_a_run_that_goes_on_draws_the_same(tmp_path):
    config = ClockConfig(learning_starts=20, train_every=2, batch_size=8)
    world = functools.partial(ScriptedWorld, SCRIPT, gym.spaces.Discrete(997))
    with etude.Run(NoisyClock(config), world, environments=1, engine="torch", seed=4) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
        with copy_of(run, none=1.0) as child, copy_of(run, 77, none=1.0) as other:
            found = []
            with etude.load(tmp_path / "run.etude", world, agent=NoisyClock(config)) as again:
                for one in (run, again, child, other):
                    entries = watch(one, 20)
                    steps = [part for entry in entries if isinstance(entry, Collection) for part in entry.steps]
                    rows = np.concatenate([call.observation[:, :3] for call in calls(entries)])
                    found.append((rows, np.concatenate([part.action for part in steps])))
    (rows, actions), (rows_again, actions_again), *others = found
    np.testing.assert_array_equal(rows, rows_again)
    np.testing.assert_array_equal(actions, actions_again)
    for i, (rows_own, actions_own) in enumerate(others):
        assert np.mean((rows_own == rows).all(-1)) < 0.5
        assert np.mean(actions_own[4:] == actions[4:]) < 0.5
        for other_rows, other_actions in others[:i]:
            assert np.mean((rows_own == other_rows).all(-1)) < 0.5
            assert np.mean(actions_own[4:] == other_actions[4:]) < 0.5


@drawn(
    few=2, many=20, script=scripts(), config=st.builds(ClockConfig, **FIELDS), environments=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 40), min_size=3, max_size=3), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_mutated_child_goes_on_from_its_parents_steps_and_owes_none_of_its_gradient_steps(
    script, config, environments, lengths, seed
):
    slow = SlowClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    select = ("train_every", "batch_size", "gradient_steps", "target_update_every", "n_step")
    changes = Mutations(
        0.0, 0.0, parameters=0.0, hyperparameters=1.0, select=select, step=1.0, limits=dict.fromkeys(select, (1, 12))
    )
    rng, run = np.random.default_rng(seed), etude.Run(Clock(config), world, environments=environments, engine="torch")
    for length in lengths:
        trained(run, slow, [length])
        child, _ = mutated(run, changes, rng)
        run.close()
        run, slow.config = child, child.agent.config
    trained(run, slow, [20])
    run.close()


RULES = [Adapt("ess", name, target=target, every=2, rate=2.0)
         for name in ("train_every", "batch_size", "gradient_steps") for target in (0.1, 0.9)]  # fmt: skip


@drawn(
    few=2, many=20, script=scripts(), config=st.builds(ClockConfig, **FIELDS), environments=st.integers(1, 3),
    lengths=pieces(60),
    rules=st.lists(st.sampled_from(RULES), min_size=1, max_size=2, unique_by=lambda rule: rule.hyperparameter),
)  # fmt: skip
def test_what_rules_have_adapted_counts_from_the_phase_after(script, config, environments, lengths, rules):
    config = dataclasses.replace(config, adapt=tuple(rules), batch_size=4, train_every=4, gradient_steps=2)
    slow = SlowClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    with etude.Run(Clock(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths)


@drawn(few=0, many=2, script=scripts(), config=st.builds(ClockConfig, **FIELDS), lengths=pieces(40, 3))
def test_workers_act_with_the_weights_of_the_last_phase(script, config, lengths):
    slow = SlowClock(config, 4, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    config = dataclasses.replace(config, buffer_size=max(config.buffer_size, 4))
    slow.config = config
    with etude.Run(Clock(config), world, environments=4, workers=2, engine="torch") as run:
        trained(run, slow, lengths)
