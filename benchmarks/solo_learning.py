"""Do the example agents learn? Three seeds of each, in Keras on TensorFlow and on JAX, and in PyTorch.

`python benchmarks/solo_learning.py --jobs 2` writes solo_learning.json, cell by cell; what is there with the same
hyperparameters is not run again. `--only dqn/pool/torch` takes what holds the text.

CartPole is solved when training itself, exploration included, had a mean return of 475 over the last ten rounds; one
round is an episode of every environment. The other tasks are judged after training: 100 episodes, the best actions.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import measure
import numpy as np

from etude.examples.point import STEPS as POINT_STEPS
from etude.explore import ByAgent, EpsGreedyQPolicy, GaussianWhiteNoiseProcess, SoftmaxPolicy
from etude.protocols import Explorer
from etude.rollout import SingleEpisode
from etude.solo.agent import best_actions
from etude.solo.engines import acting_engine
from etude.solo.environments import UserEnvironments
from etude.solo.learner import conversion_for

ENGINES = ("jax", "tensorflow", "torch")
SEEDS = (1, 2, 3)  # those of the table; hyperparameters were looked for with seeds from 101
TRIALS, SOLVED = 10, 475.0  # CartPole-v1
EPISODES = 100  # that judge an agent after training
FIRST_RESET = 1_000_000  # the seed of the first of these; training resets with others


@dataclasses.dataclass(frozen=True)
class Agent:
    """An example agent: its module and class, the arguments that it is made with, the learning rate of each Adam."""

    module: str
    name: str
    arguments: tuple[float, ...]
    rates: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table.

    explorer: what makes the policy or the noise (named by `role`). settings, options: the other arguments of `set` and
    `train`. judge: from the trained agent to measured quantities, of which `score` is to be at least `bar`.
    """

    agent: Agent
    role: str
    explorer: Callable[[], Explorer]
    settings: dict[str, Any]
    episodes: int
    judge: Callable[[Any], dict[str, float]]
    bar: float
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """All hyperparameters, as plain data."""
        agent = {**dataclasses.asdict(self.agent), "arguments": [*self.agent.arguments], "rates": [*self.agent.rates]}
        training = {"episodes": self.episodes, **self.settings, **self.options}
        return {**agent, self.role: repr(self.explorer()), **training, "bar": self.bar}


# -- how agents are judged ---------------------------------------------------------------------------------------------


def while_training(agent: Any) -> dict[str, float]:
    """The highest mean return of ten rounds that follow each other; the last one, where it ended training."""
    rewards = np.array(agent.reward_list)
    means = np.convolve(rewards, np.full(TRIALS, 1 / TRIALS), "valid")
    return {"score": float(means.max()), "last_mean": float(means[-1])}


def goals_reached(agent: Any) -> dict[str, float]:
    """The share of episodes that reach the goal: all others have a reward of -1 at each of 50 steps."""
    returns = greedy_returns(agent)
    reached = returns > -POINT_STEPS
    return {
        "score": float(reached.mean()),
        "steps_to_goal": float(1 - returns[reached].mean()) if any(reached) else 0.0,
    }


def team_return(agent: Any) -> dict[str, float]:
    """The mean return, summed over the agents, and that of actions at random in the same episodes."""
    return {"score": float(greedy_returns(agent).mean()), "at_random": float(random_returns(agent).mean())}


def greedy_returns(agent: Any) -> np.ndarray:
    """What episodes earn with the best actions, without exploration: [EPISODES]."""
    described = UserEnvironments.of(agent.env, agent.seed).describe()
    agents = None if described.agents is None else len(described.agents.names)
    engine = acting_engine(agent, described.spaces, conversion_for(described.spaces.observation), agents)
    return returns_of(agent, engine, best_actions(described))


