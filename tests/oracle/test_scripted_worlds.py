"""What the other tests of this folder stand on: that scripted worlds are what their scripts say, and that watching
shows all of a run."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from drawing import drawn, scripts
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test
from scripted_worlds import Presence, Script, ScriptedAgents, ScriptedTurns, ScriptedWorld, index_of, label
from watched import Collection, Watched, phases, watch

import etude


class WatchedDQN(Watched, etude.algorithms.DQN):
    """DQN, watched."""


@drawn(few=3, many=40, script=scripts(), environments=st.integers(1, 3), steps=st.integers(1, 30))
def test_what_is_watched_of_a_run_is_what_its_world_did(script, environments, steps):
    world = functools.partial(ScriptedWorld, script, gym.spaces.Discrete(3))
    config = etude.config("dqn", learning_starts=0, train_every=5, batch_size=4, network=etude.Mlp((4,)))
    with etude.Run(WatchedDQN(config), world, environments=environments, engine="torch") as run:
        diary = watch(run, steps)
    collected = [part for entry in diary if isinstance(entry, Collection) for part in entry.steps]
    assert sum(map(len, collected)) == steps
    for part in collected:
        following = part.next_observations()
        for t, n in np.ndindex(part.shape):
            before, after = label(part.observation[t, n]), label(following[t, n])
            own = script[before.seed % len(script)]
            assert (after.seed, after.time) == (before.seed, before.time + 1)
            assert index_of(after.action) == part.action[t, n]
            assert part.reward[t, n] == own.reward(before.time)
            assert (part.terminated[t, n] or part.truncated[t, n]) == (after.time == own.length)
    assert all(len(call.reward) == 4 for phase in phases(diary) for call in phase.calls)
    assert sum(len(phase.calls) for phase in phases(diary)) == run.learner.progress.gradient_steps


@pytest.mark.filterwarnings("ignore")
def test_scripted_agents_pass_the_checks_of_pettingzoo():
    script = (
        Script(5, presence=(Presence(), Presence(2), Presence(0, 3))),
        Script(4, "truncated", presence=(Presence(None), Presence(), Presence(1, 2))),
    )
    parallel_api_test(ScriptedAgents(script, gym.spaces.Discrete(3), 3), 50)


@pytest.mark.filterwarnings("ignore")
def test_scripted_turns_pass_the_checks_of_pettingzoo():
    script = (Script(6, order=(0, 1, 1, 2)), Script(5, "truncated", order=(2, 0)))
    api_test(ScriptedTurns(script, gym.spaces.Discrete(3), 3), 50)
