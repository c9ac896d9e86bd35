"""Text environments as environments of tokens: what is seen and legal, what is refused, and what learns there."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text

import etude
from etude.base.errors import ConfigError, DataError, EnvironmentFault, NetworkError, SpaceError
from etude.envs import check_environment
from etude.language import Characters, TokenEnvironment, Wordle, environment_factory, game_of, words

TEN = words(10)


class Words:
    """A tokenizer of one's own: a token for each word of the game, and for each character of what the world says."""

    texts = ("<pad>", "<end>", *TEN, *"BGY- \n")
    size, special = len(texts), {"pad": 0, "end": 1}

    def encode(self, text):
        return [self.texts.index(each) for each in ([text] if text in TEN else text)]

    def decode(self, tokens):
        return "".join(self.texts[token] for token in tokens)


class Talk(gymnasium.Env):
    """Says what it is given to say, and keeps what it hears."""

    action_space, observation_space = Text(4, min_length=2, charset="ab"), Text(10**7, min_length=0, charset="abc")

    def __init__(self, *says, legal=None):
        self.says, self.heard, self.info = says, [], {} if legal is None else {"legal_texts": legal}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heard = []
        return self.says[0], dict(self.info)

    def step(self, action):
        self.heard.append(action)
        over = len(self.heard) == len(self.says) - 1
        return self.says[len(self.heard)], 1.0, over, False, dict(self.info)


def play(env, text):
    """Say tokens of one character each, > for the end; returns the last step and the texts of the masks before each."""
    masks, (_, info) = [], env.reset(seed=0)
    step = None
    for each in text:
        masks.append("".join(env.observation_space.vocabulary[i] for i in np.flatnonzero(info["action_mask"])))
        step = env.step(env.tokenizer.special["end"] if each == ">" else env.tokenizer.encode(each)[0])
        info = step[-1]
    return step, masks


def test_a_turn_ends_with_the_token_for_it_or_where_nothing_can_be_added():
    env = TokenEnvironment(Talk("c", "", "cc"), context=20)
    assert isinstance(env.tokenizer, Characters)
    (observation, reward, terminated, _, _), masks = play(env, "ab>abba")
    assert env.unwrapped.heard == ["ab", "abba"]
    assert masks == ["ab", "ab", "<end>ab", "ab", "ab", "<end>ab", "<end>ab"]
    assert (reward, terminated) == (1.0, True)
    assert env.observation_space.text(observation) == env.render() == "cab<end>abbacc"
    assert observation[-1] == 10 and not observation[10:-1].any() and env.observation_space.contains(observation)


def test_legal_texts_are_the_only_ones_and_end_where_no_other_begins_with_them():
    env = TokenEnvironment(Talk("c", "c", "c", legal=["ab", "abba", "b"]))
    _, masks = play(env, "bab>")
    assert env.unwrapped.heard == ["b", "ab"]
    assert masks == ["ab", "ab", "b", "<end>b"]
    with pytest.raises(SpaceError, match=r"action 2 \('a'\) is not legal after 'b'|action 3 \('b'\) is not legal"):
        play(env, "abbb")


def test_what_cannot_be_seen_or_said_is_one_clear_error():
    with pytest.raises(SpaceError, match=r"character 1 of a text, 'x' in 'cx', is no token of Characters\('abc'\)"):
        TokenEnvironment(Talk("cx", "c")).reset()
    megabyte = "c" * 2**20
    with pytest.raises(SpaceError, match="1,048,576 tokens, more than context=256, after 'c{60}'.") as got:
        TokenEnvironment(Talk(megabyte, "c"), slide=True).reset()
    assert len(str(got.value)) < 300
    assert TokenEnvironment(Talk(megabyte, "c"), context=2**20).reset()[0][-1] == 2**20
    with pytest.raises(SpaceError, match="a game of 7 tokens, more than context=5.*slide=True"):
        play(TokenEnvironment(Talk("c", "ccc", "c"), context=5), "ab>")
    for legal, shown in (([], r"\[\]"), ("ab", "'ab'"), ([1], "1"), (3, "3"), (["a" * 5], "'aaaaa'"), (["c"], "'c'")):
        with pytest.raises(SpaceError, match=rf"has {shown}; expected .* text of Text\(2, 4.*end the episode"):
            TokenEnvironment(Talk("c", "c", legal=legal)).reset()
    with pytest.raises(SpaceError, match="no token of .* is a text of"):
        TokenEnvironment(Talk("c", "c"), Characters("c")).reset()
    with pytest.raises(ConfigError, match="whose spaces are Text; got Discrete"):
        TokenEnvironment(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="context = 0"):
        TokenEnvironment(Talk("c", "c"), context=0)


def test_a_run_names_the_episode_of_what_it_cannot_see():
    run = etude.Run("dqn", lambda: TokenEnvironment(Talk("c", "ccc", "c"), context=5), seed=0)
    with pytest.raises(EnvironmentFault, match=r"episode 0.*more than context=5"):
        run.train(50)