def random_returns(agent: Any) -> np.ndarray:
    """What episodes of several agents earn with actions at random: [EPISODES]."""
    actions = UserEnvironments.of(agent.env, agent.seed).describe().agents.actions
    uniform = tuple(np.full((1, space.n), 1 / space.n) for space in actions)
    actor = SimpleNamespace(state_size=0, act=lambda observation: uniform)
    return returns_of(agent, actor, ByAgent([SoftmaxPolicy()], actions))


def returns_of(agent: Any, actor: Any, explorer: Explorer) -> np.ndarray:
    """The returns of the episodes that judge."""
    environment, returns = UserEnvironments.of(agent.env, agent.seed).single(None), []
    for i in range(EPISODES):
        episode = SingleEpisode(environment, actor, explorer, FIRST_RESET + i)
        for _ in episode.steps(10_000):
            pass
        returns.append(episode.reward)
    environment.close()
    return np.array(returns)


# -- the table ---------------------------------------------------------------------------------------------------------

DQN, DQN_PR = (Agent(module, "DQN", (4, 128, 2), (1e-3,)) for module in ("dqn", "dqn_pr"))
PPO, PPO_PR = (Agent(module, "PPO", (4, 128, 2, 0.2, 0.01), (3e-4, 2e-3)) for module in ("ppo", "ppo_pr"))
DDPG = Agent("ddpg_her", "DDPG", (128, 0.1, 0.98, 0.005), (1e-3, 1e-3))
MADDPG = Agent("maddpg", "DDPG", (128, 0.01, 0.95, 0.01), (1e-3, 1e-3))
VALUES = {"pool_size": 10_000, "batch": 64, "num_updates": 200, "update_batches": 100}
POLICY = {"pool_size": 10_000, "batch": 64, "num_updates": 30, "update_steps": 1_000, "PPO": True}
HINDSIGHT = {"pool_size": 100_000, "batch": 256, "num_updates": 40, "HER": True}
TEAM = {"pool_size": 100_000, "batch": 256, "num_updates": 25, "MARL": True}
POOL = {"processes": 2}


def cart_pole(agent: Agent, explorer: Callable[[], Explorer], settings: dict[str, Any], **options: Any) -> Row:
    """A row that ends when CartPole-v1 is solved."""
    settings = {**settings, "trial_count": TRIALS, "criterion": SOLVED}
    return Row(agent, "policy", explorer, settings, 600, while_training, SOLVED, options)


def near_greedy() -> Explorer:
    return EpsGreedyQPolicy(0.02)


def small_steps() -> Explorer:
    return GaussianWhiteNoiseProcess(sigma=0.3)


TABLE = {
    "dqn/plain": cart_pole(DQN, near_greedy, VALUES),
    "dqn/pool": cart_pole(DQN, near_greedy, VALUES, **POOL),
    "dqn/pr": cart_pole(DQN_PR, near_greedy, {**VALUES, "PR": True}),
    "dqn/3-step": cart_pole(DQN, near_greedy, {**VALUES, "num_steps": 3}),
    "ppo/plain": cart_pole(PPO, SoftmaxPolicy, POLICY),
    "ppo/pool": cart_pole(PPO, SoftmaxPolicy, POLICY, **POOL),
    "ppo/pr": cart_pole(PPO_PR, SoftmaxPolicy, {**POLICY, "PR": True}, window_size_ppo=0.1),
    "ddpg_her/plain": Row(DDPG, "noise", small_steps, HINDSIGHT, 400, goals_reached, 0.95),
    "maddpg/plain": Row(MADDPG, "policy", SoftmaxPolicy, TEAM, 400, team_return, -45),
}


def train(row: Row, engine: str, seed: int) -> dict[str, Any]:
    """One cell, in this process."""
    agent, optimizers = make(row.agent, engine, seed, row.options.get("processes"))
    agent.seed = seed
    agent.set(**{row.role: row.explorer()}, **row.settings)
    began = time.perf_counter()
    agent.train(
        optimizer=optimizers if len(optimizers) > 1 else optimizers[0], episodes=row.episodes, p=0, **row.options
    )
    seconds = time.perf_counter() - began
    found = {name: measure.significant(value) for name, value in row.judge(agent).items()}
    progress = agent._session_state.session.learner.progress
    return {
        **found,
        "reached": bool(found["score"] >= row.bar),
        "episodes": progress.episodes,
        "steps": progress.step,
        "gradient_steps": progress.gradient_steps,
        "seconds": round(seconds, 1),
    }


