"""Learning from replayed transitions: whole small runs beside the slow program of `slow_replay`.

Which rows a batch may hold, what it says of them, their importance weights, the gradient steps of each phase, target
copies, schedules, normalisers, and the weights that rollouts act with are what these compute.
"""

import dataclasses
import functools

import gymnasium as gym
from drawing import drawn, pieces, scripts
from hypothesis import strategies as st
from scripted_worlds import ScriptedGoals, ScriptedWorld
from slow_replay import ActsByClock, SlowHindsight, SlowReplay, SlowSequences, trained
from value_agents import FIELDS, TICKS, Clock, ClockConfig, SequenceClock, SequenceClockConfig
from watched import Watched

import etude

CHANGED = (
    "batch_size", "learning_starts", "train_every", "gradient_steps", "n_step", "gamma", "target_update_every",
    "learning_rate", "importance_exponent",
)  # fmt: skip


class SlowClock(ActsByClock, SlowReplay):
    """Transitions."""


class SlowSequenceClock(ActsByClock, SlowSequences):
    """Sequences."""


class SlowGoalClock(ActsByClock, SlowHindsight):
    """Transitions under other goals."""


@drawn(
    few=3, many=50, script=scripts(), config=st.builds(ClockConfig, **FIELDS), environments=st.integers(1, 3),
    lengths=pieces(60), total=st.sampled_from([None, 60, 90]),
)  # fmt: skip
def test_transitions_are_stored_drawn_weighted_and_counted_as_the_papers_say(
    script, config, environments, lengths, total
):
    slow = SlowClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    with etude.Run(Clock(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths, total)


@drawn(
    few=3, many=40, script=scripts(), config=st.builds(ClockConfig, **FIELDS), environments=st.integers(1, 3),
    changed=st.lists(st.fixed_dictionaries({}, optional={name: FIELDS[name] for name in CHANGED}), max_size=3),
    lengths=st.lists(st.integers(1, 30), min_size=4, max_size=4),
)  # fmt: skip
def test_a_run_that_goes_on_with_changed_fields_owes_nothing_and_forgets_nothing(
    folder, script, config, environments, changed, lengths
):
    path, slow = folder / "run.etude", SlowClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    with etude.Run(Clock(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths[:1])
        run.save(path)
    for fields, length in zip(changed, lengths[1:], strict=False):
        slow.config = dataclasses.replace(slow.config, **fields)
        with etude.load(path, world, agent=Clock(slow.config)) as run:
            trained(run, slow, [length])
            run.save(path)


SEQUENCES = {
    **FIELDS,
    "sequence_length": st.integers(3, 6),
    "burn_in": st.sampled_from([1, 2, 0]),
    "stored_state": st.sampled_from([True, False]),
}


@drawn(
    few=2, many=25, script=scripts(), config=st.builds(SequenceClockConfig, **SEQUENCES),
    environments=st.integers(1, 3), lengths=pieces(35),
)  # fmt: skip
def test_sequences_are_runs_of_one_episode_from_the_state_that_it_was_acted_in(script, config, environments, lengths):
    slow = SlowSequenceClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedWorld, script, TICKS)
    with etude.Run(SequenceClock(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths)


GOALS = {
    **FIELDS,
    "hindsight": st.sampled_from(["future", "final", "episode"]),
    "hindsight_goals": st.integers(1, 4),
    "clip_reward": st.just(False),
    "normalize_observation": st.just(False),
}


@drawn(
    few=2, many=30, script=scripts(), config=st.builds(ClockConfig, **GOALS), environments=st.integers(1, 3),
    lengths=pieces(35),
)  # fmt: skip
def test_goals_are_those_that_were_achieved_and_rewards_are_those_of_the_goals(script, config, environments, lengths):
    slow = SlowGoalClock(config, environments, script, TICKS)
    world = functools.partial(ScriptedGoals, script, TICKS)
    with etude.Run(Clock(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths)


class WatchedDQN(Watched, etude.algorithms.DQN):
    """DQN, watched."""


@drawn(
    few=2, many=25, script=scripts(masks=3), environments=st.integers(1, 3), lengths=pieces(40),
    epsilon=st.sampled_from([0.0, 1.0, 0.5]),
)  # fmt: skip
def test_masks_that_come_and_go_are_obeyed_at_every_step(script, environments, lengths, epsilon):
    space = gym.spaces.Discrete(3)
    config = etude.config(
        "dqn", epsilon=epsilon, learning_starts=3, train_every=4, batch_size=5, buffer_size=30, network=etude.Mlp((4,))
    )
    slow = SlowReplay(config, environments, script, space)
    world = functools.partial(ScriptedWorld, script, space)
    with etude.Run(WatchedDQN(config), world, environments=environments, engine="torch") as run:
        trained(run, slow, lengths)
