"""What DreamerV3 remembers and imagines, and what it refuses."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import etude
from etude import Mlp, Run
from etude.algorithms import DreamerV3, DreamerV3Config
from etude.base.data import RECURRENT_STATE
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine
from etude.export.policy import policies_of

SMALL = Mlp((8,), "silu", layer_norm=True)
CONFIG = DreamerV3Config(
    network=SMALL, encoder=SMALL, dynamics=SMALL, units=6, latents=2, classes=3, sequence_length=4, horizon=3, bins=11
)
SEEN = Box(-1.0, 1.0, (3,), np.float32)
LATENT = 6


def engine_of(action, config=CONFIG):
    """With weights that are far from their first ones."""
    engine, rng = NumpyEngine(DreamerV3(config), Spaces(SEEN, action)), np.random.default_rng(1)
    moved = {name: x + 0.5 * rng.standard_normal(x.shape) for name, x in engine.weights().items()}
    engine.load({name: np.asarray(x, np.float32) for name, x in moved.items()})
    return engine


@pytest.mark.parametrize("action", [Discrete(3), Box(-1.0, 1.0, (2,), np.float32)])
def test_the_state_holds_the_last_action_and_the_next_step_depends_on_it(action):
    engine, observation = engine_of(action), np.full((2, 3), 0.3, np.float32)
    _, state = engine.act(observation, np.zeros((2, engine.state_size), np.float32))
    chosen = np.array([0, 2]) if isinstance(action, Discrete) else np.array([[0.5, -1.5], [-0.5, 0.2]], np.float32)
    after = engine.acted(state, chosen)
    expected = np.eye(3)[chosen] if isinstance(action, Discrete) else chosen
    np.testing.assert_array_equal(after[:, CONFIG.units + LATENT :], expected)
    np.testing.assert_array_equal(after[:, : CONFIG.units + LATENT], state[:, : CONFIG.units + LATENT])
    following = engine.act(observation, after)[1]
    assert np.abs(following[0] - following[1]).max() > 1e-3
    forgotten = engine.act(observation, state)[1]
    np.testing.assert_array_equal(forgotten[0], forgotten[1])


def test_acting_along_a_sequence_is_what_the_model_infers_where_one_latent_state_is_near_certain():
    """Draws are then the likeliest states, so that both give the same memories."""
    engine = engine_of(Discrete(3))
    sharp = {f"model.posterior.dense1.{name}": 1e3 for name in ("weight", "bias")}
    engine.load({name: np.float32(factor) * engine.weights()[name] for name, factor in sharp.items()})
    rng = np.random.default_rng(3)
    observation = rng.uniform(-1, 1, (5, 1, 3)).astype(np.float32)
    action = rng.integers(0, 3, (4, 1))
    state, states = np.zeros((1, engine.state_size), np.float32), []
    for t in range(5):
        _, state = engine.act(observation[t], state)
        states.append(state[:, : CONFIG.units + LATENT])
        state = engine.acted(state, action[t]) if t < 4 else state
    agent = engine.layout.bind(engine.weights())
    embedded = agent.model["encoder"](agent._seen(observation.reshape(5, 3)))

    class Sequence:
        extras = {RECURRENT_STATE: np.zeros((1, engine.state_size), np.float32)}

    Sequence.action = action.T
    found, _ = agent._inferred(Sequence, embedded, np.zeros((1, 5, CONFIG.latents), np.float32))
    np.testing.assert_allclose(found, np.concatenate(states), atol=1e-5)


def test_uniform_noise_draws_latent_states_with_their_probabilities():
    agent = engine_of(Discrete(3)).layout.agent
    p = np.array([[0.1, 0.6, 0.3], [0.02, 0.18, 0.8]])
    noise = np.random.default_rng(0).standard_normal((20_000, 2)).astype(np.float32)
    drawn = agent.drawn(np.log(np.tile(p, (20_000, 1, 1))).astype(np.float32), noise).reshape(-1, 2, 3)
    np.testing.assert_array_equal(drawn.sum(-1), 1.0)
    np.testing.assert_allclose(drawn.mean(0), p, atol=0.015)


class Lamp(gym.Env):
    """Ends after four steps; the first observation alone tells which action is rewarded at the last one."""

    observation_space, action_space = SEEN, Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.lit = 0, int(self.np_random.integers(2))
        return np.array([1.0 - 2.0 * self.lit, 0.0, 1.0], np.float32), {}

    def step(self, action):
        self.time += 1
        over = self.time == 4
        return np.array([0.0, self.time / 4, 0.0], np.float32), float(over and action == self.lit), over, False, {}


def test_runs_store_states_and_repeat_themselves_with_workers():
    def trained(**given):
        config = dataclasses.replace(CONFIG, batch_size=4, train_every=10, learning_starts=20, buffer_size=100)
        with Run("dreamer_v3", Lamp, config=config, seed=3, environments=2, **given) as run:
            run.train(60)
            return run.engine.weights()

    once, again = trained(), trained(workers=1)
    for name, value in once.items():
        np.testing.assert_array_equal(value, again[name])


def other_run():
    """On CartPole-v1, with weights whose actions depend on what is remembered."""
    run, rng = Run("dreamer_v3", "CartPole-v1", config=CONFIG, seed=0, engine="torch"), np.random.default_rng(1)
    run.engine.load({n: np.float32(x + 2.0 * rng.standard_normal(x.shape)) for n, x in run.engine.weights().items()})
    return run


def test_estimation_finds_the_probabilities_that_actions_were_drawn_with():
    run = other_run()
    data = etude.record("CartPole-v1", 6, run=run, explore=True)
    found = etude.estimate(run, data, ["is"], explore=True)
    assert found["is"].value == pytest.approx(found.behaviour, rel=1e-3)


def test_a_single_actor_and_an_exported_policy_remember_their_actions():
    run, env = other_run(), gym.make("CartPole-v1")
    policy, memory = policies_of(run.policy)[""], {}
    observation, info = env.reset(seed=3)
    for t in range(8):
        action = run.act(observation, info, first=t == 0)
        first = {each.name: each.zeros(1) for each in policy.memory}
        given = {policy.observed[0].name: observation[None], "first": np.array([t == 0]), **(memory or first)}
        found = policy.act(given)
        assert found["action"] == action
        memory = {each.name: found[f"next_{each.name}"] for each in policy.memory}
        assert memory["state"][0, -2:].tolist() == np.eye(2)[action].tolist()
        observation, _, terminated, _, info = env.step(1 - t % 2)
        assert not terminated


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": 1}, "expected 2 or more of each"),
        ({"horizon": 0}, "horizon"),
        ({"n_step": 3}, "Leave them at 1 and 'none'"),
        ({"free_nats": -1.0}, "free_nats"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changed)


def test_the_model_learns_which_actions_are_allowed_and_imagines_no_others():
    masked = Dict({"observation": SEEN, "action_mask": MultiBinary(3)})
    engine = NumpyEngine(DreamerV3(CONFIG), Spaces(masked, Discrete(3)))
    agent = engine.layout.bind(engine.weights())
    x = np.random.default_rng(0).standard_normal((4, CONFIG.units + LATENT)).astype(np.float32)
    told = np.float32([[3, -1, -2], [-3, -1, -2], [1, 2, 0.5], [-1, 1, 1]])
    agent.model = {**agent.model, "mask": lambda x: told}
    expected = [[True, False, False], [False, True, False], [True, True, True], [False, True, True]]
    np.testing.assert_array_equal(agent.policy_at(x).allowed, expected)
    seen = {"observation": np.zeros((1, 3), np.float32), "action_mask": np.int8([[0, 1, 0]])}
    policy, _ = agent.act(seen, np.zeros((1, engine.state_size), np.float32))
    np.testing.assert_array_equal(policy.probabilities(), [[0, 1, 0]])
