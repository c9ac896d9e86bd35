"""The games: their rules held against programs of another kind, and the policies that play them."""

from __future__ import annotations

import math
import random
from functools import partial

import gymnasium
import numpy as np
import pytest

import etude
from etude import language
from etude.base.errors import ConfigError
from etude.envs import check_environment
from etude.explore import Sample
from etude.language.wordle import CHARACTERS

GAMES = ("Arithmetic", "GraphWalks", "TwentyQuestions", "Wordle")


@pytest.mark.parametrize("name", GAMES)
def test_games_are_environments_of_texts_and_of_tokens(name):
    env = gymnasium.make(f"etude/{name}-v0")
    assert env.observation_space.contains(env.reset(seed=1)[0])
    assert check_environment(f"etude/{name}-v0") == []
    first, again = (etude.record(f"etude/{name}-v0", 4, seed=2) for _ in range(2))
    for mine, theirs in zip(first.episodes, again.episodes, strict=True):
        assert np.array_equal(language.game_of(mine).tokens, language.game_of(theirs).tokens)


def known_from(lines):
    """What lines of a game say of each letter: in which places it is, in which not, and that it is nowhere."""
    here, elsewhere, nowhere = set(), set(), set()
    for line in lines:
        guess, colours = line.split(" ")
        if colours == "-----":
            continue
        for place, (letter, colour) in enumerate(zip(guess, colours, strict=True)):
            if colour == "B":
                nowhere.add(letter)
            else:
                (here if colour == "G" else elsewhere).add((place, letter))
    return lambda word: (
        not set(word) & nowhere
        and all(word[place] == letter for place, letter in here)
        and all(word[place] != letter and letter in word for place, letter in elsewhere)
    )


def test_wordle_draws_the_hidden_word_again_from_those_that_fit():
    words = ("aabbb", "abcde", "abcdf", "bcdea", "eabcd", "ffabc")
    env, hidden, ended = language.Wordle(words), set(), 0
    rng = random.Random(0)
    for seed in range(300):
        assert env.reset(seed=seed)[0] == ""
        lines, total = [], 0.0
        for guesses in range(1, 7):
            guess = rng.choice([*words, "zzzzz", "ab"])
            answer, reward, terminated, truncated, _ = env.step(guess)
            lines.append(guess + answer.rstrip("\n"))
            left = [word for word in words if known_from(lines)(word)]
            found = left == [guess] and answer == " GGGGG\n"
            assert left and not truncated
            assert reward == (0.0 if found else -1.0) and terminated == (found or guesses == 6)
            assert (answer == " -----\n") == (guess not in words)
            total += reward
            if guesses == 1 and guess in words:
                hidden.add((guess, answer))
            if terminated:
                ended += guesses < 6
                break
    assert ended > 50
    # One letter twice in the guess: both are yellow, or grey, as knowledge is per letter and place.
    assert ("aabbb", " YYYYY\n") in hidden
    assert sum(guess == "abcde" for guess, _ in hidden) == 5  # "abcdf" and others by their colours


def counted(words, share, games, seed):
    """The mean return of random mixtures, by a slow program of its own."""
    rng, total = random.Random(seed), 0
    for _ in range(games):
        lines, left = [], list(words)
        for _ in range(6):
            guess, hidden = rng.choice(left if rng.random() < share else words), rng.choice(left)
            if guess == hidden:
                break
            total -= 1
            answer = "".join("G" if g == h else "Y" if g in hidden else "B" for g, h in zip(guess, hidden, strict=True))
            lines.append(f"{guess} {answer}")
            left = [word for word in left if known_from(lines)(word)]
    return total / games


def test_random_mixtures_play_as_an_independent_count_says():
    words = language.words(20)
    returns = etude.record(partial(language.Wordle, words), 200, language.RandomMixture(0.33, words), Sample()).returns
    assert abs(returns.mean() - counted(words, 0.33, 2_000, 1)) < 3 * returns.std() / math.sqrt(200)


def test_greedy_information_guesses_what_tells_most():
    words = language.words(12)
    policy = language.GreedyInformation(words)

    def entropy(guess):
        sizes = {}
        for hidden in words:
            told = tuple(2 if g == h else g in hidden for g, h in zip(guess, hidden, strict=True))
            sizes[told] = sizes.get(told, 0) + 1
        return round(sum(size * math.log(size) for size in sizes.values()), 9)

    best = {word for word in words if entropy(word) == min(map(entropy, words))}
    likely = policy.likely(np.arange(len(words)))
    assert {word for word, chance in zip(words, likely, strict=True) if chance} == best
    assert likely.sum() == pytest.approx(1.0)


