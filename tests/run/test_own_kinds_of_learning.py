"""A kind of learning that etude does not know: config, replay, view, update schedule and rollout of a user's own."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude import Agent, Loss, Losses, Mlp, Run, ops
from etude.base.data import Batch, Choice, Steps
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.config import Config
from etude.losses.distributions import UNMASKED, of_choices
from etude.replay import Buffer, Ring
from etude.training.description import Execution
from etude.training.kinds import LearningKind
from etude.training.schedule import UpdatesDue


class Bandit(gym.Env):
    """The second action earns 1, the first nothing. Episodes of 5 steps."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return self.np_random.random(2, np.float32), float(action), self.time == 5, False, {}


@dataclasses.dataclass(frozen=True)
class SweepConfig(Config):
    """Each sweep takes the newest transitions, `passes` times."""

    network: Mlp = Mlp((4,))
    learning_rate: float = 0.05
    sweep_every: int = 20
    passes: int = 2


class Sweeper(Agent):
    """Makes actions likelier that earned more than the average."""

    def build(self, make, spaces):
        self.policy, self.space = make(self.config.network, spaces.observation, outputs=2), spaces.action

    def act(self, observation):
        return of_choices(self.space, self.policy(observation), UNMASKED)

    def loss(self, batch, noise):
        likely = self.act(batch.observation).log_prob(batch.action)
        return Losses(policy=Loss(-ops.mean(batch.weight * batch.reward * likely)))


# -- parts of one's own ------------------------------------------------------------------------------------------------


class Stateless:
    def adjust(self, hyper): ...

    def state(self):
        return {}

    def check_state(self, saved):
        saved.fields(())

    def restore(self, state): ...


class NewestRows(Stateless):
    """Selects the newest n rows, for each of k batches."""

    def select(self, ring, k, n, rng):
        rows = ring.locate(np.arange(len(ring) - n, len(ring)))
        return np.tile(rows, (k, 1)), np.ones((k, n), np.float32)

    def added(self, ring, rows): ...

    def removed(self, ring, rows): ...

    def update(self, rows, errors, ratios=None): ...

    def check_state(self, saved, stored):
        saved.fields(())


class CentredRewards(Stateless):
    """Transitions with rewards less a running mean, which is saved with the replay."""

    mean = 0.0

    def __call__(self, ring, rows, weight):
        reward, _ = ring.outcome(rows)
        self.mean += 0.5 * (float(reward.mean()) - self.mean)
        batch = {"observation": ring.observation(rows), "action": ring.actions(rows), "next_observation": None}
        centred = (reward - np.float32(self.mean)).astype(np.float32)
        return Batch(**batch, reward=centred, discount=np.ones_like(reward), weight=weight, index=rows)

    def state(self):
        return {"mean": self.mean}

    def check_state(self, saved):
        saved.fields(("mean",))["mean"].number()

    def restore(self, state):
        self.mean = state["mean"]


