"""What agents of one's own learn: values that are known, and hyperparameters that change while they train."""

import importlib
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but
from solo_agents import agent_for, continuous, discrete, once, pool_of, train
from solo_agents_worlds import Pushed, Walk

from etude.base.errors import ConfigError

GAMMA = 0.5


class AtOnce:
    """The loss compares with what `r + gamma * (1 - d) * 2` says; so a value of 2 fits, whatever the network."""

    def __call__(self, s, a, next_s, r, d):
        error = r + self.gamma * (1 - d) * (1 / (1 - GAMMA)) - 1 / (1 - GAMMA)
        return error**2 + 0 * super().__call__(s, a, next_s, r, d)


@pytest.mark.parametrize("num_steps", variants_but((None,), (None, 1, 3)))
def test_a_reward_of_1_for_ever_is_worth_1_over_1_minus_gamma_whatever_the_number_of_steps(num_steps, engine_name):
    """Episodes are truncated, so there is no end to the rewards."""
    agent = agent_for(engine_name, "DQN", AtOnce, env=lambda: Walk(truncates=True), gamma=GAMMA)
    agent.set(**discrete(num_steps=num_steps))
    train(agent, engine_name, 3)
    assert agent.loss_list == pytest.approx([0.0] * 3, abs=1e-10)


@pytest.mark.variant
@pytest.mark.parametrize("num_steps", [None, 3])
def test_a_terminated_episode_is_worth_what_was_left_of_it(num_steps, engine_name):
    agent = agent_for(engine_name, "DQN", AtOnce, gamma=GAMMA)
    agent.set(**discrete(num_steps=num_steps, num_updates=None, batch=5))
    train(agent, engine_name, 1)
    # 1 step: the last of five earns 1, and is not worth 2. 3 steps: the last three earn 1, 1.5 and 1.75.
    wrong = [1.0] if num_steps is None else [1.0, 0.5, 0.25]
    assert agent.loss_list == pytest.approx([sum(error**2 for error in wrong) / 5])


@pytest.mark.parametrize("num_steps", variants_but((None,), (None, 3)))
def test_the_value_of_a_reward_of_1_for_ever_is_learned(num_steps, engine_name):
    agent = agent_for(engine_name, env=lambda: Walk(truncates=True), gamma=GAMMA)
    agent.set(**discrete(num_steps=num_steps, num_updates=40, update_batches=10, batch=16))
    train(agent, engine_name, 20)
    values = agent._session_state.session.learner.engine.act(pool_of(agent).sample(1, 32).observation[0])
    assert np.max(values, -1) == pytest.approx(np.full(32, 2.0), abs=0.3)


class Telling:
    """The loss is what hyperparameters and batch make of it."""

    def __call__(self, s, a, next_s, r, d):
        return r + self.gamma * (1 - d) + 0 * super().__call__(s, a, next_s, r, d)


def test_gamma_may_change_while_training_and_nothing_is_compiled_again(engine_name):
    agent = agent_for(engine_name, "DQN", Telling, env=lambda: Walk(truncates=True), gamma=0.5)
    agent.set(**discrete(num_steps=2, num_updates=None, batch=5, pool_size=5))
    train(agent, engine_name, 1)
    engine = agent._session_state.session.learner.engine
    traces = engine.traces
    agent.gamma = 0.25
    train(agent, engine_name, 1)
    # Two steps earn 1 + gamma, and what follows them counts gamma**2; the newest row has but one step.
    assert agent.loss_list == pytest.approx([(4 * (1.5 + 0.25) + 1.5) / 5, (4 * (1.25 + 0.0625) + 1.25) / 5])
    assert agent._session_state.session.learner.engine is engine
    if engine_name != "torch":  # which traces nothing
        assert engine.traces == traces


class Counting:
    """Counts the calls of the loss, and copies its network every fifth time."""

    updates = copies = 0

    def __call__(self, *arguments):
        self.updates += 1
        if self.updates % 5 == 0:
            self.copies += 1
        return super().__call__(*arguments)


def test_attributes_that_the_loss_sets_are_kept_or_refused_where_it_is_compiled(engine_name):
    agent = agent_for(engine_name, "DQN", Counting)
    agent.set(**discrete(num_updates=6))
    if engine_name == "torch":
        train(agent, engine_name, 2)
        assert (agent.updates, agent.copies) == (12, 2)
        agent.adabatch(3, lr_params={})
        assert agent.updates == 12, "gradients that are compared are no updates"
    else:
        with pytest.raises(ConfigError, match=r"DQN sets self.updates in code that is compiled.*update_batches"):
            train(agent, engine_name, 2)
        assert agent.updates == 0


def test_a_hyperparameter_that_the_loss_changes_is_read_by_the_next_minibatch(engine_name):
    class Halving:
        def __call__(self, s, a, next_s, r, d):
            loss = self.factor + 0 * super().__call__(s, a, next_s, r, d)
            self.factor = self.factor / 2
            return loss

    agent = agent_for(engine_name, "DQN", Halving, factor=1.0)
    agent.set(**discrete(num_updates=2))
    if engine_name == "torch":
        train(agent, engine_name, 1)
        assert (agent.loss_list, agent.factor) == ([0.75], 0.25)
    else:
        with pytest.raises(ConfigError, match="sets self.factor"):
            train(agent, engine_name, 1)


