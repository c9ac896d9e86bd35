"""Learning from recorded data: what the algorithms find where the answer is known, and runs that go on as they were."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from batches import random_batches
from cases import BOX2, VECTOR, Case
from run_cases import differences, measured

import etude
from etude import Mlp, engines, offline
from etude.algorithms import (
    AWACConfig,
    BCConfig,
    CalQLConfig,
    CQLConfig,
    EDACConfig,
    IQLConfig,
    MARWILConfig,
    TD3BCConfig,
    XQLConfig,
)
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected, Learned
from etude.base.spaces import Box, Discrete, Spaces
from etude.offline import Dataset

SMALL = {"network": Mlp((16,)), "learning_rate": 1e-2, "batch_size": 64, "gradient_steps": 50, "gamma": 0.5}


class Bandit(gym.Env):
    """One state that goes on for 4 steps. Discrete: rewards 1 for action 0, 2 for 1, and -3 for 2 and 3. Box:
    1 - (action - 0.5)**2."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)

    def __init__(self, continuous: bool = False):
        self.action_space = gym.spaces.Box(-2, 2, (1,), np.float32) if continuous else gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([1.0, 0.5], np.float32), {}

    def step(self, action):
        self.time += 1
        reward = 1 - (float(action[0]) - 0.5) ** 2 if np.ndim(action) else (1.0, 2.0, -3.0, -3.0)[action]
        return np.array([1.0, 0.5], np.float32), reward, False, self.time == 4, {}


def skewed(lengths=500):
    """Three of four actions are 0, the fourth is 1; 2 and 3 are never taken. What follows is the same state for ever,
    so that action 0 is worth 1 + g * V, and action 1 worth 2 + g * V."""
    actions = np.tile([0, 0, 1, 0], lengths)
    space = Spaces(Bandit().observation_space, Discrete(4))
    return Dataset(tuple(_episode(actions[i : i + 4]) for i in range(0, len(actions), 4)), space)


def _episode(actions):
    observation = np.tile(np.array([1.0, 0.5], np.float32), (len(actions) + 1, 1))
    reward = np.array([1.0, 2.0], np.float32)[actions]
    return Episode(observation, actions, reward, False, True)


def near(target=0.0, spread=0.3):
    """Box actions spread around `target`, rewarded as by `Bandit`: the best is 0.25, or 0.5 in the bandit's units."""
    rng = np.random.default_rng(0)
    source, episodes = Spaces(Bandit().observation_space, Box(-2, 2, (1,), np.float32)), []
    for _ in range(200):
        action = np.clip(rng.normal(target, spread, (4, 1)), -1, 1).astype(np.float32)
        observation = np.tile(np.array([1.0, 0.5], np.float32), (5, 1))
        reward = (1 - (2 * action[:, 0] - 0.5) ** 2).astype(np.float32)
        episodes.append(Episode(observation, action, reward, False, True))
    return Dataset(tuple(episodes), source)


HERE = np.array([[1.0, 0.5]], np.float32)


def trained(name, config, data, engine_name, steps=600, continuous=False, seed=1):
    run = etude.Run(name, lambda: Bandit(continuous), config=config, data=data, engine=engine_name, seed=seed)
    learned = [event for event in run.steps(steps) if isinstance(event, Learned)]
    return run, learned[-1]


def probabilities(run):
    logits = run.engine.act(HERE).logits[0]
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


@pytest.mark.one_engine("jax")
def test_cloning_copies_how_often_each_action_was_taken(engine_name):
    run, _ = trained("bc", BCConfig(**SMALL), skewed(), engine_name)
    np.testing.assert_allclose(probabilities(run), [0.75, 0.25, 0, 0], atol=0.04)


@pytest.mark.one_engine("jax")
@pytest.mark.parametrize("squared", (False, True))
def test_cloning_finds_the_mean_of_box_actions(engine_name, squared):
    data = near(0.3, 0.2)
    run, _ = trained("bc", BCConfig(**SMALL, squared_error=squared), data, engine_name, continuous=True)
    actions = np.concatenate([episode.action for episode in data.episodes])
    output = run.engine.act(HERE)
    assert output.mode()[0, 0] == pytest.approx(actions.mean(), abs=0.03)
    if not squared:
        assert np.exp(output.log_std[0, 0]) == pytest.approx(actions.std(), rel=0.15)