@dataclasses.dataclass
class SweepSchedule:
    config: SweepConfig
    count: int
    examples = 20
    forgets = False

    def steps_until_update(self, step, stored):
        return -(-(self.config.sweep_every - step % self.config.sweep_every) // self.count)

    def updates_due(self, progress, replay):
        due = progress.step // self.config.sweep_every > progress.phases
        progress.phases = progress.step // self.config.sweep_every
        return UpdatesDue(self.config.passes if due else 0, self.config.sweep_every)


class Sweeps(LearningKind):
    """Learning from the newest transitions, in sweeps."""

    name = "sweeps"
    config = SweepConfig
    environments = 4

    def replay(self, context):
        ring = Ring(context.engine.spaces, 200, context.count, {})
        return Buffer(ring, NewestRows(), CentredRewards(), generator(context.execution.seed, "replay"))

    def update_schedule(self, config, count):
        return SweepSchedule(config, count)

    def explorer(self, agent, spaces, total, count):
        return etude.explore.Sample(log_prob=False)


class SweepAgent(Sweeper):
    learns_from = Sweeps()


def sweeping(**more):
    return Run(SweepAgent(SweepConfig()), Bandit, engine="torch", seed=3, **more)


def same(one, other):
    return all(np.array_equal(value, other[name]) for name, value in one.items())


def test_a_kind_of_ones_own_learns_in_process_and_in_workers_alike():
    with sweeping() as run, sweeping(workers=2) as pool:
        before = run.evaluate(4).mean
        for each in (run, pool):
            finished = each.train(800)
            assert finished.totals["gradient_steps"] == 2 * 800 // 20
        assert (run.execution.environments, run.evaluate(4).mean) == (4, 5.0)
        assert before < 5.0 or run.learner.replay.view.mean > 0.9
        assert run.learner.replay.view.mean == pool.learner.replay.view.mean > 0.9
        assert same(run.engine.weights(), pool.engine.weights())


def test_a_kind_of_ones_own_goes_on_from_a_checkpoint_with_the_same_numbers(tmp_path):
    with sweeping() as run:
        run.train(90)  # in the middle of a sweep
        run.save(tmp_path / "run.etude")
        run.train(110)
        expected, mean = run.engine.weights(), run.learner.replay.view.mean
    with pytest.raises(ConfigError, match="an agent of your own, sweepagent: give it again, as agent="):
        etude.load(tmp_path / "run.etude", Bandit)
    with etude.load(tmp_path / "run.etude", Bandit, agent=SweepAgent(SweepConfig()), workers=2) as again:
        assert again.step == 90
        again.train(110)
        assert same(expected, again.engine.weights()) and again.learner.replay.view.mean == mean


def test_a_config_that_is_not_one_of_the_kind_is_refused():
    with pytest.raises(ConfigError, match="SweepAgent learns from sweeps, and DQNConfig is no SweepConfig"):
        Run(SweepAgent(etude.algorithms.DQNConfig()), Bandit)

    class Misnamed(Sweeper):
        learns_from = "sweeps"

    with pytest.raises(ConfigError, match="Misnamed.learns_from = 'sweeps'; expected a LearningKind, or one of trans"):
        Run(Misnamed(SweepConfig()), Bandit)


# -- a replay, an explorer and a rollout that share nothing with etude's -----------------------------------------------


class LastSteps(Stateless):
    """A replay that keeps the last steps it was given."""

    def __init__(self):
        self.kept = None

    def __len__(self):
        return 0 if self.kept is None else len(self.kept)

    def add(self, steps):
        self.kept = steps

    def sample(self, k, n):
        steps, shape = self.kept, (k, n)
        reward = np.broadcast_to(steps.reward.reshape(1, -1) - np.float32(0.5), shape)
        observation = np.broadcast_to(steps.observation.reshape(1, n, -1), (k, n, 2))
        action = np.broadcast_to(steps.action.reshape(1, -1), shape)
        ones = np.ones(shape, np.float32)
        return Batch(observation.copy(), action.copy(), reward.copy(), ones, None, ones, np.zeros(shape, np.int64))

    def update(self, batches, td_error, ratio=None): ...

    def trim(self, keep): ...

    def clear(self):
        self.kept = None


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Takes the actions in turn, wherever the policy is."""

    state_size: int = 1

    def of(self, columns):
        return self

    def draw(self, rng, steps, action_space):
        return np.zeros((steps, 0), np.float32)

    def __call__(self, output, noise, step, state):
        state[:, 0] = np.where(np.isnan(state[:, 0]), 0, 1 - state[:, 0])
        return Choice(state[:, 0].astype(np.int64), {})


class Dreamt:
    """A rollout without a Gymnasium environment: it makes its observations up."""

    def __init__(self, context, explorer):
        self.spaces, self.environments = context.engine.spaces, context.count
        self.explorer, self.engine, self.weights = explorer, context.engine, {}
        self.state_size = np.full((self.environments, 1), np.nan)
        self.time = 0

    def observed(self):
        return np.full((self.environments, 2), self.time % 7 / 7, np.float32)

    def collect(self, steps, step, environments=None, upcoming=0):
        seen, actions = [], []
        for _ in range(steps):
            seen.append(self.observed())
            output = self.engine.act(seen[-1])
            actions.append(self.explorer(output, np.zeros((self.environments, 0)), step, self.state_size).action)
            self.time += 1
        action = np.stack(actions)
        never = np.zeros(action.shape, bool)
        reward = action.astype(np.float32)
        finals, index = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64)
        return Steps(
            np.stack(seen), action, reward, never, never, self.observed(), finals, index,
            np.arange(self.environments), np.zeros(self.environments, bool),
        )  # fmt: skip

    def load(self, weights, version):
        self.weights = weights

    def warnings(self):
        return []

    def state(self):
        return {"time": self.time}

    def restore(self, state):
        self.time = state["time"]
        return []

    def close(self): ...


class Dreams(Sweeps):
    def replay(self, context):
        return LastSteps()

    def rollout(self, context, explorer):
        return Dreamt(context, explorer)


class Dreamer(Sweeper):
    learns_from = Dreams()


def test_a_replay_an_explorer_and_a_rollout_of_ones_own_are_used_as_they_are():
    with Run(
        Dreamer(SweepConfig()), Bandit, engine="torch", environments=4, execution=Execution(explorer=InTurn())
    ) as run:
        untrained = run.engine.weights()
        run.train(400)
        replay = run.learner.replay
        assert isinstance(replay, LastSteps)
        np.testing.assert_array_equal(replay.kept.action[:, 0], [1, 0, 1, 0, 1])
        np.testing.assert_allclose(replay.kept.observation[:, 0, 0], np.arange(95, 100) % 7 / 7)
        assert not same(untrained, run.engine.weights())
        assert run.evaluate(4).mean == 5.0, "the policy learned from what the rollout made up"