def test_log_probabilities_of_letters_are_those_of_words():
    words = language.words(12)
    data = etude.record(partial(language.Wordle, words), 8, language.RandomMixture(0.33, words), Sample())
    for episode in data.episodes:
        text = CHARACTERS.decode(language.game_of(episode).tokens)
        lines = text.splitlines()
        for i, line in enumerate(lines):
            left = [word for word in words if known_from(lines[:i])(word)]
            guess = line.split(" ")[0]
            chance = 0.67 / len(words) + (0.33 / len(left) if guess in left else 0.0)
            letters = episode.extras["log_prob"][5 * i : 5 * i + 5]
            assert letters.sum() == pytest.approx(math.log(chance), abs=1e-4)


def test_answers_that_repeat_letters_say_the_same():
    words = language.words(20)
    plain, spelled = language.Wordle(words), language.Wordle(words, repeat_letters=True)
    plain.reset(seed=3), spelled.reset(seed=3)
    for guess in (words[0], "zzzzz", words[1], words[2]):
        (said, *outcome), (told, *same) = plain.step(guess), spelled.step(guess)
        assert told == " " + "".join(a + b for a, b in zip(guess, said.strip(), strict=True)) + "\n" and outcome == same
        assert told in spelled.observation_space
    policy = language.GreedyInformation(words)
    played = [
        etude.record(partial(language.Wordle, words, repeat_letters=repeated), 20, policy, Sample(), seed=1)
        for repeated in (False, True)
    ]
    assert np.array_equal(played[0].returns, played[1].returns) and played[0].returns.min() > -6


def test_words_are_generated_from_a_seed():
    assert language.words(431) == language.words(431) != language.words(431, seed=1)
    assert len(set(language.words(431))) == 431 and all(len(word) == 5 for word in language.words(431))
    for wrong, said in ((["abcde", "abcde"], "no word twice"), (["Abcde"], "five small letters"), (0, "from 1 to")):
        with pytest.raises(ConfigError, match=said):
            language.Wordle(wrong)
    with pytest.raises(ConfigError, match="prob_smart = 2"):
        language.RandomMixture(2)


def test_twenty_questions_can_be_answered_from_what_is_known():
    env = language.TwentyQuestions()
    for seed in range(20):
        env.reset(seed=seed)
        left, total = np.ones(len(env.things), bool), 0.0
        for i, asked in enumerate(env.properties):
            answer, reward, *_ = env.step(f"is it {asked}?")
            left &= env.has[:, i] == (answer == " yes\n")
            total += reward
        assert left.sum() == 1
        assert env.step("is it it?")[:2] == (" what?\n", -1.0)
        assert env.step(f"is it {env.things[int(np.argmax(left))]}?")[:3] == (" yes\n", 0.0, True)
    assert len(np.unique(language.TwentyQuestions(300, 32).has, axis=0)) == 300
    assert (language.TwentyQuestions(40, 18, seed=2).has @ 2 ** np.arange(18)).sum() == 6_228_041  # by the seed
    with pytest.raises(ConfigError, match="things = 64, properties = 6"):
        language.TwentyQuestions(64, 6)


def test_walks_are_rewarded_as_trlx_does():
    env = language.GraphWalks()
    rng = random.Random(0)

    def shortest(node):  # nodes of the shortest walk, by trying all walks of each length
        walks = [[node]]
        while not any(walk[-1] == 0 for walk in walks):
            walks = [[*walk, there] for walk in walks for there in np.flatnonzero(env.graph[walk[-1]])][:5_000]
        return len(walks[0])

    lengths, arrived = {}, 0
    for seed in range(200):
        text, info = env.reset(seed=seed)
        walk, total, over = text, 0.0, False
        while not over:
            node = rng.choice(info["legal_texts"] if seed % 2 else "abcdefghijklmnopqrstu")
            valid = env.graph[ord(walk[-1]) - 97, ord(node) - 97]
            heard, reward, over, _, info = env.step(node)
            walk, total = walk + node, total + reward
            assert heard == "" and (valid or over)
        start = ord(walk[0]) - 97
        lengths.setdefault(start, shortest(start))
        optimal = (10 - len(walk)) / (10 - lengths[start]) if valid and walk[-1] == "a" else 0.0
        assert total == pytest.approx(optimal) and len(walk) <= 10
        arrived += walk[-1] == "a"
    assert arrived > 50 and set(lengths) == set(range(1, 21))
    with pytest.raises(ConfigError, match="nodes = 27"):
        language.GraphWalks(27)


def test_sums_are_verified():
    env = language.Arithmetic(12, "+-*")
    for seed in range(50):
        text, _ = env.reset(seed=seed)
        answer = eval(text.removesuffix("="))  # of the test's own environment
        assert env.action_space.contains(str(answer)) and env.observation_space.contains(text)
        assert env.step(f"{answer}")[1:3] == (1.0, True)
        env.reset(seed=seed)
        assert env.step(f"0{answer}")[1] == 0.0
    with pytest.raises(ConfigError, match="operations = '/'"):
        language.Arithmetic(operations="/")
