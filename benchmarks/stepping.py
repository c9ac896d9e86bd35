"""Workers that only step, for networks that act in the parent; and whole episodes against chunks of time steps.

`python benchmarks/stepping.py` writes stepping.json: microseconds per time step of all environments. Networks are stood
in for by loops that take as long as is said ("300 + 0": a call takes 300 us, and no more for each observation), and so
are environments, but for CartPole. The spread of a measurement tells how much of the machine was ours.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium
import measure
import numpy as np

TIME_STEPS = 40  # in one measurement: short, so that some of them are not disturbed
# environment, microseconds of a call and of each observation in it, environments, workers
CASES = [
    ("200", 300, 0, 2, 2),
    ("200", 300, 0, 7, 7),
    ("200", 300, 0, 7, 2),
    ("200", 0, 200, 8, 2),
    ("CartPole-v1", 250, 0, 1, 1),
    ("CartPole-v1", 250, 0, 2, 2),
    ("CartPole-v1", 250, 0, 7, 7),
    ("CartPole-v1", 250, 0, 16, 2),
]


def spin(microseconds: float) -> None:
    """Take so long, as a computation does."""
    until = time.perf_counter() + microseconds * 1e-6
    while time.perf_counter() < until:
        pass


class Spinning(gymnasium.Env):
    """Steps take as long as is said; episodes have 200 of them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, microseconds: float):
        self.microseconds, self.t = microseconds, 0

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        spin(self.microseconds)
        self.t += 1
        return np.zeros(4, np.float32), 1.0, False, self.t >= 200, {}


class Network:
    """Acts as slowly as is said."""

    state_size = 0

    def __init__(self, call: float, each: float):
        self.call, self.each = call, each

    def act(self, observation: np.ndarray) -> np.ndarray:
        spin(self.call + self.each * len(observation))
        return observation[:, :2]

    def load(self, weights: Any) -> None:
        """Nothing to load."""


def made(environment: str) -> Any:
    """What makes environments of this kind, for these columns."""
    from etude.envs import make_environments

    kind: Any = functools.partial(Spinning, float(environment)) if environment[0].isdigit() else environment
    return functools.partial(make_environments, kind, run_seed=0, vectorization="loop")


def lockstep(case: tuple, repeats: int) -> dict[str, list[float]]:
    """Microseconds per time step of one case."""
    from etude.explore import EpsilonGreedy
    from etude.rollout import InProcess, LockstepPool, PoolOptions

    environment, call, each, n, workers = case
    make, network, explorer = made(environment), Network(call, each), EpsilonGreedy(0.5, total=1)
    rollouts: dict[str, Any] = {
        "in process": InProcess(make(np.arange(n)), network, explorer, 0),
        "pool": LockstepPool(make, network, explorer, 0, n, workers),
    }
    if workers > 1:
        rollouts["pool, in halves"] = LockstepPool(make, network, explorer, 0, n, workers, PoolOptions(halves=True))
    found: dict[str, list[float]] = {name: [] for name in rollouts}
    for _ in range(10 * repeats):
        for name, rollout in rollouts.items():
            began = time.perf_counter()
            rollout.collect(TIME_STEPS, 0)
            found[name].append((time.perf_counter() - began) / TIME_STEPS * 1e6)
    for rollout in rollouts.values():
        rollout.close()
    return found


def whole(env_id: str, environments: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds of processor time per environment step, of chunks of 200 time steps and of whole episodes."""
    import rollouts

    pair = {name: rollouts.rollout(env_id, 0, environments) for name in ("chunks", "episodes")}
    found: dict[str, list[float]] = {name: [] for name in pair}
    for _ in range(repeats + 1):
        for name, rollout in pair.items():
            began, taken = time.process_time(), 0
            while taken < 4000:
                parts = (rollout.collect(200, 0),) if name == "chunks" else rollout.collect_episodes(0)
                taken += sum(len(part) for part in parts)
            found[name].append((time.process_time() - began) / taken * 1e6)
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    options = measure.arguments(__doc__).parse_args()
    results: dict[str, Any] = {}
    for env_id, environments in (("CartPole-v1", 1), ("CartPole-v1", 8), ("HalfCheetah-v5", 1), ("HalfCheetah-v5", 8)):
        title = f"{env_id}, {environments} environments in one process"
        rows = {name: measure.summary(values) for name, values in whole(env_id, environments, options.repeats).items()}
        measure.show(title, rows, "us of processor time per environment step")
        results[title] = rows
    for case in CASES:
        environment, call, each, n, workers = case
        title = f"environment {environment}, network {call} + {each}, {n} environments, {workers} workers"
        rows = {name: measure.summary(values) for name, values in lockstep(case, options.repeats).items()}
        measure.show(title, rows, "us per time step")
        results[title] = rows
    measure.write(__file__, results)


if __name__ == "__main__":
    main()
