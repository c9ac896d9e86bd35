"""What policies are learned by, one number after the other, as the papers write it. Lists and loops; no gradient of a
framework."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import assume


@dataclass
class Turn:
    """One action of one agent, and what came of it until its next one.

    ended: nothing of the same episode follows among the turns that are learned from. next_value: of what followed, 0
    where the episode terminated there.
    """

    reward: float
    value: float
    next_value: float = 0.0
    ended: bool = True
    log_ratio: float = 0.0


def advantages(turns: list[Turn], gamma: float, lam: float) -> list[float]:
    """Schulman et al. 2016, equation 16: `A_t = sum over l of (gamma lambda)^l delta_(t+l)` up to the end."""
    found = []
    for t in range(len(turns)):
        total = 0.0
        for step, turn in enumerate(turns[t:]):
            delta = turn.reward + gamma * turn.next_value - turn.value
            total += (gamma * lam) ** step * delta
            if turn.ended:
                break
        found.append(total)
    return found


def returns(turns: list[Turn], gamma: float) -> list[float]:
    """Sutton & Barto 2018, equation 3.9, and what is bootstrapped from at the end."""
    found = []
    for t in range(len(turns)):
        total = 0.0
        for step, turn in enumerate(turns[t:]):
            total += gamma**step * turn.reward
            if turn.ended:
                total += gamma ** (step + 1) * turn.next_value
                break
        found.append(total)
    return found


def vtrace(
    turns: list[Turn], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> tuple[list[float], list[float]]:
    """(targets v_t, advantages with their weights): Espeholt et al. 2018, equation 1 with remark 2, and section 4.2."""
    targets = []
    for t in range(len(turns)):
        total, product = turns[t].value, 1.0
        for step, turn in enumerate(turns[t:]):
            rho = min(rho_bar, math.exp(turn.log_ratio))
            total += gamma**step * product * rho * (turn.reward + gamma * turn.next_value - turn.value)
            product *= lam * min(c_bar, math.exp(turn.log_ratio))
            if turn.ended:
                break
        targets.append(total)
    weighted = []
    for t, turn in enumerate(turns):
        following = turn.next_value
        if not turn.ended:
            following += lam * (targets[t + 1] - turns[t + 1].value)
        rho = min(rho_bar, math.exp(turn.log_ratio))
        weighted.append(rho * (turn.reward + gamma * following - turn.value))
    return targets, weighted


def standardised(values: list[float]) -> list[float]:
    """Mean 0 and standard deviation 1; 0 where all are equal. One that is alone has no deviation and stays as it is.

    Nothing is compared where their differences are mostly the rounding of float32.
    """
    if len(values) < 2:
        return list(values)
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / len(values))
    if deviation <= 1e-6 * abs(mean):
        return [0.0] * len(values)
    assume(deviation > 0.03 * abs(mean))
    return [(x - mean) / (deviation + 1e-8) for x in values]


class Seen:
    """All numbers, or vectors, that were ever seen, and their moments."""

    def __init__(self, values=()):
        self.values = list(values)

    @property
    def mean(self):
        return np.mean(self.values, 0) if self.values else 0.0

    @property
    def scale(self):
        """The reciprocal standard deviation."""
        return 1.0 / np.sqrt(np.var(self.values, 0) + 1e-8) if self.values else 1.0

    def normalise(self, x):
        """At most 10 standard deviations from the mean."""
        return np.clip((np.asarray(x, np.float64) - self.mean) * self.scale, -10.0, 10.0)


class Adam:
    """Kingma & Ba 2015, algorithm 1, for arrays by name, with the gradient's joint norm bounded before it."""

    def __init__(self, epsilon: float, beta1: float = 0.9, beta2: float = 0.999):
        self.epsilon, self.betas = epsilon, (beta1, beta2)
        self.time, self.first, self.second = 0, {}, {}

    def step(self, weights: dict, gradient: dict, rate: float, limit: float | None) -> float:
        """Move the weights in place; returns the norm of the gradient."""
        norm = math.sqrt(sum(float(np.sum(np.square(g))) for g in gradient.values()))
        factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        self.time += 1
        b1, b2 = self.betas
        for name, own in gradient.items():
            own = factor * own
            self.first[name] = b1 * self.first.get(name, 0.0) + (1 - b1) * own
            self.second[name] = b2 * self.second.get(name, 0.0) + (1 - b2) * own**2
            mean, square = self.first[name] / (1 - b1**self.time), self.second[name] / (1 - b2**self.time)
            weights[name] = weights[name] - rate * mean / (np.sqrt(square) + self.epsilon)
        return norm


class Descent:
    """Plain gradient descent, which remembers nothing."""

    def step(self, weights: dict, gradient: dict, rate: float, limit: float | None) -> float:
        """Move the weights in place; returns the norm of the gradient."""
        norm = math.sqrt(sum(float(np.sum(np.square(g))) for g in gradient.values()))
        factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        for name, own in gradient.items():
            weights[name] = weights[name] - rate * factor * own
        return norm


class NoiseScale:
    """The size of batches that the noise of gradients asks for: McCandlish et al. 2018, appendix A.1, where numerator
    and denominator are averaged apart. It moves in powers of 2: at once by 4, and to a quarter and to four times the
    first one, at most.
    """

    def __init__(self, first: int, parts: int, smooth: float):
        self.first, self.parts, self.smooth = first, parts, smooth
        self.exponent, self.averages = 0.0, None

    def next_size(self, size: int, gradients: list[dict], examples: int) -> int:
        """After the gradients of parts of a batch, of so many examples each."""
        if not gradients:
            return size
        flat = [np.concatenate([own[name].ravel() for name in sorted(own)]) for own in gradients]
        small, large = np.mean([own @ own for own in flat]), np.mean(flat, 0) @ np.mean(flat, 0)
        many = examples * len(flat)
        found = np.array(
            [(small - large) / (1 / examples - 1 / many), (many * large - examples * small) / (many - examples)]
        )
        before = found if self.averages is None else self.averages
        self.averages = (1 - self.smooth) * before + self.smooth * found
        assume(np.all(np.abs(self.averages) > 1e-3 * abs(small)))  # their signs are more than rounding
        if np.any(self.averages <= 0):
            return size
        noise, squared = self.averages
        step = min(max(math.log2(noise / squared / size), -2.0), 2.0)
        self.exponent = min(max(self.exponent + step, -2.0), 2.0)
        assume(abs(self.exponent % 1.0 - 0.5) > 1e-2)
        return max(1, round(self.first * 2.0 ** round(self.exponent)))


def probabilities(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Softmax over what is allowed."""
    each = [math.exp(x - max(logits[allowed])) if may else 0.0 for x, may in zip(logits, allowed, strict=True)]
    return np.array(each) / sum(each)


def entropy(p: np.ndarray) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def log_prob_gradient(p: np.ndarray, action: int) -> np.ndarray:
    """Of the action's log probability, by the logits."""
    return np.array([(i == action) - x for i, x in enumerate(p)]) * (p > 0)


def entropy_gradient(p: np.ndarray) -> np.ndarray:
    """Of the entropy, by the logits."""
    h = entropy(p)
    return np.array([-x * (math.log(x) + h) if x > 0 else 0.0 for x in p])


def centred_ranks(fitness: list[float]) -> list[float]:
    """From -0.5 for the worst to 0.5 for the best; equal ones share the mean of theirs. Salimans et al. 2017."""
    found = []
    for x in fitness:
        below, equal = sum(y < x for y in fitness), sum(y == x for y in fitness)
        found.append((below + (equal - 1) / 2) / (len(fitness) - 1) - 0.5)
    return found
