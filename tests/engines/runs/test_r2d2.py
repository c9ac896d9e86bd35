"""R2D2: its loss step by step, and what it learns where an agent without memory cannot."""

from functools import partial

import numpy as np
import pytest
from batches import LENGTH, pick, random_batches
from cases import CASES
from probes import Cue, returns_for_both_cues

from etude import Linear, Mlp, Recurrent, Run
from etude.algorithms import DQNConfig, R2D2Config
from etude.base import trees
from etude.base.errors import ConfigError
from etude.engines.numpy import NumpyEngine

CASES = [case for case in CASES if case.algorithm == "r2d2"]
NEVER = -1e9


def steps_of(network, observation, state):
    """One step for one environment: (values [n], memory [1, M])."""
    q, state = network(trees.map(lambda x: x[None], observation), state)
    return q[0], state


def sign_sqrt(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def inverse(x):
    root = (np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3)) - 1) / 2e-3
    return np.sign(x) * (root**2 - 1)


def error_of(agent, batch, b, t, run):
    """The temporal-difference error of step t of sequence b. run: (values, memories by both networks) by step."""
    scale, unscale = (sign_sqrt, inverse) if agent.config.rescale_values else (lambda x: x, lambda x: x)
    mask, end = batch.extras["mask"][b], t
    while end < t + agent.config.n_step - 1 and end + 1 < LENGTH and mask[end + 1]:
        end += 1
    following = agent.normaliser(trees.map(lambda x: x[b, end], batch.next_observation))
    online, late = (steps_of(net, following, run[end][1 + i])[0] for i, net in enumerate((agent.q, agent.q_target)))
    if agent.masked:
        online = np.where(following["action_mask"] > 0, online, NEVER)
    target = unscale(late[online.argmax()].astype(np.float64))
    for i in range(end, t - 1, -1):
        target = batch.reward[b, i] + batch.discount[b, i] * target
    return scale(target) - run[t][0][batch.action[b, t]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_loss_and_the_priorities_are_those_of_single_steps_of_each_sequence(case):
    engine = NumpyEngine(case.agent(), case.spaces)
    rng = np.random.default_rng(0)
    engine.load({n: v + rng.normal(0, 0.7, v.shape).astype(v.dtype) for n, v in engine.weights().items()})
    agent, batch = engine.layout.bind(engine.weights(), case.hyper()), pick(random_batches(case, 1, 5), 0)
    total, priorities = 0.0, []
    for b in range(5):
        start = batch.extras.get("recurrent_state", np.zeros((5, engine.state_size), np.float32))[b : b + 1]
        online, late, run = start, start, []
        for t in range(LENGTH):
            observation = agent.normaliser(trees.map(lambda x, t=t: x[b, t], batch.observation))  # noqa: B023
            q, online = steps_of(agent.q, observation, online)
            _, late = steps_of(agent.q_target, observation, late)
            run.append((q, online, late))
        errors = [error_of(agent, batch, b, t, run) for t in np.flatnonzero(batch.extras["mask"][b])]
        total += batch.weight[b] * 0.5 * np.square(errors).sum()
        priorities.append(0.9 * np.abs(errors).max() + 0.1 * np.abs(errors).mean())
    found = agent.loss(batch, {})["q"]
    assert float(found.value) == pytest.approx(total / batch.extras["mask"].sum(), rel=1e-4)
    np.testing.assert_allclose(found.td_error, priorities, rtol=1e-4, atol=1e-5)


DELAY = 5
OFF_POLICY = {"learning_rate": 3e-3, "learning_starts": 500, "train_every": 32, "epsilon": Linear(1.0, 0.1, 0.5)}
R2D2 = R2D2Config(
    **OFF_POLICY,
    network=Recurrent(Mlp((16,)), 16),
    sequence_length=DELAY + 1,
    burn_in=2,
    target_update_every=50,
    gradient_steps=2,
)
DQN = DQNConfig(**OFF_POLICY, network=Mlp((16,)), target_update_every=50, gradient_steps=2, n_step=1)


@pytest.mark.one_engine("jax")
def test_what_was_seen_at_the_beginning_is_acted_by_at_the_end(engine_name):
    with Run("r2d2", partial(Cue, DELAY), config=R2D2, engine=engine_name, environments=8, seed=1) as run:
        run.train(6_000)
        assert returns_for_both_cues(run, DELAY) == [1.0, 1.0]


@pytest.mark.variant
def test_an_agent_without_memory_acts_alike_for_both_cues(engine_name):
    with Run("dqn", partial(Cue, DELAY), config=DQN, engine=engine_name, environments=8, seed=1) as run:
        run.train(1_000)
        assert sum(returns_for_both_cues(run, DELAY)) == 0.0


def test_configs_refuse_what_cannot_be():
    with pytest.raises(ConfigError, match=r"burn_in = 5 of sequence_length = 5.*expected fewer"):
        R2D2Config(sequence_length=5, burn_in=5)
    with pytest.raises(ConfigError, match="priority_mix"):
        R2D2Config(priority_mix=1.5)
    with pytest.raises(ConfigError, match=r"keeps no recurrent state.*Recurrent\("):
        Run("r2d2", "CartPole-v1", config=R2D2Config(network=Mlp((8,))))
    with pytest.raises(
        ConfigError, match=r"whose recurrent state this algorithm does not keep.*recurrent_ppo and r2d2"
    ):
        Run("dqn", "CartPole-v1", config=DQNConfig(network=Recurrent()))
