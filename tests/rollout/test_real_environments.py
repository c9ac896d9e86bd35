"""The whole path that acting takes in a run: real environments, a real agent in NumPy, a real explorer."""

from functools import partial

import numpy as np
import pytest
from witness import assert_same

from etude.algorithms.dqn import DQN, DQNConfig
from etude.algorithms.ppo import PPO, PPOConfig
from etude.engines.numpy import NumpyEngine
from etude.envs import make_environments
from etude.explore import EpsilonGreedy, Sample
from etude.networks import Mlp
from etude.rollout import InProcess, Pool

CASES = {
    "CartPole-v1": (DQN(DQNConfig(network=Mlp((64, 64)))), EpsilonGreedy(0.3, total=1000)),
    "Pendulum-v1": (PPO(PPOConfig(network=Mlp((64, 64)))), Sample()),
}


def parts(name: str):
    make = partial(make_environments, name, run_seed=3)
    agent, explorer = CASES[name]
    with_spaces = make(np.arange(1))
    actor = partial(NumpyEngine, agent, with_spaces.spaces)
    with_spaces.close()
    return make, actor, explorer


@pytest.mark.parametrize("name", CASES)
def test_workers_collect_what_one_process_collects_and_a_saved_state_goes_on(name):
    make, actor, explorer = parts(name)
    plain = InProcess(make(np.arange(5)), actor(), explorer, 3)
    pool = Pool(make, actor, explorer, 3, 5, 3)
    again = InProcess(make(np.arange(5)), actor(), explorer, 3)
    rng = np.random.default_rng(0)
    try:
        for round_ in range(3):
            weights = {k: rng.normal(size=v.shape).astype(np.float32) for k, v in sorted(actor().weights().items())}
            plain.load(weights)
            pool.load(weights)
            expected = plain.collect(80, 400 * round_)
            assert_same(expected, pool.collect(80, 400 * round_))
        again.load(weights)
        assert again.restore(pool.state()) == []
        assert_same(plain.collect(80, 1200), again.collect(80, 1200))
    finally:
        pool.close()
