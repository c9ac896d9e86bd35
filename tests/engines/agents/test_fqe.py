"""FQE on every engine: the same losses from the same numbers, the same values as in NumPy, and learning that goes on
bit for bit where it was restored."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from batches import pick, random_batches, random_values
from cases import BOX2, MASKED, NARROW, NESTED, Case

from etude import engines
from etude.base.data import Episode
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.estimation.fqe import FQE, TARGET, FQEConfig, fitted_values
from etude.estimation.target import TargetPolicy
from etude.explore import Sample
from etude.losses.distributions import Categorical
from etude.offline import Dataset
from etude.training.description import Execution

pytestmark = pytest.mark.variant("jax")  # TensorFlow: with --whole

EXPECTED = json.loads((Path(__file__).parent / "parity.json").read_text())
CONFIG = FQEConfig(network=NARROW, v_min=-5.0, v_max=5.0)


@dataclass(frozen=True)
class EvaluationCase(Case):
    """FQE on one pair of spaces, with a random target policy."""

    def agent(self):
        return FQE(self.config)

    def batches(self, k, n, seed=0):
        """k random batches of n transitions, with the target's policy in the next observations."""
        rng = np.random.default_rng(seed)
        if isinstance(self.spaces.action, Box):
            policy = rng.uniform(-1, 1, (k, n, 3, *self.spaces.action.shape)).astype(np.float32)
        else:
            policy = rng.dirichlet(np.ones(self.spaces.action.n), (k, n)).astype(np.float32)
        return dataclasses.replace(random_batches(self, k, n, seed), extras={TARGET: policy})

    def made(self, engine_name):
        return engines.create(engine_name, self.agent(), self.spaces, seed=0)


CASES = [
    EvaluationCase("fqe discrete", "fqe", Spaces(MASKED, Discrete(3)), CONFIG),
    EvaluationCase("fqe box", "fqe", Spaces(NESTED, BOX2), dataclasses.replace(CONFIG, normalize_observation=True)),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def losses_before_and_after(engine, case):
    losses = [engine.learn(case.batches(2, 16, seed=i), case.hyper()).losses for i in range(5)]
    return {"before": losses[0], "after": losses[4]}


@each_case
def test_losses_agree_before_and_after_eight_updates(case, engine_name):
    found = losses_before_and_after(case.made(engine_name), case)
    assert found["before"] == pytest.approx(EXPECTED[case.name]["before"], rel=1e-4, abs=1e-6)
    assert found["after"] == pytest.approx(EXPECTED[case.name]["after"], rel=1e-4, abs=1e-5)


@each_case
def test_losses_and_values_in_numpy_are_those_of_the_engine(case, engine_name):
    engine, reference = case.made(engine_name), NumpyEngine(case.agent(), case.spaces)
    reference.load(engine.weights())
    observation = random_values(case.spaces.observation, np.random.default_rng(1), 7)
    if isinstance(case.spaces.action, Box):
        pairs = (observation, random_values(case.spaces.action, np.random.default_rng(2), 7))
        np.testing.assert_allclose(engine.value(pairs), reference.value(pairs), rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(engine.act(observation), reference.act(observation), rtol=1e-4, atol=1e-5)
    hyper, batch = case.hyper(tau=0.0, learning_rate=0.0), case.batches(1, 16)
    loss = reference.layout.bind(engine.weights(), hyper).loss(pick(batch, 0), {})["critic"].value
    assert engine.learn(batch, hyper).losses["critic"] == pytest.approx(float(loss), rel=1e-4, abs=1e-6)


@each_case
def test_a_restored_engine_goes_on_bit_for_bit(case, engine_name):
    engine = case.made(engine_name)
    engine.learn(case.batches(2, 16), case.hyper())
    again = case.made(engine_name)
    again.restore(engine.state())
    for each in (engine, again):
        each.learn(case.batches(2, 16, seed=7), case.hyper())
    assert all(np.array_equal(value, again.weights()[name]) for name, value in engine.weights().items())


@each_case
def test_targets_stay_within_the_bounds(case, engine_name):
    config = dataclasses.replace(case.config, v_min=0.0, v_max=1e-9)
    engine = engines.create(engine_name, FQE(config), case.spaces, seed=0)
    batches = dataclasses.replace(case.batches(1, 16), reward=np.zeros((1, 16), np.float32))
    hyper = {**case.hyper(learning_rate=0.0), "v_min": 0.0, "v_max": 1e-9}
    update = engine.learn(batches, hyper)
    expected = (batches.weight * np.square(update.td_error)).mean() / 2  # of the values alone
    assert update.losses["critic"] == pytest.approx(expected, rel=1e-4)
    wide = engine.learn(batches, {**hyper, "v_min": -1e9, "v_max": 1e9}).losses["critic"]
    assert wide != pytest.approx(update.losses["critic"], rel=1e-6)


class Mostly:
    """Takes the second of two actions with probability 0.75."""

    state_size = 0

    def act(self, observation):
        return Categorical(np.tile(np.log(np.float32([0.25, 0.75])), (len(observation), 1)))


def test_fitted_values_are_those_of_a_problem_that_is_known(engine_name):
    rng, space = np.random.default_rng(0), Spaces(Box(0, 1, (1,), np.float32), Discrete(2))
    action = rng.integers(0, 2, (400, 2))
    places = np.array([[0.0], [1.0], [1.0]], np.float32)
    data = Dataset(tuple(Episode(places, a, a.astype(np.float32), True, False) for a in action), space)
    config = FQEConfig(network=NARROW, steps=600, learning_rate=1e-2, gamma=0.5)
    policy = TargetPolicy(Mostly(), Sample(), space.action)
    found = fitted_values(config, policy, data, Execution(engine=engine_name, environments=1), rng)
    assert found.v[0::2] == pytest.approx(0.75 + 0.5 * 0.75, abs=0.1)
    assert found.v[1::2] == pytest.approx(0.75, abs=0.1)
    assert found.q[0::2] == pytest.approx(action[:, 0] + 0.5 * 0.75, abs=0.1)


@pytest.mark.parametrize("changed", ["normalize_reward", "clip_reward"])
def test_rewards_whose_sum_is_estimated_are_not_changed(changed):
    with pytest.raises(ConfigError, match="the rewards whose sum is estimated. Leave them off"):
        FQEConfig(**{changed: True})


if __name__ == "__main__":  # PYTHONPATH=tests/engines python tests/engines/agents/test_fqe.py: lines of parity.json
    print(json.dumps({case.name: losses_before_and_after(case.made("torch"), case) for case in CASES}, indent=1))