def test_a_prompt_of_a_megabyte_is_one_clear_error_where_no_network_could_read_it():
    def make():
        return TokenEnvironment(Talk("c" * 2**20, "c"), context=2**20 + 5)

    for algorithm in ("dqn", "ppo"):
        with pytest.raises(NetworkError, match="1,048,581 tokens of 5 different ones is 6,291,487 one-hot numbers"):
            etude.Run(algorithm, make, engine="torch")
    with pytest.raises(ConfigError, match="context = 1,048,582, layers = .* the keys and values of an environment are"):
        etude.Run("grpo", make, engine="torch")


def test_what_an_environment_says_late_loses_nothing(tmp_path):
    class Later(Talk):
        said = 0

        def step(self, action):
            type(self).said += 1
            heard, *rest = super().step(action)
            return (heard + "x" if self.said == 30 else heard, *rest)

    def make():
        return Later("c", "", "cc")

    run = etude.Run(
        "dqn", make, run_dir=tmp_path / "run", seed=0, learning_starts=8, network=etude.Mlp((4,)), engine="torch"
    )
    with pytest.raises(EnvironmentFault, match=r"character 2 of a text, 'x' in 'ccx', is no token of"):
        run.train(500)
    run.close()
    with etude.load(tmp_path / "run", env=make) as again:
        assert again.step == run.step > 30
        again.train(20)


def test_a_window_slides_over_a_long_game():
    env = TokenEnvironment(Talk("abc", "c", "c"), context=4, slide=True)
    (observation, *_), _ = play(env, "ab>")
    assert env.observation_space.text(observation) == "ab<end>c"
    data = etude.record(partial(TokenEnvironment, Talk("abc", "c", "c"), context=4, slide=True), 1)
    with pytest.raises(DataError, match="its context was too short"):
        game_of(data.episodes[0])


def test_a_game_of_an_episode_has_all_tokens_and_whose_they_are():
    data = etude.record("etude/Wordle-v0", 3)
    for episode in data.episodes:
        game = game_of(episode)
        assert len(game.tokens) == len(game.mine) == len(game.reward)
        assert np.array_equal(game.tokens[game.mine], episode.action)
        assert np.array_equal(game.reward[game.mine], episode.reward) and not game.reward[~game.mine].any()


def test_the_environment_keeps_gymnasiums_contract():
    assert [found.name for found in check_environment("etude/Wordle-v0")] == []


DQN = {"target_update_every": 100, "learning_starts": 200, "epsilon": etude.Linear(1.0, 0.05, 0.5)}


@pytest.mark.parametrize(
    ("algorithm", "steps", "settings"),
    [
        ("dqn", 1_200, {"network": etude.Mlp((64,)), "learning_rate": 2e-3, "environments": 4, "n_step": 1, **DQN}),
        ("ppo", 4_000, {"learning_rate": 3e-3, "environments": 8, "rollout_length": 32}),
    ],
)
@pytest.mark.long_but("ppo")
def test_algorithms_with_discrete_actions_learn_a_word_game(algorithm, steps, settings):
    def make():
        return TokenEnvironment(Wordle(TEN, list_words=True), Words(), context=16, slide=True)

    assert etude.record(make, 100).returns.mean() < -3.7
    run = etude.Run(algorithm, make, seed=2, **settings)
    run.train(steps)
    assert etude.record(run.environment, 100, run=run).returns.mean() > -3.1


def test_a_game_is_a_tool_of_a_language_model():
    game = environment_factory(partial(Wordle, TEN), "guess", "Guess a word.", text="Of five letters.")
    chat_templates = pytest.importorskip("transformers.utils.chat_template_utils")
    schema = chat_templates.get_json_schema(game().guess)["function"]
    assert (schema["name"], schema["description"]) == ("guess", "Guess a word.")
    assert schema["parameters"]["properties"] == {"text": {"type": "string", "description": "Of five letters."}}

    env, rollout = Wordle(TEN), game()
    first, _ = env.reset(seed=3)
    assert rollout.reset(seed=3, prompt="a column of the row") == (first or None)
    earned, over, said = 0.0, False, iter(TEN)
    while not over:
        text = next(said)
        heard, reward, over, _, _ = env.step(text)
        earned += reward
        assert (rollout.guess(text), rollout.get_reward()) == (heard, earned)
    with pytest.raises(ValueError, match="The game is over"):
        rollout.guess(TEN[0])
    rollout.reset()
    assert rollout.get_reward() == 0.0
    with pytest.raises(ValueError, match="'MUCH too long' is none of Text"):
        rollout.guess("MUCH too long")
    assert rollout.get_reward() == 0.0


@pytest.mark.parametrize(
    ("make", "tool", "says"),
    [
        (Wordle, "reset", "tool = 'reset'; expected a name"),
        (Wordle, "my guess", "tool = 'my guess'; expected a name"),
        (lambda: gymnasium.make("CartPole-v1"), "push", "whose spaces are Text; got Discrete"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(make, tool, says):
    with pytest.raises(ConfigError, match=says):
        environment_factory(make, tool, "Push.")
