"""How much sooner PPO solves CartPole with a supervised loss on 20 episodes of an expert: environment steps to an
evaluated return of 475, on the same seeds without and with it.

    python benchmarks/auxiliary_loss.py [--seeds 1 2 3 4 5]

Adds to auxiliary_loss.json. Both are the preset of PPO; the expert is
`etude.examples.experts.balance`. Evaluations
are of 10 episodes, every 512 environment steps, and take no part in the counts. The coefficient was chosen on seeds 101
and 102.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import etude
from etude import ops
from etude.algorithms import PPO
from etude.examples.experts import balance, play

OUT = Path(__file__).with_suffix(".json")
COEFFICIENT, EPISODES, BATCH = 100.0, 20, 256
STEPS, TARGET, EVERY = 100_000, 475.0, 512


def cloning(agent: etude.Agent, batch, noise) -> object:
    """The negative log likelihood of the expert's actions."""
    return -ops.mean(agent.act(batch.observation).log_prob(batch.action))


def solved(agent: etude.Agent, seed: int) -> dict:
    """The environment steps of the first evaluation at the target; None where there was none."""
    began = time.perf_counter()
    with etude.Run(agent, "CartPole-v1", seed=seed, environments=8) as run:
        end = run.train(STEPS, evaluate_every=EVERY, target=TARGET)
    steps = end.step if end.reason == "target" else None
    return {"steps": steps, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--coefficient", type=float, default=COEFFICIENT)
    given = parser.parse_args()
    expert = play(balance, "CartPole-v1", EPISODES)
    returns = [float(episode.reward.sum()) for episode in expert]
    found = json.loads(OUT.read_text()) if OUT.exists() else {}
    found |= {
        "coefficient": given.coefficient,
        "batch_size": BATCH,
        "episodes": EPISODES,
        "expert_return": float(np.mean(returns)),
    }
    config = etude.config("ppo", "CartPole-v1")
    for seed in given.seeds:
        with_loss = etude.Auxiliary(
            PPO(config), cloning, expert, coefficient=given.coefficient, name="cloning", batch_size=BATCH
        )
        row = {"ppo": solved(PPO(config), seed), "with_loss": solved(with_loss, seed)}
        found.setdefault("seeds", {})[str(seed)] = row
        OUT.write_text(json.dumps(found, indent=1) + "\n")
        print(seed, row, flush=True)


if __name__ == "__main__":
    main()
