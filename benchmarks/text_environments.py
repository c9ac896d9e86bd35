"""Do games of Wordle that are recorded here agree with an independent count, and do DQN and PPO learn a game of ten
words?

    python benchmarks/text_environments.py [--games 10000] [--words 50 100 200] [--seeds 1 2 3]

Adds to text_environments.json. The count plays LMRL-Gym's Wordle (Abdulhai et al. 2023) in plain Python, on the same
lists of words: what is known of each letter in each place, as a dict, and nothing of etude but the list. The game of
ten words has legal words as its mask and a token for each word; networks see the last two guesses.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from functools import partial
from pathlib import Path

import numpy as np

import etude
from etude import language
from etude.explore import Sample

OUT = Path(__file__).with_suffix(".json")
SMART, WORDS = 0.33, 10
TEN = language.words(WORDS)
LEARNERS: dict = {
    "dqn": (
        1_600,
        {
            "network": etude.Mlp((64,)), "learning_rate": 2e-3, "environments": 4, "n_step": 1, "learning_starts": 200,
            "target_update_every": 100, "epsilon": etude.Linear(1.0, 0.05, 0.5),
        },
    ),
    "ppo": (12_000, {"learning_rate": 3e-3, "environments": 8, "rollout_length": 32}),
}  # fmt: skip


class Words:
    """A token for each word of the game, and for each character of what the environment says."""

    texts = ("<pad>", "<end>", *TEN, *"BGY- \n")
    size, special = len(texts), {"pad": 0, "end": 1}

    def encode(self, text: str) -> list[int]:
        return [self.texts.index(each) for each in ([text] if text in TEN else text)]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.texts[token] for token in tokens)


def ten_words() -> language.TokenEnvironment:
    return language.TokenEnvironment(language.Wordle(TEN, list_words=True), Words(), context=16, slide=True)


def fits(word: str, known: dict[str, list[str]]) -> bool:
    """Whether a word fits what is known: for each letter, of each place, "here", "not here" or "maybe"."""
    for letter, places in known.items():
        if places == ["not here"] * 5:
            if letter in word:
                return False
            continue
        if letter not in word:
            return False
        for place, what in enumerate(places):
            if (what == "here" and word[place] != letter) or (what == "not here" and word[place] == letter):
                return False
    return True


def told(known: dict[str, list[str]], guess: str, hidden: str) -> dict[str, list[str]]:
    """What is known after a guess."""
    known = {letter: list(places) for letter, places in known.items()}
    for place, letter in enumerate(guess):
        if letter not in hidden:
            known[letter] = ["not here"] * 5
            continue
        known.setdefault(letter, ["maybe"] * 5)[place] = "here" if hidden[place] == letter else "not here"
    return known


def mixed(words: list[str], left: list[str], known: dict, rng: random.Random, cache: dict) -> str:
    return rng.choice(left if rng.random() < SMART else words)


def greedy(words: list[str], left: list[str], known: dict, rng: random.Random, cache: dict) -> str:
    key = tuple(left)
    if key not in cache:
        scores = {}
        for guess in left:
            sizes: dict[tuple, int] = {}
            for hidden in left:
                what = tuple(2 if g == h else g in hidden for g, h in zip(guess, hidden, strict=True))
                sizes[what] = sizes.get(what, 0) + 1
            scores[guess] = sum(size * math.log(size) for size in sizes.values())
        least = min(scores.values())
        cache[key] = [guess for guess in left if scores[guess] < least + 1e-9]
    return rng.choice(cache[key])


def counted(words: list[str], policy, games: int, seed: int) -> np.ndarray:
    """The returns of games that are played here."""
    rng, cache, found, known_words = random.Random(seed), {}, [], {}
    for _ in range(games):
        known: dict[str, list[str]] = {}
        left, total = words, 0
        for _ in range(6):
            guess = policy(words, left, known, rng, cache)
            known = told(known, guess, rng.choice(left))
            key = str(sorted(known.items()))
            if key not in known_words:
                known_words[key] = [word for word in words if fits(word, known)]
            left = known_words[key]
            if left == [guess]:
                break
            total -= 1
        found.append(total)
    return np.array(found)


def generator(count: int, games: int) -> dict:
    words, found = language.words(count), {}
    policies = {
        "random_mixture": (language.RandomMixture(SMART, words), mixed),
        "greedy_information": (language.GreedyInformation(words), greedy),
    }
    for name, (policy, independent) in policies.items():
        began = time.perf_counter()
        mine = etude.record(partial(language.Wordle, words), games, policy, Sample(), seed=1).returns
        seconds = time.perf_counter() - began
        theirs = counted(list(words), independent, games, 2)
        error = math.hypot(mine.std(), theirs.std()) / math.sqrt(games)
        found[name] = {
            "recorded": round(float(mine.mean()), 4),
            "counted": round(float(theirs.mean()), 4),
            "difference": round(float(mine.mean() - theirs.mean()), 4),
            "standard_error": round(error, 4),
            "games_per_second": round(games / seconds),
        }
    return {"games": games, **found}


def learned(algorithm: str, seed: int) -> dict:
    steps, settings = LEARNERS[algorithm]
    began = time.perf_counter()
    with etude.Run(algorithm, ten_words, seed=seed, **settings) as run:
        run.train(steps)
        found = run.evaluate(500, seed=100).mean
    return {"return": round(float(found), 3), "steps": steps, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=10_000)
    parser.add_argument("--words", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    given = parser.parse_args()
    found = json.loads(OUT.read_text()) if OUT.exists() else {"generator": {}, "learning": {}}
    for count in given.words:
        found["generator"][str(count)] = generator(count, given.games)
        OUT.write_text(json.dumps(found, indent=1) + "\n")
        print(count, found["generator"][str(count)], flush=True)
    greedy_policy, letters = language.GreedyInformation(TEN), partial(language.Wordle, TEN, list_words=True)
    for name, env, policy in (("random", ten_words, None), ("greedy", letters, greedy_policy)):
        returns = etude.record(env, 500, policy, policy and Sample()).returns
        found["learning"][name] = {"return": round(float(returns.mean()), 3)}
    for algorithm in LEARNERS:
        for seed in given.seeds:
            found["learning"].setdefault(algorithm, {})[str(seed)] = row = learned(algorithm, seed)
            OUT.write_text(json.dumps(found, indent=1) + "\n")
            print(algorithm, seed, row, flush=True)


if __name__ == "__main__":
    main()
