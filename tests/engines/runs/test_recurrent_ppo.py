"""Recurrent PPO: what it learns from is what it acted with, and it learns what an agent without memory cannot."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but
from probes import Cue, returns_for_both_cues

import etude
from etude import ActorCritic, Mlp, Recurrent, Run, Transformer
from etude.algorithms import PPOConfig, RecurrentPPO, RecurrentPPOConfig
from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK
from etude.engines.numpy import NumpyEngine
from etude.explore import Greedy

SMALL = Recurrent(Mlp((8,), "tanh"), 6, "lstm", (4,))


class Ends(gym.Env):
    """Random numbers; episodes of 1 to 6 steps, every second of them stopped by a clock."""

    def __init__(self, action_space, masked=False):
        seen = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space, self.masked = action_space, masked
        mask = gym.spaces.MultiBinary(int(sum(np.atleast_1d(action_space.nvec)))) if masked else None
        self.observation_space = gym.spaces.Dict({"observation": seen, ACTION_MASK: mask}) if masked else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.clock = int(self.np_random.integers(1, 7)), bool(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action):
        self.left -= 1
        over = self.left == 0
        return self.observe(), float(self.np_random.normal()), over and not self.clock, over and self.clock, {}

    def observe(self):
        seen = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if not self.masked:
            return seen
        return {"observation": seen, ACTION_MASK: np.array([1, *self.np_random.integers(0, 2, 2), 1, 1], np.int8)}


class OneStepOfGradient:
    """Learns as a run does, and keeps what it learned from, the weights before it, and the memories of all rows."""

    def __init__(self, run):
        self.run, self.inner, self.kept = run, run.learner.gradients, []

    def __call__(self, batches, hyper, done):
        ring = self.run.learner.replay.ring
        self.kept.append((batches, self.run.engine.weights(), ring.extras["recurrent_state"].copy()))
        return self.inner(batches, hyper, done)


WORLDS = {
    "masked choices": partial(Ends, gym.spaces.MultiDiscrete([3, 2]), masked=True),
    "numbers": partial(Ends, gym.spaces.Box(-1, 1, (2,), np.float32)),
}


@pytest.mark.parametrize("normalised", variants_but((True,), (False, True)))
@pytest.mark.parametrize("world", variants_but(("masked choices",), WORLDS))
def test_memories_probabilities_and_values_over_sequences_are_those_that_were_acted_with(
    world, normalised, engine_name
):
    config = RecurrentPPOConfig(
        network=SMALL, rollout_length=18, sequence_length=9, minibatch_size=None, epochs=1, learning_rate=3e-2,
        normalize_observation=normalised,
    )  # fmt: skip
    with Run("recurrent_ppo", WORLDS[world], config=config, engine=engine_name, environments=4, seed=1) as run:
        run.learner.gradients = recorder = OneStepOfGradient(run)
        learned = [event for event in run.steps(3 * 72) if type(event).__name__ == "Learned"]
    assert len(learned) == len(recorder.kept) == 3
    carried = []
    for event, (batches, weights, stored) in zip(learned, recorder.kept, strict=True):
        assert abs(event.metrics["approx_kl"]) < 1e-6 and event.metrics["clip_fraction"] == 0.0
        actor = NumpyEngine(run.agent, run.engine.spaces)
        actor.load(weights)
        agent, first = actor.layout.bind(weights), batches.extras["first"][0]
        observation, state = trees.map(lambda x: x[0], batches.observation), batches.extras["recurrent_state"][0]
        outputs, after = [], []
        for part, at in (("policy", slice(0, agent.actor_size)), ("critic", slice(agent.actor_size, None))):
            output, states = agent.model[part].unroll(agent.normaliser(observation), state[:, at], first)
            outputs.append(output)
            after.append(states)
        follows = first[:, 1:] == 0
        found = np.where(follows[..., None], np.concatenate(after, -1)[:, :-1], 0)
        np.testing.assert_allclose(stored[batches.index[0][:, 1:]], found, rtol=1e-4, atol=1e-5)
        assert not follows.all() and follows.any()
        log_prob = agent.policy.of(agent.model, observation, outputs[0]).log_prob(batches.sampled_action[0])
        np.testing.assert_allclose(log_prob, batches.extras["log_prob"][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(outputs[1][..., 0], batches.extras["value"][0], rtol=1e-4, atol=1e-5)
        carried.append(np.abs(state).sum(1) > 0)
    assert np.concatenate(carried).any(), "memories go on from one rollout to the next"


class Recording(RecurrentPPO):
    """Has the keys and values of a transformer recorded with every step."""

    state_recorded = True


ATTENTIVE = Transformer(layers=2, width=8, heads=2, feedforward=8, context=4)
TRANSFORMERS = {"both": ATTENTIVE, "actor": ActorCritic(ATTENTIVE, Recurrent(Mlp((8,)), 6, "lstm"))}


class Long(Ends):
    """Episodes of 5 to 14 steps: some are longer than what a transformer sees, and than a sequence."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.left = 4 + int(self.np_random.integers(1, 11))
        return observation, info


class Kept:
    """Learns as a run does, and keeps what it learned from."""

    def __init__(self, run):
        self.run, self.inner, self.kept = run, run.learner.gradients, []

    def __call__(self, batches, hyper, done):
        self.kept.append((batches, self.run.engine.weights()))
        return self.inner(batches, hyper, done)


