"""Small problems with exact values, and episodes of them as the arrays that estimators read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.estimation.estimators import METHODS


class Played(NamedTuple):
    """[E, T] arrays, zeros after the ends of episodes; q and v are the exact values under the target."""

    reward: np.ndarray
    log_ratio: np.ndarray
    q: np.ndarray
    v: np.ndarray

    def estimated(self, method: str, gamma: float, rows: slice = slice(None)) -> np.ndarray:
        """The contributions of these episodes."""
        return METHODS[method].estimator(*(part[rows] for part in self), gamma)


class Chain:
    """Finding of RLlib's weighted importance sampling: going on pays 1 at every step of at most 20, stopping ends. The
    behaviour goes on with probability 0.5; its value is 2.00."""

    longest = 20

    def __init__(self, target: float):
        self.target = target  # the probability of going on

    @property
    def truth(self) -> float:
        """The value of the target: the expected length."""
        return float((1 - self.target**self.longest) / (1 - self.target))

    def played(self, episodes: int, rng: np.random.Generator) -> tuple[Played, np.ndarray]:
        """Episodes of the behaviour, and their lengths."""
        goes_on = rng.random((episodes, self.longest)) < 0.5
        lengths = np.where(goes_on.all(1), self.longest, goes_on.argmin(1) + 1)
        alive = np.arange(self.longest) < lengths[:, None]
        ratio = np.where(goes_on, self.target / 0.5, (1 - self.target) / 0.5)
        nothing = np.zeros(alive.shape)
        return Played(alive.astype(float), np.log(ratio) * alive, nothing, nothing), lengths


def weighted_of_rllib(played: Played, lengths: np.ndarray) -> float:
    """Ray 2.60.0, rllib/offline/estimators/weighted_importance_sampling.py: the summed ratios of step t, divided by the
    number of episodes that reached it."""
    weight = np.exp(np.cumsum(played.log_ratio, 1))
    alive = np.arange(weight.shape[1]) < lengths[:, None]
    reached = alive.any(0)
    mean = (weight * alive)[:, reached].sum(0) / alive[:, reached].sum(0)
    return float(((weight * played.reward)[:, reached] / mean).sum(1).mean())


class RandomMDP:
    """Random transitions between 5 states under 3 actions, each of which ends the episode with probability 0.25."""

    states, actions, gamma, ends = 5, 3, 0.95, 0.25

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.transition = rng.dirichlet(np.ones(self.states), (self.states, self.actions))
        self.reward = rng.uniform(-1, 1, (self.states, self.actions))
        self.behaviour = rng.dirichlet(np.full(self.actions, 8.0), self.states)
        self.target = rng.dirichlet(np.full(self.actions, 8.0), self.states)
        self.v, self.q = self.values(self.target)

    def values(self, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The exact v [S] and q [S, A] of a policy [S, A], from the linear system of Bellman's equation."""
        onward = self.gamma * (1 - self.ends)
        moves = np.einsum("sa,sap->sp", policy, self.transition)
        v = np.linalg.solve(np.eye(self.states) - onward * moves, (policy * self.reward).sum(1))
        return v, self.reward + onward * self.transition @ v

    @property
    def truth(self) -> float:
        """The value of the target; episodes begin in state 0."""
        return float(self.v[0])

    def played(self, episodes: int, rng: np.random.Generator, longest: int = 70) -> Played:
        """Episodes of the behaviour. (One in 5e8 is longer than 70 steps, and cut off.)"""
        state, alive, columns = np.zeros(episodes, int), np.ones(episodes, bool), []
        while alive.any() and len(columns) < longest:
            action = _drawn(self.behaviour[state], rng)
            ratio = np.log(self.target[state, action] / self.behaviour[state, action])
            of_step = (self.reward[state, action], ratio, self.q[state, action], self.v[state])
            columns.append([np.where(alive, each, 0.0) for each in of_step])
            state = _drawn(self.transition[state, action], rng)
            alive &= rng.random(episodes) >= self.ends
        return Played(*(np.stack(part, 1) for part in zip(*columns, strict=True)))


