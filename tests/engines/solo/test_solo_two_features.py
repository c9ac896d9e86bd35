"""Two features at once: what an agent learns is what it learns without the second one, bit for bit or to rounding."""

import numpy as np
import pytest
from solo_agents import OfTriplets, Reaching, agent_for, continuous, discrete, on_policy, pool_of, train
from solo_agents_worlds import Pair, Reach, Walk

from etude.solo import LambdaCallback
from etude.solo.engines import parameters
from etude.tuning import LRFinder

pytestmark = [pytest.mark.usefixtures("workers_step"), pytest.mark.variant]
LONG = lambda: Walk(length=7)  # noqa: E731
ADAPTED = {"lr_params": {"rate": 0.2}, "batch_params": {"min": 2, "max": 16}}
KINDS = {  # by name: algorithm, mixins, environments, settings
    "DQN": ("DQN", (), [Walk, LONG], discrete()),
    "several steps": ("DQN", (), [Walk, LONG], discrete(num_steps=3)),
    "priorities": ("DQN", (), [Walk, LONG], discrete(PR=True, num_updates=5)),
    "adapted": ("DQN", (), [Walk, LONG], discrete(PR=True, num_updates=5)),
    "triplets": ("DQN", (OfTriplets,), [Walk, LONG], discrete(TRL=True, num_updates=5)),
    "PPO": ("PPO", (), [Walk, LONG], on_policy()),
    "PPO with priorities": ("PPO", (), [Walk, LONG], on_policy(PR=True, num_updates=4)),
    "hindsight": ("DDPG", (Reaching,), [Reach, Reach], continuous(HER=True, update_batches=2, num_updates=5)),
    "team": ("Team", (), [Pair, Pair], discrete(MARL=True)),
}
FEATURES = ("callbacks", "finder", "saved", "again", "pool")
POOLS = ("DQN", "hindsight")  # whose processes are started also without --whole
CELLS = [
    pytest.param(kind, feature, marks=pytest.mark.long if feature == "pool" and kind not in POOLS else ())
    for kind in KINDS
    for feature in FEATURES
]


def new(kind, engine_name):
    algorithm, mixins, env, settings = KINDS[kind]
    agent = agent_for(engine_name, algorithm, *mixins, env=env)
    agent.set(**settings)
    if kind == "adapted":
        agent.adjust_func = lambda: agent.adjust(target_ess=5.0, **ADAPTED)
    return agent


def numbers(agent):
    pool = pool_of(agent).ring
    values = [np.ravel(value) for value in parameters(agent).values()]
    return agent.reward_list, agent.loss_list, np.concatenate(values), pool.filled.tolist()


def learned(kind, engine_name, feature=None, path=None):
    """What an agent has learned in two times three episodes, with a feature that is to change nothing."""
    agent = new(kind, engine_name)
    options = {"callbacks": [LambdaCallback(on_batch_end=lambda batch, logs: None)]} if feature == "callbacks" else {}
    if feature == "pool":
        options = {"processes": 2, "parallel_store_and_training": False}
    if feature in ("finder", "saved", "again"):
        train(agent, engine_name, 3)
    if feature == "saved":
        agent.save(path / "agent.dat")
        agent = new(kind, engine_name)
        agent.restore(path / "agent.dat")
    if feature == "finder":
        LRFinder(agent).find(N=6, start_lr=1e-4, end_lr=1.0, episodes=3, p=0)
    train(agent, engine_name, 3 if feature in ("finder", "saved", "again") else 6, **options)
    return numbers(agent)


@pytest.fixture(scope="module")
def plain():
    """What each kind learns without a second feature, computed once."""
    return {}


@pytest.mark.parametrize(("kind", "feature"), CELLS)
def test_a_second_feature_changes_nothing_that_is_learned(kind, feature, plain, engine_name, tmp_path):
    if kind not in plain:
        plain[kind] = learned(kind, engine_name)
    rewards, losses, values, filled = learned(kind, engine_name, feature, tmp_path)
    assert len(losses) == len(plain[kind][1]) > 0
    assert rewards == plain[kind][0]
    assert filled == plain[kind][3]
    np.testing.assert_allclose(losses, plain[kind][1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values, plain[kind][2], rtol=1e-4, atol=1e-5)
