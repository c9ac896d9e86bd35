"""Whether a population of four small GPTs reaches the held-out loss of the best fixed one of four in fewer tokens: BC
over games of Wordle, from the same four configs.

    python benchmarks/evolving_gpts.py [--seeds 1 2 3 4 5] [--steps 300]

Adds to evolving_gpts.json. Sizes and learning rates of the four are drawn, the latter log-uniformly from 1e-4 to 1e-3.
The fixed ones train for `--steps` gradient steps each, on 16 games in each; that with the lowest loss on validation
games at the end is the best one, and its loss on test games is to be reached. The population starts as the same four;
after every generation the loss on validation games selects, and the loss of the best member on test games is
compared. Tokens are those of all four, in batches; losses are nats per token of the agent. Ranges, games and
mutations were chosen on seed 101.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from functools import partial
from pathlib import Path

import numpy as np

import etude
from etude import language
from etude.engines.numpy import NumpyEngine
from etude.explore import Sample
from etude.offline.dataset import Dataset
from etude.replay import Buffer, Passes, Ring, TokenSequences
from etude.tuning.evolution import ArchitectureLimits, Mutations, Tournament, next_generation

OUT = Path(__file__).with_suffix(".json")
WORDS, GAMES, HELD_OUT, BATCH, EVERY, WIDTH = 20, 1000, 100, 16, 15, 32
MUTATIONS = Mutations(
    none=0.2, architecture=0.3, new_layer=0.5, parameters=0.0, hyperparameters=0.5, select=["learning_rate"],
    limits={"learning_rate": (1e-5, 3e-2)}, step=0.8,
    network=ArchitectureLimits(blocks=(1, 3), feedforward=(32, 256), heads=(1, 4)),
)  # fmt: skip


class HeldOut:
    """The mean loss of an agent over the tokens of some games."""

    def __init__(self, data: Dataset):
        ring = Ring(data.spaces, len(data) + 1)
        buffer = Buffer(ring, Passes(), TokenSequences(1.0), np.random.default_rng(0))
        buffer.add(data.steps())
        starts = np.cumsum([0, *(len(episode.reward) for episode in data.episodes)])[:-1]
        batch = buffer.view(ring, starts[None], np.ones((1, len(starts)), np.float32))
        held = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
        first = {name: _first(value) for name, value in held.items()}
        self.batch, self.spaces = type(batch)(**first), data.spaces

    def __call__(self, run: etude.Run) -> float:
        engine = NumpyEngine(run.agent, self.spaces)
        return float(engine.layout.bind(run.engine.weights()).loss(self.batch, {})["actor"].value)


def _first(tree):
    if isinstance(tree, dict):
        return {key: _first(leaf) for key, leaf in tree.items()}
    return None if tree is None else tree[0]


def drawn(rng: np.random.Generator) -> dict:
    """What one of the four begins with."""
    network = etude.Transformer(
        layers=int(rng.integers(1, 3)), width=WIDTH, heads=int(rng.choice((1, 2, 4))),
        feedforward=int(rng.choice((32, 64, 128))), context=73,
    )  # fmt: skip
    return {"network": network, "learning_rate": float(10 ** rng.uniform(-4, -3))}


def shown(given) -> dict:
    network = given.network
    sizes = {name: getattr(network, name) for name in ("layers", "heads", "feedforward")}
    return {**sizes, "learning_rate": round(given.learning_rate, 6)}


def measured(seed: int, steps: int) -> dict:
    env, began = partial(language.Wordle, language.words(WORDS)), time.perf_counter()
    actor = language.RandomMixture(0.33, language.words(WORDS))
    data = etude.record(env, GAMES + 2 * HELD_OUT, actor, Sample(), seed=seed)
    parts = [
        Dataset(data.episodes[a:b], data.source)
        for a, b in ((0, GAMES), (GAMES, GAMES + HELD_OUT), (GAMES + HELD_OUT, GAMES + 2 * HELD_OUT))
    ]
    train, validation, test = parts[0], HeldOut(parts[1]), HeldOut(parts[2])
    tokens = np.mean([int(each.observation["observation"][-1, -1]) for each in train.episodes]) * BATCH
    rng = np.random.default_rng(seed)
    four = [drawn(rng) for _ in range(4)]

    def runs():
        return [
            etude.Run("bc", env, data=train, seed=i, batch_size=BATCH, gradient_steps=10, engine="torch", **given)
            for i, given in enumerate(four)
        ]

    fixed = []
    for run in runs():
        with run:
            run.train(steps)
            fixed.append({"validation": validation(run), "test": test(run), **shown(run.agent.config)})
    best = min(fixed, key=lambda each: each["validation"])
    members, fitness, generations = runs(), [[] for _ in range(4)], []
    for _ in range(steps // EVERY):
        for run, values in zip(members, fitness, strict=True):
            run.train(EVERY)
            values.append(-validation(run))
        leader = members[int(np.argmax([values[-1] for values in fitness]))]
        found = test(leader)
        generations.append({"test": found, **shown(leader.agent.config)})
        if found <= best["test"]:
            break
        born = next_generation(members, fitness, Tournament(size=3, elitism=True, over_last=1), MUTATIONS, rng)
        members, fitness = [each.run for each in born], [list(fitness[each.parent]) for each in born]
    for run in members:
        run.close()
    reached, taken = generations[-1]["test"] <= best["test"], len(generations) * EVERY
    return {
        "fixed": fixed,
        "best_fixed_test": best["test"],
        "tokens_of_fixed": round(4 * steps * tokens),
        "tokens_of_population": round(4 * taken * tokens) if reached else None,
        "share": taken / steps if reached else None,
        "generations": generations,
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    for seed in given.seeds:
        held = json.loads(OUT.read_text()) if OUT.exists() else {"steps": given.steps, "seeds": {}}
        cell = measured(seed, given.steps)
        held["seeds"][str(seed)] = cell
        print(seed, cell["share"], cell["best_fixed_test"], f"{cell['seconds']} s", flush=True)
        OUT.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