@pytest.mark.one_engine("jax")
def test_without_conservatism_an_action_never_taken_is_overestimated_and_with_it_the_best_recorded_one_is_found(
    engine_name,
):
    """A network starts with other values for what is never taken, which nothing corrects: here, high ones."""
    chosen = {}
    for cql_alpha in (0.0, 0.2):
        config = CQLConfig(**SMALL, cql_alpha=cql_alpha, tau=0.1)
        run = etude.Run("cql", Bandit, config=config, data=skewed(), engine=engine_name, seed=1)
        bias = run.engine.weights()["critic.dense1.bias"].copy()
        bias[2:] += 20.0
        run.engine.load({"critic.dense1.bias": bias, "critic_target.dense1.bias": bias})
        run.train(800)
        chosen[cql_alpha] = run.engine.act(HERE)[0]
    assert chosen[0.0].argmax() in (2, 3) and chosen[0.0].max() > 5
    assert chosen[0.2].argmax() == 1


@pytest.mark.one_engine("jax")
def test_the_conservative_values_are_those_that_balance_the_gap(engine_name):
    """With gamma 0 and shares p of the actions, values minimise sum p (r - Q)**2 / 2 + w (logsumexp Q - sum p Q), for
    errors below 1, where the Huber loss is quadratic: p (Q - r) + w (softmax Q - p) = 0."""
    w = 0.5
    config = CQLConfig(**{**SMALL, "gamma": 0.0, "learning_rate": etude.Linear(1e-2, 1e-4)}, cql_alpha=w)
    run, last = trained("cql", config, skewed(), engine_name, 1_500)
    q = run.engine.act(HERE)[0].astype(float)
    share, reward = np.array([0.75, 0.25, 0, 0]), np.array([1.0, 2.0, 0, 0])
    softmax = np.exp(q - q.max()) / np.exp(q - q.max()).sum()
    np.testing.assert_allclose(share * (q - reward) + w * (softmax - share), 0, atol=0.03)
    assert last.metrics["gap"] == pytest.approx(np.log(np.exp(q).sum()) - share @ q, abs=0.05)


@pytest.mark.one_engine("jax")
def test_a_learned_weight_brings_the_gap_to_what_is_wanted(engine_name):
    config = CQLConfig(**SMALL, target_gap=1.0, cql_alpha=0.1, tau=0.1)
    _, last = trained("cql", config, skewed(), engine_name, 1_000)
    assert last.metrics["gap"] == pytest.approx(1.0, abs=0.15)
    assert last.metrics["cql_alpha"] > 0


@pytest.mark.one_engine("jax")
def test_conservative_critics_of_box_actions_prefer_what_was_recorded(engine_name):
    values = {}
    for cql_alpha in (0.0, 5.0):
        config = CQLConfig(**SMALL, cql_alpha=cql_alpha, samples=5, tau=0.1, temperature=0.1)
        run, last = trained("cql", config, near(0.0, 0.15), engine_name, 400, continuous=True)
        values[cql_alpha] = last.metrics["gap"], float(run.engine.act(HERE).mode()[0, 0])
    assert values[5.0][0] < values[0.0][0] - 0.1  # the gap is what is pushed down
    assert abs(values[5.0][1]) < 0.5


@pytest.mark.long_but("0.9")
@pytest.mark.one_engine("jax")
@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_the_value_of_implicit_q_learning_is_the_expectile_of_the_recorded_actions(engine_name, expectile):
    """V = m + g V with m the expectile of the rewards 1 (three of four) and 2: at 0.5 their mean 1.25, at 0.9 the m
    with 0.1 * 3 (m - 1) = 0.9 * (2 - m), which is 1.75."""
    config = IQLConfig(**SMALL, expectile=expectile, beta=10.0, tau=0.2)
    run, _ = trained("iql", config, skewed(), engine_name, 1_500)
    assert run.engine.value(HERE)[0] == pytest.approx({0.5: 1.25, 0.9: 1.75}[expectile] / (1 - 0.5), abs=0.12)
    assert probabilities(run).argmax() == 1


