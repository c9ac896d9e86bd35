"""What does each algorithm learn from recorded games of Wordle, beside what the games earned? Behaviour cloning, of all
games and of the best tenth; Monte-Carlo values; ILQL; DPO; and, from games of its own, GRPO.

    python benchmarks/wordle.py [--jobs 2] [--seeds 1 2 3 4 5] [--only bc ilql] [--words 100] [--games 30000]
    python benchmarks/wordle.py --words 431 --games 100000 --tokens letters --device cuda --seeds 1 --seconds 480

Adds to wordle.json, cell by cell, and draws docs/figures/wordle.svg; a cell that is there with the same settings is
not run again. Nothing is downloaded. `--seconds` is the most that the cells of a process take: each method gets its
share of what is left and ends then with what it has learned. Seconds are wall time; processor seconds, of which others
on the machine take little away, are beside them. `--jobs` are processes with one thread each, between which seeds are
divided; one job is this process alone, with the threads that it is given.

Games are LMRL-Gym's (Abdulhai et al. 2023): `RandomMixture(0.33)`. Words are generated (`language.words`), or those of
a file, one in each line. tokens: of letters, 34 different ones and up to 72 in a game, or of whole words, and of each
letter of an answer with its colour and place. Returns are means over `EPISODES` games with the best tokens (return),
and with tokens that are drawn (sampled). The policy of mc and ilql is the clone, whose layers their values start from;
dpo and grpo start from it, too. Steps are gradient steps, of grpo the tokens that it said.

adversarial: the set of the ILQL paper (Snell et al. 2022, section 5.2): games of an expert (greedy information), five
times as many of `RandomMixture(0.5)`, and as many that begin as the expert does and say its first two words again from
the third guess on. ranks: the share of first words that are worth less than the expert's; single_step is expectile 0.5.
walks: optimality in trlX's graph, from 1,000 random walks.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import measure
import numpy as np

import etude
from etude import language
from etude.base.data import Episode
from etude.base.events import Learned
from etude.explore import Sample

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "wordle.svg"
SMART, BEST, EPISODES, EXPERTS, FOREVER, PHASE = 0.33, 0.1, 500, 300, 1e9, 50
METHODS = {"bc": 5, "filtered_bc": 1, "mc": 2, "ilql": 3, "dpo": 1, "grpo": 2}  # by their shares of the time
SMALL = {
    "network": etude.Transformer(layers=1, width=64, heads=4, feedforward=256, context=37, positions="learned"),
    "batch_size": 64, "learning_rate": etude.Linear(3e-3, 0.0), "optimizer": etude.optimizers.AdamW(weight_decay=0.1),
    "gradient_steps": 50,
}  # fmt: skip
LARGE = {
    "network": etude.Transformer(layers=4, width=128, heads=4, feedforward=512, context=73),
    "batch_size": 256, "learning_rate": etude.Linear(6e-4, 1e-4), "gradient_steps": 50, "max_gradient_norm": 1.0,
}  # fmt: skip
VALUES = {"beta": 2.0, "expectile": 0.8, "tau": 0.05, "cql_alpha": 0.01, "clone": False}
PREFERRED = {"learning_rate": etude.Linear(3e-4, 0.0), "beta": 0.1}
PLAYED = {
    "learning_rate": etude.Linear(1e-3, 0.0), "environments": 64, "group_size": 8, "epochs": 2, "minibatch_size": 64,
}  # fmt: skip
OF_DATA = ("batch_size", "gradient_steps")
STEPS = {  # gradient steps; of grpo, tokens that it says itself
    "words": {"bc": 3_000, "filtered_bc": 600, "mc": 900, "ilql": 1_200, "dpo": 300, "grpo": 15_000},
    "letters": {"bc": 20_000, "filtered_bc": 3_000, "mc": 6_000, "ilql": 9_000, "dpo": 3_000, "grpo": 200_000},
}


class Words:
    """A token for each word, and for each letter of an answer with its colour and its place: one layer of attention,
    which adds up what it sees, can then tell the words that fit."""

    def __init__(self, words: Sequence[str]):
        pairs = [letter + colour for letter in ascii_lowercase for colour in "BYG"]
        self._texts = ("<pad>", "<end>", *words, *pairs * max(map(len, words)))
        self._words = {word: 2 + number for number, word in enumerate(words)}
        self._pairs = {pair: number for number, pair in enumerate(pairs)}
        self.size, self.special = len(self._texts), {"pad": 0, "end": 1}

    def encode(self, text: str) -> list[int]:
        if text in self._words:
            return [self._words[text]]
        answer, first = text.strip(), 2 + len(self._words)
        coloured = [answer[i : i + 2] for i in range(0, len(answer), 2)]
        return [first + len(self._pairs) * place + self._pairs[pair] for place, pair in enumerate(coloured)]

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
        return language.TokenEnvironment(
            language.Wordle(self.words, repeat_letters=True), Words(self.words), context=36
        )


Policy = Callable[[list[str], np.ndarray, np.random.Generator], int]  # (words said, what fits, rng) -> the next word


def recorded(game: Game, policies: Sequence[tuple[int, Policy]], seed: int) -> etude.offline.Dataset:
    """So many games of each policy, word by word, as `etude.record` has them token by token."""
    env, rng = language.Wordle(game.words, repeat_letters=game.tokens == "words"), np.random.default_rng(seed)
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
                code = int("".join(str("BYG".index(each)) for each in answer if each in "BYG"), 3)
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
        self.until = deadline
        self._data: Any = None
        self._cloned: Any = None

    @property
    def data(self) -> etude.offline.Dataset:
        if self._data is None:
            play = mixture(SMART, len(self.game.words))
            self._data = recorded(self.game, [(self.options.games, play)], self.seed)
        return self._data

    def run(self, algorithm: str, steps: int, data: Any = None, **changes: Any) -> etude.Run:
        """A run that has learned: for so many steps, or as many as there is time for."""
        given = {"engine": self.options.engine, "seed": self.seed, **self.settings, **changes}
        given["execution"] = etude.Execution(device=self.options.device)
        if algorithm == "grpo":
            run = etude.Run(algorithm, self.game, **{name: given[name] for name in given if name not in OF_DATA})
        else:
            data = self.data if data is None else data
            if self.options.seconds < FOREVER:
                few = dataclasses.replace(data, episodes=data.episodes[:1_000])
                with etude.Run(algorithm, self.game, data=few, **given) as trial:
                    trial.train(PHASE)
                    began = time.perf_counter()
                    trial.train(2 * PHASE)
                    each = (time.perf_counter() - began) / (2 * PHASE)
                steps = min(steps, max(1, int(0.9 * (self.until - time.perf_counter()) / each)))
            run = etude.Run(algorithm, self.game, data=data, **given)
        for event in run.steps(steps):
            if self.options.verbose and isinstance(event, Learned):
                print(event.step, event.losses, event.metrics, flush=True)
            if time.perf_counter() > self.until:
                break
        return run

    def cloned(self) -> dict[str, Any]:
        """The weights of the clone, and of values with the same layers but the last one."""
        if self._cloned is None:
            self.cell("bc")
        found, cloned = dict(self._cloned), {n: own for n, own in self._cloned.items() if ".after." not in n}
        for part in ("critic", "critic_target"):
            found |= {name.replace("actor.policy", part): own for name, own in cloned.items()}
        return found

    def cell(self, name: str) -> dict[str, Any]:
        """What a method earns."""
        if name not in METHODS:
            of_words = Seed(dataclasses.replace(self.game, tokens="words"), self.options, self.seed, self.deadline)
            return of_words.adversarial() if name == "adversarial" else self.walks()
        if name not in ("bc", "filtered_bc"):
            self.cloned()
        now, later = time.perf_counter(), [method for method in self.options.only if method in METHODS]
        share = METHODS[name] / sum(METHODS[method] for method in later[later.index(name) if name in later else 0 :])
        self.until = now + share * (self.deadline - now)
        data_seconds = time.perf_counter()
        earned = float(self.data.returns.mean())
        began, used = time.perf_counter(), time.process_time()
        if name in ("bc", "filtered_bc"):
            run = self.run("bc", self.steps[name], best=1.0 if name == "bc" else BEST)
            if name == "bc":
                self._cloned = run.engine.weights()
        elif name in ("mc", "ilql"):
            run = self.run("ilql", self.steps[name], monte_carlo=name == "mc", start_from=self.cloned(), **VALUES)
        else:
            run = self.run(name, self.steps[name], start_from=self._cloned, **(PREFERRED if name == "dpo" else PLAYED))
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        found = {"return": self.played(run), "sampled": self.played(run, Sample()), "data": earned}
        return rounded({
            **found, "steps": run.step, "seconds": seconds, "processor_seconds": processor,
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
            run = self.run("ilql", ADVERSARIAL_STEPS, data=data, **{**VALUES, **ADVERSARIAL, "expectile": expectile})
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


WALK_STEPS, ADVERSARIAL_STEPS = 400, 300
ADVERSARIAL = {
    "network": etude.Transformer(layers=2, width=32, heads=2, feedforward=128, context=37), "batch_size": 64,
    "learning_rate": etude.Linear(3e-3, 0.0), "gamma": 1.0, "tau": 0.05, "cql_alpha": 0.0,
}  # fmt: skip
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
    if not shown:
        return
    with picture(FIGURE, columns=len(shown)) as figure:
        for axes, (name, found) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True):
            methods = [method for method in found if "sampled" in found[method]]
            for i, method in enumerate(methods):
                own = found[method]["return"]
                axes.bar(i, own["mean"] + 6, 0.7, -6, yerr=own["half_width"] or 0, color=COLOURS[i], capsize=3)
            axes.axhline(found[methods[0]]["data"]["mean"], color="black", linewidth=0.8, linestyle="--")
            finish(axes, f"{name}\n{found[methods[0]]['seeds']} seeds; dashed: the games", "")
            axes.set_xticks(range(len(methods)), [method.replace("_", " ") for method in methods])
            axes.set_xlim(-0.5, len(methods) - 0.5)
        figure.axes[0].set_ylabel("mean return")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--words", default="100", help="how many, or a file with a word in each line")
    parser.add_argument("--games", type=int, default=30_000)
    parser.add_argument("--tokens", choices=("words", "letters"), default="words")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=[*METHODS, "adversarial", "walks"])
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all gradient steps")
    parser.add_argument("--seconds", type=float, default=FOREVER, help="no cell is begun after")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    began = time.perf_counter()
    given = options.words
    words = language.words(int(given)) if given.isdigit() else tuple(Path(given).read_text().split())
    game, name = Game(words, options.tokens), f"{len(words)} words, {options.games} games, {options.tokens}"
    held = measure.read(str(options.out))
    learned = SMALL if options.tokens == "words" else LARGE
    settings = {
        "learned": repr(learned), "values": repr(VALUES), "preferred": repr(PREFERRED), "played": repr(PLAYED),
         "steps": STEPS[options.tokens], "scale": options.scale,
        "walks": [WALK_STEPS, repr(WALKS)], "adversarial": [ADVERSARIAL_STEPS, repr(ADVERSARIAL)],
        "engine": options.engine, "device": options.device,
    }  # fmt: skip
    part = held.get(name, {})
    if part.get("settings") != settings:
        part = {"settings": settings, "cells": {}, "summary": {}}

    def keep(cells: dict[str, Any]) -> None:
        part["cells"] |= cells
        part["summary"] = summary(part["cells"])
        held[name] = part
        print(cells, flush=True)
        measure.write(str(options.out), held)

    def seed_alone(seed: str) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cells.json"
            given = [*sys.argv[1:], "--jobs", "1", "--seeds", seed, "--out", str(out)]
            command, limits = measure.script(Path(__file__).name, *given), dict.fromkeys(measure.LIMITS, "1")
            with contextlib.suppress(ValueError):  # it tells its cells in JSON of its own
                measure.process(command, **limits)
            return measure.read(str(out))[name]["cells"]

    if options.jobs > 1:
        missing = [s for s in options.seeds if any(f"{method}/{s}" not in part["cells"] for method in options.only)]
        measure.run_cells(list(map(str, missing)), options.jobs, seed_alone, lambda _, cells: keep(cells))
        options.seeds = []
    for seed in options.seeds:
        own = Seed(game, options, seed, began + options.seconds)
        for method in options.only:
            key = f"{method}/{seed}"
            if key in part["cells"] or time.perf_counter() - began > options.seconds:
                continue
            keep({key: own.cell(method)})
    if options.out == Path(__file__).with_suffix(".json"):
        draw(held)


if __name__ == "__main__":
    sys.exit(main())