def batches_of(kind, network, engine_name):
    config = RecurrentPPOConfig(
        network=network, rollout_length=18, sequence_length=6, minibatch_size=36, epochs=1, learning_rate=1e-2,
        normalize_observation=True,
    )  # fmt: skip
    world = partial(Long, gym.spaces.Box(-1, 1, (2,), np.float32))
    with Run(kind(config), world, engine=engine_name, environments=4, seed=1) as run:
        run.learner.gradients = recorder = Kept(run)
        learned = [event for event in run.steps(3 * 72) if type(event).__name__ == "Learned"]
        ring = run.learner.replay.ring
    assert len(recorder.kept) == len(learned) == 3
    return recorder.kept, ring, run.agent


@pytest.mark.variant
@pytest.mark.parametrize("network", TRANSFORMERS)
def test_states_that_are_not_recorded_are_computed_again_as_they_were(network, engine_name):
    (found, ring, agent), (expected, recorded, _) = (
        batches_of(kind, TRANSFORMERS[network], engine_name) for kind in (RecurrentPPO, Recording)
    )
    assert not agent.state_recorded and "recurrent_state" not in ring.extras and "recurrent_state" in recorded.extras
    for (own, weights), (theirs, _) in zip(found, expected, strict=True):
        assert own.extras.keys() == theirs.extras.keys()
        for name in ("advantage", "value", "return", "log_prob", "first"):
            np.testing.assert_allclose(own.extras[name], theirs.extras[name], rtol=0, atol=2e-5)
        actor = NumpyEngine(agent, ring.spaces)
        actor.load(weights)
        bound = actor.layout.bind(weights)
        for batch in (own, theirs):
            state, seen = batch.extras["recurrent_state"][0], bound.normaliser(batch.observation[0])
            x, _ = bound.model["policy"].unroll(seen, state[:, : bound.actor_size], batch.extras["first"][0])
            log_prob = bound.policy.of(bound.model, batch.observation[0], x).log_prob(batch.sampled_action[0])
            np.testing.assert_allclose(log_prob, batch.extras["log_prob"][0], rtol=0, atol=1e-4)
    assert found[1][0].extras["recurrent_state"].any(-1).mean() > 0.2, "sequences that go on"


@pytest.mark.variant
def test_a_resumed_run_goes_on_from_the_states_that_its_rollout_began_with(engine_name, tmp_path):
    config = RecurrentPPOConfig(network=ATTENTIVE, rollout_length=16, sequence_length=8, minibatch_size=32, epochs=1)
    world = partial(Long, gym.spaces.Discrete(2))
    with Run("recurrent_ppo", world, config=config, engine=engine_name, environments=2, seed=1) as run:
        run.train(32 * 2 + 10)
        run.save(tmp_path / "run.etude")
        run.train(32)
        expected = run.engine.weights()
    for workers in (0, 2):
        with etude.load(tmp_path / "run.etude", env=world, workers=workers) as resumed:
            resumed.train(32)
            for name, value in resumed.engine.weights().items():
                np.testing.assert_array_equal(value, expected[name])


DELAY = 4
ON_POLICY = {
    "rollout_length": 20,
    "minibatch_size": 160,
    "epochs": 4,
    "learning_rate": 1e-2,
    "gamma": 0.95,
    "entropy_coefficient": 0.01,
}
CUED = RecurrentPPOConfig(**ON_POLICY, network=Recurrent(Mlp((16,), "tanh", "orthogonal"), 16), sequence_length=10)

SEEING = Transformer(layers=1, width=16, heads=2, feedforward=32, context=8)


@pytest.mark.one_engine("jax")
def test_what_was_seen_at_the_beginning_is_acted_by_at_the_end(engine_name):
    with Run("recurrent_ppo", partial(Cue, DELAY), config=CUED, engine=engine_name, environments=16, seed=1) as run:
        run.train(9_600)
        assert returns_for_both_cues(run, DELAY) == [1.0, 1.0]


@pytest.mark.variant
def test_a_transformer_acts_by_what_was_seen_at_the_beginning(engine_name):
    config = RecurrentPPOConfig(**{**ON_POLICY, "learning_rate": 5e-3}, network=SEEING, sequence_length=10)
    with Run("recurrent_ppo", partial(Cue, DELAY), config=config, engine=engine_name, environments=16, seed=1) as run:
        run.train(9_600)
        assert returns_for_both_cues(run, DELAY) == [1.0, 1.0]


@pytest.mark.variant
def test_ppo_acts_alike_for_both_cues(engine_name):
    config = PPOConfig(**ON_POLICY, network=Mlp((16,), "tanh"))
    with Run("ppo", partial(Cue, DELAY), config=config, engine=engine_name, environments=16, seed=1) as run:
        run.train(9_600)
        assert sum(returns_for_both_cues(run, DELAY)) == 0.0


def test_what_cannot_be_is_refused(engine_name):
    with pytest.raises(
        ConfigError, match=r"rollout_length = 20, sequence_length = 8; expected a rollout of whole sequences"
    ):
        RecurrentPPOConfig(rollout_length=20, sequence_length=8)
    with pytest.raises(ConfigError, match="value_clip_range = -1"):
        RecurrentPPOConfig(value_clip_range=-1)
    for algorithm, config, more, message in (
        (
            "ppo",
            PPOConfig(network=Recurrent()),
            {},
            r"whose recurrent state this algorithm does not keep.*recurrent_ppo",
        ),
        ("recurrent_ppo", RecurrentPPOConfig(network=Mlp((8,))), {}, r"keeps no recurrent state.*Recurrent\("),
        ("recurrent_ppo", RecurrentPPOConfig(), {"explorer": Greedy()}, r"Give Sample, or leave it out"),
    ):
        with pytest.raises(ConfigError, match=message):
            Run(algorithm, "CartPole-v1", config=config, engine=engine_name, **more)
