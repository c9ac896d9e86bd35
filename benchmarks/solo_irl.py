"""Do GAIL and AIRL imitate? Five episodes of a hand-written expert of CartPole-v1, three seeds each, in PyTorch.

`python benchmarks/solo_irl.py` writes solo_irl.json, cell by cell; a cell that is there with the same hyperparameters
is not run again. `--only gail` takes what holds the text.

Training ends when the return in the environment, which the agent never learns from, had a mean of 400 over the last
twenty episodes, exploration included, or after so many episodes. Ten more are then played with the best actions,
and their mean is to be at least 195. The rows `untrained` are the control: the same, with a discriminator that never
learns. What they reach is owed to the sign of the reward alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import time

import measure

TRIALS, CRITERION, BAR = 20, 400.0, 195.0
EXPERT_EPISODES, EXPERT_SEED, JUDGED = 5, 0, 10
FIRST_JUDGED_SEED = 1_000_000  # far from those that training resets with


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table. module, name: the agent. rates: of actor, critic, discriminator. bar: None for controls."""

    module: str
    name: str
    rates: tuple[float, float, float]
    episodes: int
    bar: float | None = BAR
    arguments: tuple = (4, 64, 2, 0.2, 0.01)
    settings: tuple = (("pool_size", 10_000), ("num_updates", 40), ("update_steps", 500))

    def config(self) -> dict:
        """All hyperparameters, as plain data."""
        plain = dataclasses.asdict(self)
        return {
            **plain,
            **{name: list(plain[name]) for name in ("rates", "arguments")},
            "settings": dict(self.settings),
        }


LEARNING, STILL = (1e-3, 5e-3, 1e-3), (1e-3, 5e-3, 0.0)
TABLE = {
    "gail": Row("gail", "GAIL", LEARNING, 400),
    "airl": Row("airl", "AIRL", LEARNING, 600),
    "gail untrained": Row("gail", "GAIL", STILL, 400, None),
    "airl untrained": Row("airl", "AIRL", STILL, 600, None),
}


def train(row: Row, seed: int) -> dict:
    """One cell, in this process."""
    import numpy as np
    import torch

    from etude.examples.experts import Expert, balance, play
    from etude.explore import SoftmaxPolicy

    torch.manual_seed(seed)
    expert = play(balance, "CartPole-v1", EXPERT_EPISODES, EXPERT_SEED)
    module = importlib.import_module(f"etude.examples.torch_agents.{row.module}")
    agent = getattr(module, row.name)(*row.arguments, Expert.of(expert))
    agent.seed = seed
    settings = {**dict(row.settings), "PPO": True, "IRL": True, "trial_count": TRIALS, "criterion": CRITERION}
    agent.set(SoftmaxPolicy(), **settings)
    optimizers = [torch.optim.Adam(param, rate) for param, rate in zip(agent.param, row.rates, strict=True)]
    began = time.perf_counter()
    agent.train(optimizers, row.episodes, p=0)
    seconds = time.perf_counter() - began

    @torch.no_grad()
    def best(observation: np.ndarray) -> int:
        return int(agent.actor(torch.as_tensor(observation)[None]).argmax())

    judged = [float(one.reward.sum()) for one in play(best, "CartPole-v1", JUDGED, FIRST_JUDGED_SEED + seed)]
    return {
        "expert": [float(one.reward.sum()) for one in expert],
        "training": measure.significant(statistics.mean(agent.reward_list[-TRIALS:]), 5),
        "judged": measure.significant(statistics.mean(judged), 5),
        "episodes": agent.total_episode,
        "steps": int(sum(agent.reward_list)),
        "seconds": round(seconds, 1),
    }


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """For each row the seeds that are there; `reached` where every one of them did."""
    found = {}
    for name, row in TABLE.items():
        own = [cell for key, cell in cells.items() if key.rsplit("/", 1)[0] == name]
        if own:
            reached = all(cell["judged"] >= BAR for cell in own)
            columns = {
                column: [cell[column] for cell in own] for column in ("training", "judged", "episodes", "seconds")
            }
            found[name] = {**columns, "seeds": len(own), "bar": row.bar, "reached": reached}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as airl/3")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, seed = options.cell.rsplit("/", 1)
        measure.answer(train(TABLE[name], int(seed)))
        return
    held = measure.read(__file__)
    configs = {name: row.config() for name, row in TABLE.items()}
    kept = [name for name in TABLE if held.get("configs", {}).get(name) == configs[name]]
    cells = {key: cell for key, cell in held.get("cells", {}).items() if key.rsplit("/", 1)[0] in kept}
    for key in (f"{name}/{seed}" for name in TABLE for seed in options.seeds):
        if key in cells or not any(part in key for part in options.only):
            continue
        limits = dict.fromkeys(measure.LIMITS, "1")
        found = measure.process(measure.script("solo_irl.py", "--cell", key), timeout=3600, **limits)
        cells[key] = {**found, "versions": measure.versions()}
        ordered = dict(sorted(cells.items()))
        measure.write(__file__, {"configs": configs, "summary": summary(ordered), "cells": ordered})
        print(f"{key:<20} {found['training']:>8g} {found['judged']:>8g}  {found['episodes']} episodes", flush=True)
    for name, found in summary(cells).items():
        print(f"{name:<20} {found['training']} {found['judged']} reached: {found['reached']}")


if __name__ == "__main__":
    main()
