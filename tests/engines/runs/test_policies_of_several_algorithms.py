"""Policies of different algorithms in one environment, where values are known."""

import dataclasses

import numpy as np
import pytest
from several_worlds import Coming, Counting, Meeting
from test_values_of_several_agents import DQN as DQN_CONFIG
from test_values_of_several_agents import GAMMA
from test_values_of_several_agents import PPO as PPO_CONFIG

from etude import Run
from etude.algorithms import DQN, PPO
from etude.base import trees
from etude.envs import make_environments
from etude.multi_agent.joint import ACTING

RARELY = dataclasses.replace(DQN_CONFIG, gradient_steps=25)  # of every 100 steps: PPO learns more slowly


def trained(policies, env, engine_name, steps, **more):
    with Run(policies, env, engine=engine_name, environments=4, seed=1, **more) as run:
        run.train(steps)
        return run


def values_of(run, observation):
    """What each agent takes its observation to be worth, by name."""
    acts = run.engine.act(observation)
    found = {}
    for policy, engine in run.engine.of.items():
        own = engine.spaces.agents
        if isinstance(run.agent.members[policy].prototype, DQN):
            found |= {name: values.max() for name, values in zip(own, acts[policy], strict=True)}
        else:
            subset = run.agent.subsets[policy].observation(observation)
            found |= dict(zip(own, engine.value(subset)[0].tolist(), strict=True))
    return found


def found_values(run, env):
    """The values on average over the steps of one episode on which an agent acts, in the order of the names."""
    environments = make_environments(env, np.arange(1), run_seed=0)
    space, values, acted, final = environments.spaces.action, 0.0, 0.0, {}
    observation = environments.reset()
    while not final:
        acting = observation["status"][0] == ACTING
        found = values_of(run, observation)
        values = values + np.array([found[name] for name in environments.spaces.agents]) * acting
        acted = acted + acting
        observation, _, _, _, final = environments.step(np.zeros((1, *space.shape), space.dtype))
    return (values / acted).tolist()


@pytest.mark.long_but("4000")
@pytest.mark.one_engine("jax")
@pytest.mark.parametrize(
    ("env", "policies", "steps"),
    [
        (Coming, {"early": DQN(RARELY), "late": PPO(PPO_CONFIG), "joins": DQN(RARELY)}, 4_000),
        (Counting, {"first": PPO(PPO_CONFIG), "second": DQN(DQN_CONFIG)}, 5_000),
    ],
)
def test_each_policy_learns_what_its_own_agents_earn(env, policies, steps, engine_name):
    run = trained(policies, env, engine_name, steps)
    assert found_values(run, env) == pytest.approx(env.values(GAMMA), rel=0.1)


@pytest.mark.one_engine("jax")
def test_policies_of_different_algorithms_learn_to_act_together(engine_name):
    run = trained({"ann": PPO(PPO_CONFIG), "bob": DQN(DQN_CONFIG)}, Meeting, engine_name, 1_500)
    assert run.evaluate(episodes=20).mean > 1.85


def test_numpy_acts_for_all_policies_as_the_engines_do(engine_name):
    run = trained({"ann": PPO(PPO_CONFIG), "bob": DQN(DQN_CONFIG)}, Meeting, engine_name, 250)
    side = np.array([[-1.0], [0.5], [1.0]], np.float32)
    seen = {"agents": {"ann": side, "bob": -side}, "status": np.ones((3, 2), np.int8)}
    outputs = [
        [trees.leaves(acting.act(seen)[name]) for name in ("ann", "bob")] for acting in (run.actor(), run.engine)
    ]
    for mine, theirs in zip(*outputs, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
