"""Does a PPO update of etude equal one of Stable-Baselines3, and one by CleanRL's formulas, number by number?

`python benchmarks/compare_ppo_update.py --peers PYTHON` collects rollouts and learns from them with etude;
peers_ppo_update.py then starts from the same weights, gives the same actions to an environment of its own, and learns
from the same minibatches. Prints the largest difference of each quantity, relative to the largest size that it has.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import measure
import numpy as np

import etude
from etude.base import trees
from etude.base.data import Batch
from etude.base.seeding import episode_seed

CASES = {  # environment, time limit: episodes that are terminated, terminated or truncated, and truncated
    "Hopper-v5": ("Hopper-v5", 1_000),
    "Hopper-v5, at most 20 steps": ("Hopper-v5", 20),
    "Pendulum-v1": ("Pendulum-v1", 200),
}
PEERS = {
    "sb3": "Stable-Baselines3, but for the deviation of advantages: over n, as etude's, not over n - 1",
    "sb3-as-it-is": "Stable-Baselines3 as it is",
    "cleanrl": "CleanRL's formulas, but truncated episodes are bootstrapped, and the same deviation",
}
ROLLOUT = ("observation", "taken", "reward", "terminated", "truncated", "final_observation", "log_prob")
ESTIMATES = ("value", "advantage", "return")
GRADIENT_STEP = ("policy_loss", "value_loss", "entropy", "gradient_norm", "gradient", "bounded_gradient", "weights")
SHOWN = (1, 10, 32, 320)  # gradient steps of an update


class Kept(gym.Wrapper):
    """Keeps the actions that it is given in a list."""

    def __init__(self, env: gym.Env, taken: list[np.ndarray]):
        super().__init__(env)
        self.taken = taken

    def step(self, action: np.ndarray) -> Any:
        self.taken.append(np.array(action))
        return self.env.step(action)


class Recorder:
    """A run of etude, taken apart into its rollouts and gradient steps.

    `found` holds the weights at the start, the seeds of the episodes, and all that ROLLOUT,
    ESTIMATES and GRADIENT_STEP name, as `update/name`.
    """

    def __init__(self, environment: str, limit: int, engine: str, seed: int):
        self.taken: list[np.ndarray] = []
        make: Callable[[], gym.Env] = lambda: Kept(gym.make(environment, max_episode_steps=limit), self.taken)  # noqa: E731
        config = etude.algorithms.PPOConfig(
            rollout_length=2_048, minibatch_size=64, epochs=10, normalize_observation=False, normalize_reward=False
        )  # Stable-Baselines3's defaults
        self.run = etude.Run(
            "ppo",
            make,
            config=config,
            environments=1,
            engine=engine,
            seed=seed,
            execution=etude.Execution(device="cpu"),
        )
        self.names = sorted(self.run.engine.state()["first"])
        seeds = [episode_seed(seed, 0, episode) for episode in range(1_000)]
        self.found = {"seeds": np.array(seeds), "names": np.array(self.names)}
        self.found |= {f"initial/{name}": x for name, x in self.run.engine.weights().items()}

    def update(self, number: int) -> None:
        """One rollout and one learning phase, in the order in which the loop of a run has them."""
        learner, collection = self.run.learner, self.run.collection
        collection.open(learner.progress.total, *learner.exploring_policy())
        self.taken.clear()
        (steps,) = collection.collect(
            learner.collect_request(self.run.agent.config.rollout_length), learner.progress.step, 0
        )
        learner.take(steps)
        due, hyper = learner.update_schedule.updates_due(learner.progress, learner.replay), learner.hyper()
        learner.replay.adjust(hyper)
        batches = learner.replay.sample(due.gradient_steps, due.size)
        told = [self._gradient_step(batches, i, hyper) for i in range(due.gradient_steps)]
        learner.update_schedule.after_updates(learner.replay)
        collection.load(*learner.exploring_policy())
        order = np.argsort(batches.index[: len(steps) // due.size].reshape(-1))  # of the first pass, by time
        estimates = {name: batches.extras[name].reshape(-1)[order] for name in ESTIMATES}
        now = {
            "observation": steps.observation[:, 0],
            "action": steps.action[:, 0],
            "taken": np.stack(self.taken),
            "reward": steps.reward[:, 0],
            "terminated": steps.terminated[:, 0],
            "truncated": (steps.truncated & ~steps.terminated)[:, 0],  # what is bootstrapped
            "final_observation": steps.final_observation,
            "next_observation": steps.next_observation,
            "log_prob": steps.extras["log_prob"][:, 0],
            "rows": batches.index,
            **estimates,
            **{name: np.stack([step[name] for step in told]) for name in GRADIENT_STEP},
        }
        self.found |= {f"{number}/{name}": np.asarray(value) for name, value in now.items()}

    def _gradient_step(self, batches: Batch, i: int, hyper: dict[str, float]) -> dict[str, Any]:
        engine, beta = self.run.engine, self.run.agent.config.optimizer.beta1
        before = engine.state()["first"]
        gradient, _ = engine.gradients(_part(batches, i), hyper)
        metrics = engine.learn(_part(batches, slice(i, i + 1)), hyper).metrics
        after = engine.state()
        bounded = {name: (after["first"][name] - beta * before[name]) / (1 - beta) for name in self.names}
        vectors = {"gradient": gradient, "bounded_gradient": bounded, "weights": after["values"]}
        return {
            **{name: metrics[name] for name in ("policy_loss", "value_loss", "entropy")},
            "gradient_norm": metrics["model_gradient_norm"],
            **{key: np.concatenate([x[name].reshape(-1) for name in self.names]) for key, x in vectors.items()},
        }


def _part(batches: Batch, which: Any) -> Batch:
    fields = ("observation", "action", "reward", "discount", "weight", "index", "extras")
    parts = {name: trees.map(lambda x: x[which], getattr(batches, name)) for name in fields}
    return Batch(next_observation=None, **parts)


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest, relative to the largest size of either, or to 1 for single numbers that are smaller.

    A policy's loss is the mean of standardised advantages, and 0 but for rounding at the first gradient step.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        return float("inf")
    size = max(np.abs(ours).max(initial=0.0), np.abs(theirs).max(initial=0.0))
    size = size or 1.0 if ours.ndim else max(size, 1.0)
    return float(np.abs(ours - theirs).max(initial=0.0) / size)


def sizes(found: dict[str, np.ndarray]) -> np.ndarray:
    """The singular values of each matrix of weights as it was drawn, and the norms of the vectors, by name."""
    drawn = [found[name] for name in sorted(found) if name.startswith("initial/")]
    return np.concatenate([np.linalg.svd(np.atleast_2d(x), compute_uv=False) for x in drawn])


def rows_of(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], number: int) -> dict[str, list[float]]:
    """Differences of one update by quantity: one of those of the rollout, else one for each of SHOWN."""

    def at(name: str, pick: Any = slice(None)) -> float:
        return difference(ours[f"{number}/{name}"][pick], theirs[f"{number}/{name}"][pick])

    once = {name: [at(name)] for name in (*ROLLOUT, *ESTIMATES) if f"{number}/{name}" in theirs}
    return once | {name: [at(name, step - 1) for step in SHOWN] for name in GRADIENT_STEP}


def compare(case: str, engine: str, gradient_steps: int, seed: int, peers: str) -> dict[str, dict[str, dict]]:
    """Differences by peer, update and quantity."""
    environment, limit = CASES[case]
    recorder = Recorder(environment, limit, engine, seed)
    for number in range(gradient_steps):
        recorder.update(number)
    recorder.run.close()
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "etude.npz"
        np.savez(recorded, **recorder.found)
        found = {}
        for peer in PEERS:
            answered = Path(folder) / f"{peer}.npz"
            command = measure.script(
                "peers_ppo_update.py", peer, environment, str(limit), str(recorded), str(answered), python=peers
            )
            subprocess.run(command, check=True)
            with np.load(answered) as theirs:
                held = dict(theirs)
            found[peer] = {f"update {n + 1}": rows_of(recorder.found, held, n) for n in range(gradient_steps)}
            if peer != "cleanrl":
                found[peer]["update 1"]["initial_sizes"] = [difference(sizes(recorder.found), sizes(held))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="a Python that has requirements-peers.txt")
    parser.add_argument("--engine", default="torch", choices=("jax", "tensorflow", "torch"))
    parser.add_argument("--gradient-steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--only", default="", help="part of the name of a case")
    options = parser.parse_args()
    for case in (name for name in CASES if options.only in name):
        for peer, gradient_steps in compare(
            case, options.engine, options.gradient_steps, options.seed, options.peers
        ).items():
            for update, rows in gradient_steps.items():
                print(f"\n{case}, {update} of {options.engine}, beside {PEERS[peer]}; gradient steps {SHOWN}")
                for name, numbers in rows.items():
                    print(f"  {name:<18}" + "".join(f"{number:>10.1e}" for number in numbers), flush=True)


if __name__ == "__main__":
    main()