@pytest.mark.one_engine("jax")
def test_implicit_q_learning_moves_box_actions_to_the_better_ones(engine_name):
    config = IQLConfig(**SMALL, expectile=0.8, beta=5.0, tau=0.1)
    run, _ = trained("iql", config, near(0.0, 0.3), engine_name, 800, continuous=True)
    assert run.engine.act(HERE).mode()[0, 0] == pytest.approx(0.25, abs=0.12)


@pytest.mark.one_engine("jax")
def test_advantage_weighted_actor_critic_moves_box_actions_to_the_better_ones_and_with_beta_0_clones(engine_name):
    found = {}
    for beta in (0.0, 5.0):
        config = AWACConfig(**SMALL, beta=beta, tau=0.1)
        run, _ = trained("awac", config, near(0.0, 0.3), engine_name, 800, continuous=True)
        found[beta] = float(run.engine.act(HERE).mode()[0, 0])
    assert found[0.0] == pytest.approx(0.0, abs=0.06)
    assert found[5.0] == pytest.approx(0.25, abs=0.12)


@pytest.mark.variant
def test_recorded_returns_bound_the_values_of_the_policys_actions_from_below(engine_name):
    """Far below the values they change nothing; far above, two thirds of the sampled values are the returns."""
    spaces = Spaces(VECTOR, BOX2)
    learned = {}
    for name, kind, level in (("cql", CQLConfig, 0.0), ("cal_ql", CalQLConfig, -1e3), ("cal_ql", CalQLConfig, 1e3)):
        case = Case(name, name, spaces, kind(network=Mlp((16,)), cql_alpha=2.0, samples=3))
        batch = random_batches(case, 1, 16)
        batch.extras["return"] = np.full((1, 16), level, np.float32)
        extras = batch.extras if name == "cal_ql" else {}
        batch = dataclasses.replace(batch, extras=extras)
        engine = engines.create(engine_name, case.agent(), spaces, seed=0)
        learned[name, level] = engine.learn(batch, case.hyper())
    assert learned["cal_ql", -1e3].losses == pytest.approx(learned["cql", 0.0].losses, rel=1e-6)
    assert learned["cal_ql", 1e3].metrics["gap"] == pytest.approx(1e3 * batch.weight.mean(), rel=0.01)


@pytest.mark.variant
def test_critics_of_edac_have_gradients_that_differ_where_diversity_weighs(engine_name):
    spaces, similarity = Spaces(VECTOR, BOX2), {}
    for diversity in (0.0, 30.0):
        config = EDACConfig(network=Mlp((16, 16)), n_critics=4, diversity=diversity, learning_rate=1e-2)
        case = Case("edac", "edac", spaces, config)
        engine = engines.create(engine_name, case.agent(), spaces, seed=0)
        batch = random_batches(case, 100, 16)
        similarity[diversity] = engine.learn(batch, case.hyper()).metrics["gradient_similarity"]
    assert similarity[30.0] < -0.4 < 0.0 < similarity[0.0]  # a mean over 100 steps; it cannot fall below -4 / 3


@pytest.mark.one_engine("jax")
def test_marwil_weighs_actions_by_their_advantage_and_with_beta_0_clones(engine_name):
    """With gamma 0 the advantages are 1 - 1.25 and 2 - 1.25, of typical size sqrt(0.1875); the share of action 1 is
    0.25 exp(0.75 / c) / (0.25 exp(0.75 / c) + 0.75 exp(-0.25 / c)) = 0.7704."""
    for beta, share in ((1.0, 0.7704), (0.0, 0.25)):
        run, _ = trained("marwil", MARWILConfig(**{**SMALL, "gamma": 0.0}, beta=beta), skewed(), engine_name, 1_000)
        assert probabilities(run)[1] == pytest.approx(share, abs=0.05)


@pytest.mark.one_engine("jax")
def test_marwil_bootstraps_from_the_end_of_a_truncated_episode(engine_name):
    """Every episode is truncated: with the value of what followed, V = 1.25 / (1 - g). Without it, less."""
    run, _ = trained("marwil", MARWILConfig(**SMALL), skewed(), engine_name, 1_000)
    assert run.engine.value(HERE)[0] == pytest.approx(2.5, abs=0.12)


