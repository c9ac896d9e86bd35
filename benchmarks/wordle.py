"""What does each algorithm learn from recorded games of Wordle, beside what the games earned? Behaviour cloning, of all
games and of the best tenth; Monte-Carlo values; ILQL.

    python benchmarks/wordle.py [--words 100] [--games 20000] [--tokens words] [--seeds 1 2 3 4 5] [--only bc ilql]
    python benchmarks/wordle.py --words 431 --games 100000 --tokens letters --engine torch --device cuda --seeds 1

Adds to wordle.json, cell by cell, and draws docs/figures/wordle.svg; a cell that is there with the same settings is not
run again. Everything happens in this process, without a network. `--seconds` is the most that all cells take: none is
begun after it, and the one that runs then ends with what it has learned. Seconds are wall time; processor seconds are
beside them, of which others on the machine take little away.

Games are LMRL-Gym's (Abdulhai et al. 2023): `RandomMixture(0.33)`. Words are generated (`language.words`), or those of
a file, one in each line. tokens: of letters, 34 different ones and up to 72 in a game, or of whole words, and of the
colours in each place.
Returns are means over `EPISODES` games with the best tokens (return), and with tokens that are drawn (sampled).

adversarial: the set of the ILQL paper (Snell et al. 2022, section 5.2): games of an expert (greedy information), five
times as many of `RandomMixture(0.5)`, and as many that begin as the expert does and say its first two words again from
the third guess on. ranks: the share of first words that are worth less than the expert's; single_step is expectile 0.5.
walks: optimality in trlX's graph, from 1,000 random walks.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude import language
from etude.base.data import Episode
from etude.explore import Sample

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "wordle.svg"
SMART, BEST, EPISODES, EXPERTS = 0.33, 0.1, 500, 300
METHODS = ("bc", "filtered_bc", "mc", "ilql")
SMALL = {
    "network": etude.Transformer(layers=2, width=64, heads=4, feedforward=128, context=37),
    "batch_size": 128, "learning_rate": etude.Linear(2e-3, 0.0), "gradient_steps": 50,
}  # fmt: skip
LARGE = {
    "network": etude.Transformer(layers=4, width=128, heads=4, feedforward=512, context=73),
    "batch_size": 256, "learning_rate": etude.Linear(1e-3, 0.0), "gradient_steps": 50,
}  # fmt: skip
VALUES = {"beta": 16.0, "expectile": 0.8, "tau": 0.01, "cql_alpha": 0.01, "clone": False}
STEPS = {"words": {"bc": 1_500, "filtered_bc": 500, "mc": 1_000, "ilql": 1_500}}
STEPS["letters"] = {"bc": 12_000, "filtered_bc": 4_000, "mc": 8_000, "ilql": 12_000}


class Words:
    """A token for each word, and for each colour in each place of an answer."""

    def __init__(self, words: Sequence[str]):
        answers = [
            f" {colour}" if i == 0 else f"{colour}\n" if i == 4 else colour for i in range(5) for colour in "BYG"
        ]
        self._texts, self._colours = ("<pad>", "<end>", *words, *answers), 2 + len(words)
        self._numbers = {word: number for number, word in enumerate(words, 2)}
        self.size, self.special = len(self._texts), {"pad": 0, "end": 1}

    def encode(self, text: str) -> list[int]:
        if text in self._numbers:
            return [self._numbers[text]]
        return [self._colours + 3 * i + "BYG".index(colour) for i, colour in enumerate(text.strip())]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens)


@dataclasses.dataclass(frozen=True)
class Game:
    """The game that all cells play."""

    words: tuple[str, ...]
    tokens: str

    def __call__(self) -> language.TokenEnvironment:
        if self.tokens == "letters":
            return language.TokenEnvironment(language.Wordle(self.words))
        return language.TokenEnvironment(language.Wordle(self.words), Words(self.words), context=36)


Policy = Callable[[list[str], np.ndarray, np.random.Generator], int]  # (words said, what fits, rng) -> the next word


def recorded(game: Game, policies: Sequence[tuple[int, Policy]], seed: int) -> etude.offline.Dataset:
    """So many games of each policy, word by word, as `etude.record` has them token by token."""
    env, rng = language.Wordle(game.words), np.random.default_rng(seed)
    colours = language.RandomMixture(0.0, game.words).colours
    template, played = etude.record(game, 1), []
    env.reset(seed=seed)
    for count, policy in policies:
        for _ in range(count):
            env.reset()
            left, turns, over = np.arange(len(game.words)), [], False
            while not over:
                guess = policy([word for word, *_ in turns], left, rng)
                answer, reward, over, _, _ = env.step(game.words[guess])
                code = int(answer.strip().translate(str.maketrans("BYG", "012")), 3)
                left = left[colours.of(guess)[left] == code]
                turns.append((game.words[guess], answer, reward))
            played.append(turns)
    tokens, first = game().tokenizer, template.episodes[0].observation
    window, mask = first["observation"][0], first["action_mask"][0]
    return dataclasses.replace(template, episodes=tuple(episode(turns, tokens, window, mask) for turns in played))


def episode(turns: list[tuple[str, str, float]], tokens: Any, window: np.ndarray, mask: np.ndarray) -> Episode:
    game: list[int] = []
    places, rewards = [], []
    for said, heard, reward in turns:
        own = tokens.encode(said)
        places += range(len(game), len(game) + len(own))
        rewards += [0.0] * (len(own) - 1) + [reward]
        game += own + tokens.encode(heard)
    whole, before = np.array(game, window.dtype), np.array([*places, len(game)])
    seen = np.zeros((len(before), len(window)), window.dtype)
    seen[:, : len(game)] = np.where(np.arange(len(game)) < before[:, None], whole, 0)
    seen[:, -1] = before
    observation = {"action_mask": np.repeat(mask[None], len(before), 0), "observation": seen}
    return Episode(observation, whole[places].astype(np.int64), np.float32(rewards), True, False)


def mixture(smart: float, words: int) -> Policy:
    """A random word that fits, or any."""
    return lambda said, left, rng: int(rng.choice(left) if rng.random() < smart else rng.integers(words))


def expert(words: Sequence[str]) -> Policy:
    policy = language.GreedyInformation(words)
    return lambda said, left, rng: int(rng.choice(len(words), p=policy.likely(left)))


def repeating(first: Policy, words: Sequence[str]) -> Policy:
    """As another, and from the third guess on one of its first two words again."""
    return lambda said, left, rng: words.index(said[rng.integers(2)]) if len(said) > 1 else first(said, left, rng)


class Seed:
    """The cells of one seed."""

    def __init__(self, game: Game, options: argparse.Namespace, seed: int, deadline: float):
        self.game, self.options, self.seed, self.deadline = game, options, seed, deadline
        self.steps = {name: max(1, int(n * options.scale)) for name, n in STEPS[game.tokens].items()}
        self.settings = SMALL if game.tokens == "words" else LARGE
        self._data: Any = None
        self._cloned: Any = None

    @property
    def data(self) -> etude.offline.Dataset:
        if self._data is None:
            play = mixture(SMART, len(self.game.words))
            self._data = recorded(self.game, [(self.options.games, play)], self.seed)
        return self._data

    def run(self, algorithm: str, steps: int, data: Any = None, **changes: Any) -> etude.Run:
        """A run that has learned; shorter where time is up."""
        run = etude.Run(
            algorithm, self.game, data=self.data if data is None else data, engine=self.options.engine,
            device=self.options.device, seed=self.seed, **{**self.settings, **changes},
        )  # fmt: skip
        for event in run.steps(steps):
            if self.options.verbose:
                print(event, flush=True)
            if time.perf_counter() > self.deadline:
                break
        return run

    def cloned(self) -> dict[str, Any]:
        """The weights that values start from."""
        if self._cloned is None:
            self.cell("bc")
        return self._cloned

    def cell(self, name: str) -> dict[str, Any]:
        """What a method earns."""
        if name in ("mc", "ilql"):
            self.cloned()
        elif name == "adversarial":
            return self.adversarial()
        elif name == "walks":
            return self.walks()
        data_seconds = time.perf_counter()
        earned = float(self.data.returns.mean())
        began, used = time.perf_counter(), time.process_time()
        if name in ("bc", "filtered_bc"):
            run = self.run("bc", self.steps[name], best=1.0 if name == "bc" else BEST)
            if name == "bc":
                self._cloned = run.engine.weights()
        else:
            run = self.run("ilql", self.steps[name], monte_carlo=name == "mc", start_from=self.cloned(), **VALUES)
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        found = {"return": self.played(run), "sampled": self.played(run, Sample()), "data": earned}
        steps = run.history[-1].get("step") if run.history else None
        return rounded({
            **found, "steps": steps, "seconds": seconds, "processor_seconds": processor,
            "data_seconds": began - data_seconds, "evaluation_seconds": time.perf_counter() - began - seconds,
        })  # fmt: skip

    def played(self, run: etude.Run, explorer: Any = None) -> float:
        return float(etude.record(self.game, EPISODES, run.actor(), explorer, seed=self.seed + 1_000).returns.mean())

    def adversarial(self) -> dict[str, Any]:
        """How often the expert's first word is worth more than others."""
        began, words = time.perf_counter(), self.game.words
        expert_ = expert(words)
        parts = [(EXPERTS, expert_), (5 * EXPERTS, mixture(0.5, len(words))), (5 * EXPERTS, repeating(expert_, words))]
        data = recorded(self.game, parts, self.seed)
        best = {each.action[0] for each in data.episodes[:EXPERTS]}
        others = sorted({each.action[0] for each in data.episodes[EXPERTS : 6 * EXPERTS]} - best)
        found: dict[str, Any] = {}
        for name, expectile in (("ilql", 0.95), ("single_step", 0.5)):
            changes = {**VALUES, "expectile": expectile, "clone": True, "gamma": 1.0}
            run = self.run("ilql", self.steps["ilql"], data=data, **changes)
            agent = run.engine.layout.bind(run.engine.weights())
            values = agent.critic_target.whole(np.zeros((1, 1), np.int32))[0, 0, 1:]
            q = np.minimum(*np.split(values, 2))
            found[name] = float(np.mean([q[mine] > q[other] for mine in best for other in others]))
        return rounded({**found, "seconds": time.perf_counter() - began})

    def walks(self) -> dict[str, Any]:
        """Optimality in the graph."""
        began = time.perf_counter()
        data = etude.record("GraphWalks", 1_000, seed=self.seed)
        with etude.Run("ilql", "GraphWalks", data=data, seed=self.seed, engine=self.options.engine, **WALKS) as run:
            run.train(WALK_STEPS)
            found = float(etude.record("GraphWalks", EPISODES, run=run, seed=self.seed + 1_000).returns.mean())
        return rounded({"return": found, "data": float(data.returns.mean()), "seconds": time.perf_counter() - began})


