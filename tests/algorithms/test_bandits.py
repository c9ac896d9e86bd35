"""LinUCB and neural Thompson sampling in runs, beside a slow program; and the bandits that they play."""

from functools import partial

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import etude
from etude.algorithms import LinUCB, LinUCBConfig, NeuralTSConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected
from etude.examples.contextual_bandit import ContextualBandit, LinearBandit
from etude.training.kinds import kind_of

ALPHA, RIDGE = 0.7, 2.0
BANDIT = partial(LinearBandit, size=3, actions=3)


def played(run, steps):
    """(contexts [T, D], actions [T], rewards [T], regrets [T]) of some steps of a run, in order."""
    found = [steps for event in run.steps(steps) if isinstance(event, Collected) for steps in event.steps]
    each = [(s.observation, s.action, s.reward, s.extras["info.regret"]) for s in found]
    return [np.concatenate([x.reshape(-1, *x.shape[2:]) for x in part]) for part in zip(*each, strict=True)]


class SlowLinUCB:
    """Algorithm 1 of Li et al. 2010, with a system of equations for each action at each step."""

    def __init__(self, actions, size):
        self.a, self.b = [RIDGE * np.eye(size) for _ in range(actions)], np.zeros((actions, size))

    def choose(self, x):
        values = [x @ np.linalg.solve(a, b) for a, b in zip(self.a, self.b, strict=True)]
        return int(
            np.argmax([v + ALPHA * np.sqrt(x @ np.linalg.solve(a, x)) for v, a in zip(values, self.a, strict=True)])
        )

    def observe(self, x, action, reward):
        self.a[action] = self.a[action] + np.outer(x, x)
        self.b[action] += reward * x


@pytest.mark.parametrize("environments", [1, 4])
def test_lin_ucb_chooses_and_learns_as_a_slow_program_does(environments):
    config = LinUCBConfig(alpha=ALPHA, ridge=RIDGE, train_every=environments, batch_size=environments)
    execution = etude.Execution(keep_info=("regret",))
    with etude.Run(
        "lin_ucb", BANDIT, config=config, environments=environments, seed=1, engine="torch", execution=execution
    ) as run:
        contexts, actions, rewards, regrets = played(run, 80)
        weights = run.engine.weights()
    slow = SlowLinUCB(3, 3)
    for start in range(0, 80, environments):
        at = range(start, start + environments)
        assert [slow.choose(contexts[i].astype(float)) for i in at] == actions[start : start + environments].tolist()
        for i in at:
            slow.observe(contexts[i].astype(float), actions[i], rewards[i])
    np.testing.assert_allclose(weights["regression.inverse"], np.linalg.inv(slow.a), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(weights["regression.b"], slow.b, rtol=1e-4, atol=1e-5)
    assert regrets[:20].mean() > regrets[40:].mean() >= 0


def test_recorded_steps_are_learned_from_once_however_often_is_trained():
    data = etude.record(BANDIT, 50, seed=1)
    slow = SlowLinUCB(3, 3)
    for episode in data.episodes:
        slow.observe(episode.observation[0].astype(float), int(episode.action[0]), float(episode.reward[0]))
    config = LinUCBConfig(ridge=RIDGE, train_every=4, batch_size=4)
    with etude.Run("lin_ucb", BANDIT, data=data, config=config, engine="torch", seed=1) as run:
        for _ in range(2):
            run.train(100)
            inverse = run.engine.weights()["regression.inverse"]
            np.testing.assert_allclose(inverse, np.linalg.inv(slow.a), rtol=1e-3, atol=1e-5)


def test_thompson_sampling_draws_values_around_their_mean_and_evaluates_without():
    config = LinUCBConfig(thompson=True, alpha=ALPHA, ridge=RIDGE)
    with etude.Run("lin_ucb", BANDIT, config=config, seed=1, engine="torch") as run:
        run.train(20)
        x, weights = np.ones((1, 3), np.float32), run.engine.weights()
        assert not weights["regression.noise"].any()
        mean = run.engine.act(x)[0]
        inverses = weights["regression.inverse"]
        expected = [b @ inverse @ x[0] for b, inverse in zip(weights["regression.b"], inverses, strict=True)]
        np.testing.assert_allclose(mean, expected, rtol=1e-4)
        run.engine.load({"regression.noise": np.float32([1.0, 0.0, -2.0])})
        deviation = [np.sqrt(x[0] @ inverse @ x[0]) for inverse in inverses]
        drawn = mean + ALPHA * np.array(deviation) * [1.0, 0.0, -2.0]
        np.testing.assert_allclose(run.engine.act(x)[0], drawn, rtol=1e-4)
        assert run.learner.exploring_policy()[0]["regression.noise"].any()


def test_a_network_finds_what_is_not_linear():
    bandit = partial(LinearBandit, size=3, actions=3, power=2)
    regrets = {}
    for name, config in {"lin_ucb": LinUCBConfig(), "neural_ts": NeuralTSConfig(learning_rate=1e-2)}.items():
        execution = etude.Execution(keep_info=("regret",))
        with etude.Run(name, bandit, config=config, seed=1, engine="torch", execution=execution) as run:
            regrets[name] = played(run, 600)[-1][300:].mean()
    assert regrets["neural_ts"] < 0.5 * regrets["lin_ucb"]


def test_a_bandit_over_labelled_data_ends_each_episode_and_tells_its_regret():
    env = ContextualBandit(np.eye(4), np.eye(3)[[0, 1, 2, 0]])
    check_env(env, skip_render_check=True)
    for _ in range(20):
        context, _ = env.reset()
        label = [0, 1, 2, 0][int(context.argmax())]
        for action in range(3):
            _, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == (float(action == label), True, False)
            assert info == {"regret": 1.0 - reward}
    with pytest.raises(ConfigError, match=r"contexts of shape \(4, 4\), rewards of shape \(3, 3\)"):
        ContextualBandit(np.eye(4), np.eye(3))


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"n_step": 3}, "learns from each step once"), ({"train_every": 8}, "batch_size=8"), ({"ridge": 0.0}, "ridge")],
)
def test_settings_that_a_bandit_cannot_have_are_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        LinUCBConfig(**settings)


def test_steps_of_several_sources_and_devices_are_refused():
    data = etude.record(BANDIT, 3, seed=1)
    with pytest.raises(ConfigError, match="one source of recorded"):
        etude.Run("lin_ucb", BANDIT, data=[(data, 0.5), ("sampler", 0.5)], engine="torch")
    with pytest.raises(ConfigError, match="on one device"):
        kind_of(LinUCB(LinUCBConfig())).check(LinUCB(LinUCBConfig()), etude.Execution(devices=2))
