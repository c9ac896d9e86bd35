"""The Decision Transformer: it acts as it was trained to predict, for what is left of the return asked for."""

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude.algorithms import DecisionTransformer, DecisionTransformerConfig
from etude.base.data import Batch, Episode
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.estimation.target import TargetPolicy
from etude.explore import Sample
from etude.tuning.evolution import Mutations, mutated

SPACES = Spaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(3))
SMALL = etude.Transformer(2, 8, 2, 16, context=12)
STEPS = 4


class Counted(gym.Env):
    """Four steps; action 1 earns 1, action 0 nothing."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), float(action), self.time == STEPS, False, {}


def deciding(**changed):
    settings = {"network": SMALL, "sequence_length": 6, "return_scale": 4.0, "time_steps": 5, **changed}
    return DecisionTransformerConfig(**settings)


def test_acting_step_by_step_is_the_network_over_the_whole_sequence():
    rng = np.random.default_rng(0)
    engine = NumpyEngine(DecisionTransformer(deciding(target_return=3.0)), SPACES, rng)
    engine.load({name: x + 0.3 * rng.standard_normal(x.shape).astype(x.dtype) for name, x in engine.weights().items()})
    n, length = 2, 6
    seen = rng.uniform(-1, 1, (n, length, 2)).astype(np.float32)
    action, reward = rng.integers(0, 3, (n, length)), rng.standard_normal((n, length)).astype(np.float32)
    state, log_prob = np.zeros((n, engine.state_size), np.float32), []
    for t in range(length):
        policy, state = engine.act(seen[:, t], state)
        log_prob.append(policy.log_prob(action[:, t]))
        state = engine.rewarded(engine.acted(state, action[:, t]), reward[:, t])
    to_go = 3.0 - np.cumsum(np.append(np.zeros((n, 1), np.float32), reward[:, :-1], 1), 1)
    time = np.tile(np.arange(length, dtype=np.int32), (n, 1))
    for one in range(length):  # the loss that counts one step alone tells what was predicted there
        mask = np.float32(np.arange(length) == one) * np.ones((n, 1), np.float32)
        extras = {"return": to_go, "time": time, "mask": mask, "best_return": np.zeros(n, np.float32)}
        ones = np.ones(n, np.float32)
        batch = Batch(seen, action, reward, np.ones_like(reward), None, ones, np.zeros(n, np.int64), extras)
        loss = engine.layout.bind(engine.weights()).loss(batch, {})["actor"].value
        assert loss == pytest.approx(-np.mean(log_prob[one]), rel=1e-4)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A run on all 16 episodes there are, 16 times each: mutations measure activations on 1,000 steps."""
    episodes = []
    for number in range(2**STEPS):
        action = np.array([number >> t & 1 for t in range(STEPS)])
        seen = np.zeros((STEPS + 1, 1), np.float32)
        episodes.append(Episode(seen, action, action.astype(np.float32), True, False))
    path = tmp_path_factory.mktemp("run") / "asked.etude"
    config = deciding(sequence_length=4, batch_size=32, learning_rate=3e-3)
    with etude.Run("decision_transformer", Counted, config=config, data=episodes * 16, engine="torch", seed=1) as run:
        run.train(400)
        run.save(path)
    return path


@pytest.mark.parametrize("target", [None, 4.0, 3.0, 2.0, 1.0, 0.0])
def test_it_earns_what_it_is_asked_for_and_the_highest_recorded_return_by_default(asked, target):
    changed = {} if target is None else {"target_return": target}
    with etude.load(asked, Counted, **changed) as run:
        expected = 4.0 if target is None else target
        assert run.evaluate(3).returns == (expected,) * 3
        env, earned, reward = Counted(), 0.0, 0.0
        observation, ended = env.reset()[0], False
        while not ended:
            action = run.act(observation, first=env.time == 0, reward=reward)
            observation, reward, ended, _, _ = env.step(action)
            earned += reward
        assert earned == expected


def test_rewards_that_are_not_reported_leave_the_return_to_go_as_it_was(asked):
    with etude.load(asked, Counted, target_return=3.0) as run:
        actions = [run.act(np.zeros(1, np.float32), first=t == 0) for t in range(STEPS)]
    assert sum(actions) > 3


def test_estimates_are_of_what_it_would_do_after_the_recorded_rewards(asked):
    episodes = etude.record(Counted, 5, seed=2).episodes
    with etude.load(asked, Counted, target_return=2.0) as run:
        actor = run.actor()
        found = TargetPolicy(actor, Sample(log_prob=True), Discrete(2)).log_prob(episodes)
        expected = []
        for episode in episodes:
            state = np.zeros((1, actor.state_size), np.float32)
            for t, action in enumerate(episode.action):
                policy, state = actor.act(episode.observation[t : t + 1], state)
                expected.append(policy.log_prob(np.array([action]))[0])
                state = actor.rewarded(actor.acted(state, np.array([action])), episode.reward[t : t + 1])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"network": etude.Mlp((16,))}, "expected a Transformer"),
        ({"network": etude.Transformer(causal=False)}, "causal = True"),
        ({"gamma": 0.99}, "Leave gamma at 1"),
        ({"normalize_reward": True}, "return_scale"),
        ({"return_scale": 0.0}, "return_scale"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"time_steps": 0}, "time_steps"),
    ],
)
def test_what_cannot_be_is_refused(changed, told):
    with pytest.raises(ConfigError, match=told):
        deciding(**changed)


def test_it_learns_from_recorded_data_alone():
    with pytest.raises(ConfigError, match="data"):
        etude.Run("decision_transformer", Counted, config=deciding(), engine="torch")


def test_sequences_may_be_of_one_step():
    data = etude.record(Counted, episodes=4)
    with etude.Run(
        "decision_transformer", Counted, config=deciding(sequence_length=1), data=data, engine="torch"
    ) as run:
        run.train(2)
        assert 0.0 <= run.evaluate(1).mean <= STEPS


def test_it_evolves_and_acts_on_with_what_it_has_learned(asked):
    kinds, rng = set(), np.random.default_rng(0)
    mutations = Mutations(none=0, parameters=0, hyperparameters=0, architecture=1, new_layer=0.5)
    with etude.load(asked, Counted) as run:
        best = run.engine.weights()["target.value"]
        for _ in range(4):
            child, mutation = mutated(run, mutations, rng)
            with child:
                assert child.engine.weights()["target.value"] == best == 4.0
                assert child.evaluate(3).returns == (4.0,) * 3
                child.train(100)
                assert child.evaluate(3).mean > 2.0
            kinds.add(mutation.chain)
    assert len(kinds) > 1


def test_a_resumed_run_is_an_uninterrupted_one(tmp_path):
    settings = {"config": deciding(gradient_steps=5), "data": etude.record(Counted, 6, seed=1), "engine": "torch"}
    with etude.Run("decision_transformer", Counted, **settings) as run:
        run.train(5)
        run.save(tmp_path / "half.etude")
        run.train(5)
        with etude.load(tmp_path / "half.etude", Counted, config=settings["config"]) as resumed:
            resumed.train(5)
            for name, weight in run.engine.weights().items():
                np.testing.assert_array_equal(resumed.engine.weights()[name], weight, name)