@pytest.mark.one_engine("jax")
def test_td3_bc_stays_near_the_data_where_values_count_little_and_improves_where_they_count_more(engine_name):
    found = {}
    for alpha in (0.0, 2.5):
        config = TD3BCConfig(**SMALL, alpha=alpha, tau=0.1)
        run, _ = trained("td3_bc", config, near(0.0, 0.3), engine_name, 600, continuous=True)
        found[alpha] = float(run.engine.act(HERE).mode()[0, 0])
    assert found[0.0] == pytest.approx(0.0, abs=0.05)
    assert 0.08 < found[2.5] < 0.4


CASES = {
    "bc": BCConfig(**SMALL),
    "cql": CQLConfig(**SMALL, target_gap=1.0, normalize_reward=True),
    "iql": IQLConfig(**SMALL, normalize_observation=True),
    "xql": XQLConfig(**SMALL, normalize_observation=True),
    "marwil": MARWILConfig(**SMALL),
}


@pytest.mark.long_but("cql", "marwil")
@pytest.mark.variant
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one_without_the_file(engine_name, name, tmp_path):
    path = tmp_path / "codes.h5"
    offline.write(path, etude.record("CartPole-v1", 10))
    schedule = {"evaluate_every": 100, "evaluate_episodes": 2}
    settings = {"engine": engine_name, "seed": 3, "config": CASES[name]}
    whole = etude.Run(name, "CartPole-v1", data=path, **settings)
    list(whole.steps(130, **schedule))
    whole.save(tmp_path / "run.etude")
    expected = measured(list(whole.steps(170, **schedule)))
    path.unlink()
    again = etude.load(tmp_path / "run.etude")
    assert measured(list(again.steps(170, **schedule))) == expected
    assert differences(again.state(), whole.state()) == []
    assert again.evaluate(2).returns == whole.evaluate(2).returns


def test_an_offline_run_counts_gradient_steps_and_collects_nothing():
    run = etude.Run("bc", Bandit, config=CASES["bc"], data=skewed(2))
    events = list(run.steps(120))
    assert [(e.step, e.gradient_steps) for e in events if isinstance(e, Learned)] == [(50, 50), (100, 100), (120, 120)]
    assert not any(isinstance(event, Collected) for event in events)
    assert events[0].description["steps"] == "gradient"
    assert events[0].description["data"]["transitions"] == 8 and events[0].description["data"]["mean_return"] == 5


def test_observations_are_normalised_by_the_moments_of_the_data():
    data = etude.record("CartPole-v1", 5)
    run = etude.Run("bc", "CartPole-v1", config=BCConfig(**SMALL, normalize_observation=True), data=data)
    seen = np.concatenate([episode.observation[:-1] for episode in data.episodes])
    weights = run.engine.weights()
    np.testing.assert_allclose(weights["normaliser.all.mean"], seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(1 / weights["normaliser.all.scale"], seen.std(0), rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("bc", {}, "BC learns from recorded data: give data="),
        ("ppo", {"data": []}, "PPO learns from an environment and takes no data; airl, apex_ddpg, .*bc, .*cql, .*sac"),
        ("dqn", {"data": []}, "no episodes"),
        ("bc", {"data": 3}, "data is a int; expected the path"),
        ("bc", {"data": "no.h5"}, "no.h5: there is no such file"),
        ("bc", {"data": []}, "no episodes"),
        ("bc", {"data": near()}, r"The data holds actions of Box\(1,\) float32, and the environment has Discrete\(4\)"),
        ("bc", {"data": skewed(2), "workers": 1}, "steps no environment: leave out workers"),
    ],
)
def test_data_that_does_not_go_with_an_agent_is_refused(name, given, message):
    with pytest.raises((ConfigError, DataError), match=message):
        etude.Run(name, Bandit, **given)


def test_every_offline_config_refuses_what_cannot_be():
    for config, field in ((BCConfig, "gradient_steps"), (CQLConfig, "samples"), (IQLConfig, "batch_size")):
        with pytest.raises(ConfigError, match=f"{field} = 0"):
            config(**{field: 0})
    assert dataclasses.is_dataclass(TD3BCConfig())
