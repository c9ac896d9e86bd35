"""Two features at once: what an agent learns is what it learns without the second one, bit for bit or to rounding; what
priorities, hindsight and several steps give to the loss, together too, is what a slow program says, and so is what is
learned from it; and what contradicts each other is refused."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from solo_agents import OfTriplets, Reaching, agent_for, continuous, discrete, on_policy, once, pool_of, train
from solo_agents_worlds import Pair, Reach, Walk

import etude
from etude.base.errors import ConfigError
from etude.explore import EpsGreedyQPolicy
from etude.solo import LambdaCallback
from etude.solo.engines import parameters
from etude.tuning import LRFinder

pytestmark = [pytest.mark.usefixtures("workers_step"), pytest.mark.variant]  # which knows no engine
LONG = lambda: Walk(length=7)  # noqa: E731
ADAPTED = {"lr_params": {"rate": 0.2}, "batch_params": {"min": 2, "max": 16}}


class Reporting:
    """Reports what was earned as the error of each example, of all agents where there are several."""

    def __call__(self, s, a, next_s, r, d):
        self.prioritized_replay.update(r if len(r.shape) == 1 else r[:, 0] + r[:, 1])
        return super().__call__(s, a, next_s, r, d)


class Discounting:
    gamma = 0.9


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
    "hindsight by priorities": ("DDPG", (Reaching, Reporting), [Reach, Reach], continuous(HER=True, PR=True)),
    "hindsight of several steps": ("DDPG", (Reaching,), [Reach, Reach], continuous(HER=True, num_steps=3)),
    "team by priorities": ("Team", (Reporting,), [Pair, Pair], discrete(MARL=True, PR=True)),
    "team of several steps": ("Team", (Discounting,), [Pair, Pair], discrete(MARL=True, num_steps=3)),
    "triplets by priorities": ("DQN", (OfTriplets,), [Walk, LONG], discrete(TRL=True, PR=True)),
    "several steps by priorities": ("DQN", (), [Walk, LONG], discrete(num_steps=3, PR=True, num_updates=5)),
    "PPO of several steps": ("PPO", (), [Walk, LONG], on_policy(num_steps=3)),
    "adapted hindsight": ("DDPG", (Reaching, Reporting), [Reach, Reach], continuous(HER=True, PR=True)),
    "adapted team": ("Team", (Reporting,), [Pair, Pair], discrete(MARL=True, PR=True)),
    "adapted PPO": ("PPO", (), [Walk, LONG], on_policy(PR=True, num_updates=4)),
}
FEATURES = ("callbacks", "finder", "saved", "again", "pool")
POOLS = ("DQN", "hindsight")  # whose processes are started also without --whole
ON_EVERY_ENGINE = {  # what compiles in a minute
    "hindsight by priorities": "saved",
    "several steps by priorities": "finder",
    "PPO with priorities": "callbacks",
    "team": "again",
}


def marks_of(kind, feature):
    if feature == "pool" and kind not in POOLS:
        return pytest.mark.long
    return () if ON_EVERY_ENGINE.get(kind) == feature else pytest.mark.variant


CELLS = [pytest.param(kind, feature, marks=marks_of(kind, feature)) for kind in KINDS for feature in FEATURES]


def new(kind, engine_name):
    algorithm, mixins, env, settings = KINDS[kind]
    agent = agent_for(engine_name, algorithm, *mixins, env=env)
    agent.set(**settings)
    if "adapted" in kind:
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


# -- beside a slow program ---------------------------------------------------------------------------------------------

GAMMA, ALPHA, INITIAL, RATE, BATCH, LENGTH = 0.9, 0.7, 7.0, 0.05, 4, 6
NUMBERS = Box(-100.0, 100.0, (3,), np.float32)
OF_GOALS = Dict(
    {
        "observation": NUMBERS,
        "achieved_goal": Box(-9, 9, (1,), np.float32),
        "desired_goal": Box(-9, 9, (1,), np.float32),
    }
)


class Line(gym.Env):
    """Six steps to the left or to the right. Each observation tells itself apart by a random number; `log` is what
    happened, one list of steps for each episode. Every second episode terminates, others are truncated."""

    action_space = Discrete(2)

    def __init__(self, log, goals):
        self.log, self.goals = log, goals
        self.observation_space = OF_GOALS if goals else NUMBERS

    def observe(self):
        self.now = np.array([self.position, self.t, self.np_random.normal()], np.float32)
        if not self.goals:
            return self.now
        achieved, desired = np.float32([self.position]), np.float32([0.5])
        return {"observation": self.now, "achieved_goal": achieved, "desired_goal": desired}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = 0, 0
        self.log.append([])
        return self.observe(), {}

    def step(self, action):
        before = self.now
        self.position, self.t = self.position + 2 * int(action) - 1, self.t + 1
        seen, reward = self.observe(), float(self.position) if not self.goals else -1.0
        over, ends = self.t == LENGTH, len(self.log) % 2 == 0 and not self.goals
        self.log[-1].append(
            SimpleNamespace(s=before, a=int(action), next_s=self.now, r=reward, over=over and ends, at=self.position)
        )
        return seen, reward, over and ends, over and not ends, {}


def reached(achieved, goal):
    done = np.abs(achieved - goal)[..., 0] < 0.1
    return np.where(done, 0.0, -1.0).astype(np.float32), done


def expected_row(episode, t, steps, goal):
    """(next_s, r, d) of the transition from step t on, over at most so many steps; goal: one in hindsight, or None."""
    earned, m, done = 0.0, 0, False
    for step in episode[t : t + steps]:
        reward, done = (step.r, step.over) if goal is None else reached(np.array([step.at]), np.array([goal]))
        earned, m = earned + GAMMA**m * float(reward), m + 1
        if done:
            break
    return episode[t + m - 1].next_s, earned, 1.0 if done else 1 - GAMMA ** (m - 1)


class SlowProgram:
    """Checks every minibatch against what happened, and learns from it by hand."""

    def __init__(self, log, weight, bias, steps, prioritised):
        self.log, self.weight, self.bias, self.steps, self.prioritised = log, weight, bias, steps, prioritised
        self.target = weight.copy(), bias.copy()
        self.errors, self.largest, self.relabelled = [], None, []
        self.places = {}  # by the number that tells an observation apart: episode, step, row of the pool

    def collected(self, episodes):
        self.played = [episode for episode in self.log if episode][:episodes]
        for e, episode in enumerate(self.played):
            for t, step in enumerate(episode):
                if step.s[2] not in self.places:
                    self.places[step.s[2]] = e, t, len(self.errors)
                    self.errors.append(INITIAL if self.largest is None else self.largest)

    def learn(self, s, a, next_s, r, d):
        found = [self.places[row[2]] for row in s]
        if self.prioritised:  # draw j is of the j-th part of all priorities, laid side by side
            ends = np.cumsum((np.abs(self.errors) + 1e-6) ** ALPHA)
            for j, (_, _, row) in enumerate(found):
                low, high = j * ends[-1] / BATCH, (j + 1) * ends[-1] / BATCH
                assert ends[row] > low * (1 - 1e-4) and (ends[row - 1] if row else 0) < high * (1 + 1e-4)
        for i, (e, t, _) in enumerate(found):
            step, goal = self.played[e][t], None
            if s.shape[1] == 4:
                later = [float(one.at) for one in self.played[e][t:]]
                assert s[i, 3] in [0.5, *later], "a goal that is reached later on, or the one that was given"
                goal = None if s[i, 3] == 0.5 else float(s[i, 3])
                self.relabelled.append(goal is not None)
            after, earned, done = expected_row(self.played[e], t, self.steps, goal)
            assert np.array_equal(s[i, :3], step.s) and a[i] == step.a and np.array_equal(next_s[i, :3], after)
            assert np.array_equal(next_s[i, 3:], s[i, 3:]), "one goal on both ends"
            assert (r[i], d[i]) == pytest.approx((earned, done), rel=1e-5, abs=1e-6)
        wanted = r + GAMMA * (1 - d) * (next_s @ self.target[0].T + self.target[1]).max(1)
        error = (s @ self.weight.T + self.bias)[np.arange(BATCH), a] - wanted
        for action in range(2):
            chosen = 2 / BATCH * error * (a == action)
            self.weight[action] -= RATE * chosen @ s
            self.bias[action] -= RATE * chosen.sum()
        for (_, _, row), one in zip(found, error, strict=True):
            self.errors[row] = abs(one)
        self.largest = max(self.largest or 0.0, np.abs(error).max())
        return np.mean(error**2)


SLOW = [(steps, priorities, goals) for steps in (1, 3) for priorities in (False, True) for goals in (False, True)]


@pytest.mark.parametrize(("steps", "priorities", "goals"), SLOW)
def test_several_steps_priorities_and_hindsight_are_what_a_slow_program_says(steps, priorities, goals, engine_name):
    once(engine_name)
    import torch

    log = []

    class Linear(etude.RL_pytorch):
        def __init__(self):
            torch.manual_seed(3)
            self.q, self.target = torch.nn.Linear(3 + goals, 2), torch.nn.Linear(3 + goals, 2)
            self.target.load_state_dict(self.q.state_dict())
            self.param, self.env, self.gamma, self.notes = self.q.parameters(), lambda: Line(log, goals), GAMMA, []

        reward_done_func = staticmethod(reached)

        def action(self, s):
            return self.q(s)

        def __call__(self, s, a, next_s, r, d):
            self.notes.append([x.numpy().copy() for x in (s, a, next_s, r, d)])
            wanted = (r + self.gamma * (1 - d) * self.target(next_s).amax(1)).detach()
            error = self.q(s).gather(1, a[:, None])[:, 0] - wanted
            self.prioritized_replay.update(error)
            return error**2

        def update_param(self):
            self.notes.append("follow")
            self.target.load_state_dict(self.q.state_dict())

    agent = Linear()
    agent.set(
        policy=EpsGreedyQPolicy(0.5), pool_size=500, batch=BATCH, num_updates=8, num_steps=steps, update_batches=3,
        PR=priorities, HER=goals, initial_TD=INITIAL, alpha=ALPHA,
    )  # fmt: skip
    slow = SlowProgram(
        log, *(value.detach().numpy().astype(np.float64) for value in agent.q.parameters()), steps, priorities
    )
    losses = []
    for call in range(2):  # `train` again
        agent.train(torch.optim.SGD(agent.param, RATE) if call == 0 else None, 4, p=0)
    learned = 0
    for note in agent.notes:
        if isinstance(note, str):
            slow.target = slow.weight.copy(), slow.bias.copy()
            continue
        slow.collected(learned // 8 + 1)
        losses.append(slow.learn(*note))
        learned += 1
    assert learned == 8 * 8
    assert agent.loss_list == pytest.approx(np.reshape(losses, (8, 8)).mean(1), rel=1e-3)
    for value, by_hand in zip(agent.q.parameters(), (slow.weight, slow.bias), strict=True):
        np.testing.assert_allclose(value.detach().numpy(), by_hand, rtol=1e-3, atol=1e-4)
    if goals:
        assert 0.7 < np.mean(slow.relabelled) < 0.9


REFUSED = {
    "HER PPO": "HER=True relabels the past, PPO=True",
    "HER MARL": "HER=True relabels the goal of one agent; MARL=True",
    "TRL HER": "TRL=True makes batches of its own kind.*HER",
    "TRL MARL": "TRL=True makes batches of its own kind.*MARL",
    "TRL IRL": "TRL=True makes batches of its own kind.*IRL",
    "TRL num_steps": "TRL=True makes batches of its own kind.*num_steps",
    "IRL HER": "IRL=True takes the rewards of single steps.*HER",
    "IRL MARL": "IRL=True takes the rewards of single steps.*MARL",
    "IRL num_steps": "IRL=True takes the rewards of single steps.*num_steps",
}


@pytest.mark.parametrize("pair", REFUSED)
def test_features_that_contradict_each_other_are_refused_in_the_users_words(pair, engine_name):
    once(engine_name)
    both = {name: 3 if name == "num_steps" else True for name in pair.split()}
    with pytest.raises(ConfigError, match=REFUSED[pair]):
        agent_for(engine_name).set(policy=EpsGreedyQPolicy(0.1), update_steps=10, **both)