WALK_STEPS = 600
WALKS = {
    "network": etude.Transformer(layers=2, width=32, heads=4, feedforward=64, context=11), "batch_size": 64,
    "learning_rate": etude.Linear(2e-3, 0.0), "expectile": 0.9, "beta": 64.0, "tau": 0.02, "cql_alpha": 0.0,
}  # fmt: skip


def rounded(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in cell.items()}


def summary(cells: dict[str, Any]) -> dict[str, Any]:
    """Means over seeds, with the half width of their 95 % intervals."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(key.split("/")[0] for key in cells):
        own = [cell for key, cell in cells.items() if key.split("/")[0] == name]
        found[name] = {"seeds": len(own)}
        for measured in [key for key in own[0] if "seconds" not in key and key != "steps"]:
            values = [cell[measured] for cell in own]
            half = T95[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
            found[name][measured] = {"mean": round(statistics.mean(values), 3), "half_width": half and round(half, 3)}
    return found


T95 = (0.0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # of Student's t, by degrees of freedom


def draw(held: dict[str, Any]) -> None:
    """A panel for each list of words: what each method earns, with its interval, and the games."""
    from etude.report.pictures import COLOURS, finish, picture

    shown = {name: part["summary"] for name, part in held.items() if any(m in part.get("summary", {}) for m in METHODS)}
    with picture(FIGURE, columns=len(shown)) as figure:
        for axes, (name, found) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True):
            methods = [method for method in found if "sampled" in found[method]]
            for i, method in enumerate(methods):
                own = found[method]["return"]
                axes.bar(i, own["mean"] + 6, 0.7, -6, yerr=own["half_width"] or 0, color=COLOURS[i], capsize=3)
            axes.axhline(found[methods[0]]["data"]["mean"], color="black", linewidth=0.8, linestyle="--")
            axes.set_xticks(range(len(methods)), [method.replace("_", " ") for method in methods])
            finish(axes, f"{name}\n{found[methods[0]]['seeds']} seeds; dashed: the games", "")
        figure.axes[0].set_ylabel("mean return")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--words", default="100", help="how many, or a file with a word in each line")
    parser.add_argument("--games", type=int, default=20_000)
    parser.add_argument("--tokens", choices=("words", "letters"), default="words")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[*METHODS, "adversarial", "walks"])
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all gradient steps")
    parser.add_argument("--seconds", type=float, default=1e9, help="no cell is begun after")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    began = time.perf_counter()
    given = options.words
    words = language.words(int(given)) if given.isdigit() else tuple(Path(given).read_text().split())
    game, name = Game(words, options.tokens), f"{len(words)} words, {options.games} games, {options.tokens}"
    held = measure.read(str(options.out))
    settings = {
        "small": repr(SMALL), "large": repr(LARGE), "values": VALUES, "walks": repr(WALKS), "scale": options.scale,
        "steps": STEPS[options.tokens], "engine": options.engine, "device": options.device,
    }  # fmt: skip
    part = held.get(name, {})
    if part.get("settings") != settings:
        part = {"settings": settings, "cells": {}, "summary": {}}
    for seed in options.seeds:
        own = Seed(game, options, seed, began + options.seconds)
        for method in options.only:
            key = f"{method}/{seed}"
            if key in part["cells"] or time.perf_counter() - began > options.seconds:
                continue
            part["cells"][key] = own.cell(method)
            part["summary"] = summary(part["cells"])
            held[name] = part
            print(key, part["cells"][key], flush=True)
            measure.write(str(options.out), held)
    if options.out == Path(__file__).with_suffix(".json"):
        draw(held)


if __name__ == "__main__":
    sys.exit(main())