def _drawn(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One of n for each row of chances [E, n]."""
    return (chances.cumsum(1) < rng.random((len(chances), 1))).sum(1).clip(max=chances.shape[1] - 1)


class FiniteHorizon:
    """A problem of Thomas & Brunskill 2016, arXiv:1604.00923, section 8, over `horizon` steps without discount.

    transition: [S, A, S]. reward: [S, S] of a move. seen: [S] what is observed of a state. behaviour, target: the
    probability of the first of two actions. Episodes begin in state 0.
    """

    def __init__(
        self, transition: np.ndarray, reward: np.ndarray, seen: np.ndarray, policies: tuple[float, float], horizon: int
    ):
        self.transition, self.reward, self.seen, self.horizon = transition, reward, seen, horizon
        self.behaviour, self.target = (np.array([chance, 1 - chance]) for chance in policies)

    def value(self, policy: np.ndarray) -> float:
        """Exact, by dynamic programming over states."""
        v = np.zeros(len(self.seen))
        for _ in range(self.horizon):
            v = np.einsum("a,sap,sp->s", policy, self.transition, self.reward + v)
        return float(v[0])

    def played(self, episodes: int, rng: np.random.Generator) -> Played:
        """Episodes of the behaviour; q and v are those of a tabular model of what is observed, fitted to them."""
        state, rows = np.zeros(episodes, int), []
        for _ in range(self.horizon):
            action = _drawn(np.tile(self.behaviour, (episodes, 1)), rng)
            following = _drawn(self.transition[state, action], rng)
            rows.append((self.seen[state], action, self.reward[state, following], self.seen[following]))
            state = following
        seen, action, reward, after = (np.stack(part, 1) for part in zip(*rows, strict=True))
        q, v = self._model(seen, action, reward, after)
        time = np.arange(self.horizon)
        ratio = np.log(self.target / self.behaviour)[action]
        return Played(reward, ratio, q[time, seen, action], v[time, seen])

    def _model(
        self, seen: np.ndarray, action: np.ndarray, reward: np.ndarray, after: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """q [T, O, 2] and v [T, O] of the target in the model whose moves and rewards are those counted."""
        size = self.seen.max() + 1
        counts, rewards = np.zeros((size, 2, size)), np.zeros((size, 2))
        np.add.at(counts, (seen, action, after), 1)
        np.add.at(rewards, (seen, action), reward)
        visits = np.maximum(counts.sum(-1), 1)
        q, v = np.zeros((self.horizon, size, 2)), np.zeros((self.horizon + 1, size))
        for time in reversed(range(self.horizon)):
            q[time] = rewards / visits + counts / visits[..., None] @ v[time + 1]
            v[time] = q[time] @ self.target
        return q, v[:-1]


def model_fails() -> FiniteHorizon:
    """Nothing is observed of the state, and the first action decides on the reward of the second step."""
    up, down = np.array([0, 1.0, 0]), np.array([0, 0, 1.0])
    transition = np.stack([np.stack([up, down]), np.stack([up, up]), np.stack([down, down])])
    reward = np.array([[0.0, 0, 0], [0, 1, 0], [0, 0, -1]])
    return FiniteHorizon(transition, reward, np.zeros(3, int), (0.88, 0.12), 2)


def model_wins() -> FiniteHorizon:
    """States are observed, and every second action does nothing but add variance to weights."""
    home = np.array([1.0, 0, 0])
    leave = np.array([[0, 0.4, 0.6], [0, 0.6, 0.4]])
    transition = np.stack([leave, np.stack([home, home]), np.stack([home, home])])
    reward = np.array([[0.0, 1, -1], [0, 0, 0], [0, 0, 0]])
    return FiniteHorizon(transition, reward, np.arange(3), (0.73, 0.27), 20)
