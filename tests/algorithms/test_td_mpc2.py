"""What TD-MPC2 plans, and what its config refuses."""

import dataclasses

import numpy as np
import pytest
from gymnasium.spaces import Box

from etude import Mlp
from etude.algorithms import TDMPC2, TDMPC2Config
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine

SPACES = Spaces(Box(-1.0, 1.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32))
CONFIG = TDMPC2Config(
    network=Mlp((16,), layer_norm=True),
    encoder=Mlp((16,)),
    latent_size=8,
    sequence_length=2,
    n_plans=256,
    n_policy_plans=4,
    n_elites=32,
    least_std=0.01,
)


class Rewarded(TDMPC2):
    """A model that is given: the reward is highest for one action, whatever the state."""

    best = np.array([0.6, -0.3], np.float32)

    def _value_of(self, z, plans):
        distance = np.square(plans - self.best).sum((-2, -1))
        return np.asarray(-2 * distance, np.float32)


def test_plans_are_refitted_to_the_best_ones():
    engine = NumpyEngine(Rewarded(CONFIG), SPACES)
    observation = np.zeros((3, 3), np.float32)
    found = engine.act(observation)
    np.testing.assert_allclose(found.mean, np.tile(Rewarded.best, (3, 1)), atol=0.1)
    once = NumpyEngine(Rewarded(dataclasses.replace(CONFIG, iterations=1)), SPACES).act(observation)
    assert (found.log_std < once.log_std).all()


def test_the_value_of_a_plan_is_that_of_a_slow_program_that_rolls_the_model_out():
    engine = NumpyEngine(TDMPC2(CONFIG), SPACES)
    rng = np.random.default_rng(1)
    engine.load(
        {name: x + np.float32(0.3) * rng.standard_normal(x.shape, np.float32) for name, x in engine.weights().items()}
    )
    agent = engine.layout.bind(engine.weights())
    z = agent.encode(rng.uniform(-1, 1, (2, 3)).astype(np.float32))
    plans = rng.uniform(-1, 1, (2, 5, 2, 2)).astype(np.float32)
    found = agent._value_of(z, plans)
    values = np.linspace(-CONFIG.largest, CONFIG.largest, CONFIG.bins)

    def number(logits):
        mean = np.exp(logits - logits.max()) @ values / np.exp(logits - logits.max()).sum()
        return np.sign(mean) * (np.exp(abs(mean)) - 1)

    for n in range(2):
        for s in range(5):
            state, total, goes_on = z[n : n + 1], 0.0, 1.0
            for t in range(2):
                action = plans[n : n + 1, s, t]
                total += goes_on * number(agent.model["reward"]((state, action))[0])
                state = agent.following(state, action)
                goes_on *= CONFIG.gamma / (1 + np.exp(agent.model["termination"](state)[0, 0]))
            last = agent.model["critic"]((state, agent.policy_at(state).mode()))
            total += goes_on * np.mean([number(logits[0]) for logits in last])
            assert found[n, s] == pytest.approx(total, rel=1e-3, abs=1e-4)


def test_a_row_is_planned_for_as_it_is_alone():
    engine = NumpyEngine(TDMPC2(CONFIG), SPACES)
    observation = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    together = engine.act(observation)
    for i in range(4):
        alone = engine.act(observation[i : i + 1])
        np.testing.assert_allclose(together.mean[i], alone.mean[0], atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"simplex_size": 3}, "expected a multiple"),
        ({"n_elites": 257}, "expected at most all of them"),
        ({"n_policy_plans": 256}, "fewer than all by the policy"),
        ({"n_critics": 1}, "expected 2 or more"),
        ({"burn_in": 1}, "from the first step of a sequence on"),
        ({"n_step": 3}, "Leave them at 0, False, 1"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changed)