def make(agent: Agent, engine: str, seed: int, processes: int | None) -> tuple[Any, list[Any]]:
    """An example agent, and one Adam for each of its losses. Every random number comes from the seed."""
    library = importlib.import_module("torch" if engine == "torch" else "keras")
    package = f"etude.examples.{library.__name__}_agents"
    library.manual_seed(seed) if engine == "torch" else library.utils.set_random_seed(seed)
    made = getattr(importlib.import_module(f"{package}.{agent.module}"), agent.name)(*agent.arguments, processes)
    if engine != "torch":
        return made, [library.optimizers.Adam(rate) for rate in agent.rates]
    groups = made.param if len(agent.rates) > 1 else [made.param]
    return made, [library.optim.Adam(group, rate) for group, rate in zip(groups, agent.rates, strict=True)]


# -- cells -------------------------------------------------------------------------------------------------------------


class Table:
    """The JSON file: cells by name, hyperparameters once for each row."""

    def __init__(self) -> None:
        held = measure.read(__file__)
        self.cells: dict[str, dict] = held.get("cells", {})
        self.configs: dict[str, dict] = held.get("configs", {})
        for name, row in TABLE.items():
            if self.configs.get(name) != row.config():
                self.cells = {key: cell for key, cell in self.cells.items() if not key.startswith(f"{name}/")}
                self.configs[name] = row.config()

    def add(self, key: str, cell: dict) -> None:
        self.cells[key] = {**cell, "versions": measure.versions()}
        ordered = dict(sorted(self.cells.items()))
        measure.write(__file__, {"configs": self.configs, "summary": self.summary(), "cells": ordered})

    def summary(self) -> dict[str, dict]:
        """Of the seeds that are there: how many reached the bar, and the spread of scores and steps."""
        found = {}
        for name, row in TABLE.items():
            for engine in ENGINES:
                cells = [cell for key, cell in self.cells.items() if key.rsplit("/", 1)[0] == f"{name}/{engine}"]
                if cells:
                    scores = [cell["score"] for cell in cells]
                    found[f"{name}/{engine}"] = {
                        "reached": sum(cell["reached"] for cell in cells),
                        "seeds": len(cells),
                        "bar": row.bar,
                        "lowest": min(scores),
                        "highest": max(scores),
                        "median_steps": statistics.median(cell["steps"] for cell in cells),
                    }
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as dqn/pool/torch/3")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, engine, seed = options.cell.rsplit("/", 2)
        measure.answer(train(TABLE[name], engine, int(seed)))
        return
    table = Table()
    keys = [f"{name}/{engine}/{seed}" for seed in options.seeds for name in TABLE for engine in ENGINES]
    wanted = [key for key in keys if any(part in key for part in options.only) and key not in table.cells]
    print(f"{len(wanted)} cells to run", flush=True)

    def keep(key: str, cell: dict) -> None:
        table.add(key, cell)
        print(f"{key:<28} {cell['score']:>8g}  {cell['steps']:>7} steps  {cell['seconds']:.0f} s", flush=True)

    failed = measure.run_cells(wanted, options.jobs, run_cell, keep)
    for name, found in table.summary().items():
        spread = f"{found['lowest']:g} to {found['highest']:g}"
        print(f"{name:<26} {found['reached']} of {found['seeds']} reach {found['bar']:g}  ({spread})")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


def run_cell(key: str) -> dict[str, Any]:
    """One cell, in a process of its own with one thread, on its engine."""
    engine = key.split("/")[-2]
    backend = {} if engine == "torch" else {"KERAS_BACKEND": engine}
    return measure.cell("solo_learning.py", key, 3600, **backend)


if __name__ == "__main__":
    main()