def test_numbers_in_an_object_of_the_user_may_change_between_two_trainings(engine_name):
    class Scaled:
        def __call__(self, s, a, next_s, r, d):
            return self.options.scale + 0 * super().__call__(s, a, next_s, r, d)

    agent = agent_for(engine_name, "DQN", Scaled, options=SimpleNamespace(scale=2, inner=SimpleNamespace()))
    agent.options.inner.outer = agent.options
    agent.set(**discrete(num_updates=1))
    train(agent, engine_name, 1)
    agent.options.scale = 5
    train(agent, engine_name, 1)
    assert agent.loss_list == pytest.approx([2.0, 5.0])


def test_gamma_may_change_in_a_callback(engine_name):
    from etude.solo import LambdaCallback

    agent = agent_for(engine_name, "DQN", Telling, env=lambda: Walk(truncates=True), gamma=0.5)

    def lower(episode, logs):
        agent.gamma = agent.gamma / 2

    agent.set(**discrete(num_updates=1))
    train(agent, engine_name, 3, callbacks=[LambdaCallback(on_episode_end=lower)])
    assert agent.loss_list == pytest.approx([1.5, 1.25, 1.125])


def test_new_settings_take_effect_and_what_was_learned_stays(engine_name):
    agent = agent_for(engine_name)
    agent.set(**discrete())
    train(agent, engine_name, 2)
    before = agent._session_state.session.learner.engine.weights()
    agent.set(**discrete(num_updates=3, pool_size=50))
    train(agent, engine_name, 1)
    assert agent._session_state.session.learner.batches == 3
    assert len(pool_of(agent)) == 5, "a new pool"
    assert len(agent.reward_list) == 3
    drift = [
        np.abs(agent._session_state.session.learner.engine.weights()[name] - value).max()
        for name, value in before.items()
    ]
    assert max(drift) < 0.1, "three steps of Adam move no weight further"


class Dropping:
    """Dropout and batch normalisation between the observation and the network."""

    def __init__(self):
        super().__init__()
        self.layers = self.made()

    def made(self):
        if self.framework == "torch":
            from torch import nn

            return [nn.Dropout(0.5), nn.BatchNorm1d(3, affine=False)]
        from keras import layers

        made = [layers.Dropout(0.5, seed=1), layers.BatchNormalization(center=False, scale=False)]
        made[1].build((None, 3))
        return made

    def seen(self, s, **mode):
        for layer in self.layers:
            s = layer(s, **mode)
        return s

    def action(self, s):
        return super().action(self.seen(s))

    def __call__(self, s, *others):
        mode = {} if self.framework == "torch" else {"training": True}
        return super().__call__(self.seen(s, **mode), *others)


def test_modules_are_in_evaluation_mode_where_they_act_and_in_training_mode_in_the_loss(engine_name):
    """Keras evaluates layers wherever `training=True` is not said."""
    agent = agent_for(engine_name, "DQN", Dropping)
    agent.set(**discrete())
    train(agent, engine_name, 2)
    engine = agent._session_state.session.learner.engine
    rows = pool_of(agent).sample(1, 4).observation[0]
    before, first = engine.weights(), engine.act(rows)
    assert np.array_equal(engine.act(rows), first), "no draw of dropout"
    assert np.allclose([engine.act(row[None])[0] for row in rows], first, rtol=1e-5), "each row by itself"
    assert all(np.array_equal(engine.weights()[name], value) for name, value in before.items()), "nor a statistic"
    statistics = [name for name in before if "running_mean" in name or "moving_mean" in name]
    train(agent, engine_name, 1)
    assert [np.array_equal(engine.weights()[name], before[name]) for name in statistics] == [False], "losses train"


def test_modes_that_the_user_sets_stay(engine_name):
    once(engine_name)
    seen = []

    class Evaluated(Dropping):
        def __init__(self):
            super().__init__()
            self.layers[1].eval()

        def __call__(self, *arguments):
            seen.append([layer.training for layer in self.layers])
            return super().__call__(*arguments)

    class Sampled(Dropping):
        def action(self, s):
            self.layers[0].train()
            return super().action(s)

    agent = agent_for(engine_name, "DQN", Evaluated)
    agent.set(**discrete())
    train(agent, engine_name, 1)
    assert seen == [[True, False]] * 2
    assert [layer.training for layer in agent.layers] == [True, False]
    agent = agent_for(engine_name, "DQN", Sampled)
    agent.set(**discrete())
    train(agent, engine_name, 1)
    engine, rows = agent._session_state.session.learner.engine, pool_of(agent).sample(1, 64).observation[0]
    assert not np.array_equal(engine.act(rows), engine.act(rows)), "dropout that the user asks for while acting"


@pytest.mark.parametrize("shape", variants_but(((1, 1),), ((1, 1), ())))
def test_actions_with_other_axes_teach_what_flat_ones_do(shape, engine_name):
    class Turned(Pushed):
        action_space = gym.spaces.Box(-1, 1, shape, np.float32)

        def step(self, action):
            assert isinstance(action, np.ndarray) and action.shape == shape
            return super().step(action.reshape(1))

    class Turning:
        def action(self, s):
            found = super().action(s)
            if engine_name == "torch":
                return found.reshape(-1, *shape)
            return importlib.import_module("keras").ops.reshape(found, (-1, *shape))

    losses = []
    for mixins, env in (((), Pushed), ((), Turned), ((Turning,), Turned)):
        agent = agent_for(engine_name, "DDPG", *mixins, env=env)
        agent.set(**continuous())
        train(agent, engine_name, 3)
        losses.append(agent.loss_list)
    assert losses[0] == losses[1] == losses[2] and all(map(np.isfinite, np.ravel(losses[0])))
