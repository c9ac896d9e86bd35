"""Agents that read whole games of tokens: acting token by token is the whole pass, in NumPy and on every engine."""

import dataclasses
from functools import partial

import numpy as np
import pytest

import etude
from etude import Transformer, engines, language
from etude.algorithms import BC, DPO, BCConfig, DPOConfig
from etude.base import trees
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.explore import Sample

pytestmark = pytest.mark.variant("jax")  # TensorFlow: with --whole

SPEC = Transformer(2, 16, 2, 24, 73)


@pytest.fixture(scope="module")
def games():
    return etude.record(partial(language.Wordle, 5), 4, language.RandomMixture(0.9, 5), Sample(), seed=3)


@pytest.mark.parametrize("spec", [SPEC, Transformer(1, 16, 4, 24, 20, positions="learned", tied=True)])
def test_acting_token_by_token_is_the_whole_pass(spec, games, engine_name):
    agent, spaces = BC(BCConfig(network=spec)), games.spaces
    engine = engines.create(engine_name, agent, spaces, seed=1)
    actor = NumpyEngine(agent, spaces)
    weights = engine.weights()
    actor.load(weights)
    actor_of = actor.layout.bind(weights).actor["policy"]
    state = np.zeros((4, actor.state_size), np.float32)
    whole = [actor_of.whole(language.game_of(each).tokens[None].astype(np.int32))[0] for each in games.episodes]
    for t in range(max(len(each.reward) for each in games.episodes)):
        # Episodes of different lengths begin anew at times of their own.
        at = [t % len(each.reward) for each in games.episodes]
        state[np.array(at) == 0] = 0.0
        seen = trees.stack([trees.rows(e.observation, i) for e, i in zip(games.episodes, at, strict=True)])
        found, state = actor.act(seen, state)
        count = seen["observation"][:, -1]
        assert state[:, 0].tolist() == (count + 1).tolist()
        for i, logits in enumerate(found.logits):
            expected, allowed = whole[i][count[i]], seen["action_mask"][i] > 0
            np.testing.assert_allclose(logits[allowed], expected[allowed], rtol=0, atol=1e-5)
        if t in (0, 7, 11):
            theirs, kept = engine.act(seen, np.zeros_like(state))
            assert not np.asarray(kept).any()
            mine = [each.log_prob(np.argmax(seen["action_mask"], -1)) for each in (found, theirs)]
            np.testing.assert_allclose(*map(np.asarray, mine), rtol=0, atol=1e-5)
    assert whole[0].std() > 0.03 and len({len(each.reward) for each in games.episodes}) > 1


def test_a_window_that_slides_is_read_as_it_is(engine_name):
    def slid():
        return language.TokenEnvironment(language.Wordle(5), context=16, slide=True)

    data = etude.record(slid, 1, seed=0)
    agent = BC(BCConfig(network=SPEC))
    engine, actor = engines.create(engine_name, agent, data.spaces), NumpyEngine(agent, data.spaces)
    actor.load(engine.weights())
    state = np.zeros((1, actor.state_size), np.float32)
    for t in range(len(data.episodes[0].reward)):
        seen = trees.rows(data.episodes[0].observation, slice(t, t + 1))
        found, state = actor.act(seen, state)
        if t > 9:
            expected = engine.act(seen, state)[0].log_prob(data.episodes[0].action[t : t + 1])
            assert found.log_prob(data.episodes[0].action[t : t + 1]) == pytest.approx(np.asarray(expected), abs=1e-5)


def test_a_clone_of_games_says_their_words(engine_name):
    words = language.words(3)
    data = etude.record(partial(language.Wordle, words), 60, language.RandomMixture(0.3, words), Sample(), seed=1)
    settings = {"network": SPEC, "learning_rate": 1e-2, "batch_size": 16, "gradient_steps": 50, "best": 0.5}
    run = etude.Run("bc", partial(language.Wordle, words), data=data, engine=engine_name, seed=0, **settings)
    run.train(100)
    played = etude.record(run.environment, 8, run=run)
    said = {text for each in played.episodes for text in texts(each, played)}
    assert said <= set(words)


def texts(episode, data):
    space = data.source.observation["observation"]
    return [line.split()[0] for line in space.text(episode.observation["observation"][-1]).splitlines()]


@pytest.mark.variant
def test_masked_tokens_are_learned_from_both_sides_and_the_next_one_by_a_mask_after_the_last(engine_name):
    words = language.words(3)
    data = etude.record(partial(language.Wordle, words), 60, language.RandomMixture(0.3, words), Sample(), seed=1)
    spec = dataclasses.replace(SPEC, causal=False)
    given = {"network": spec, "learning_rate": 1e-2, "batch_size": 16, "gradient_steps": 50, "masked": 0.2}
    run = etude.Run("bc", partial(language.Wordle, words), data=data, engine=engine_name, seed=0, **given)
    *_, learned = (event for event in run.steps(200) if type(event).__name__ == "Learned")
    assert learned.metrics["accuracy"] > 0.7
    agent, weights = run.agent, run.engine.weights()
    actor = NumpyEngine(agent, data.spaces)
    actor.load(weights)
    network = actor.layout.bind(weights).actor["policy"]
    shown = np.pad(language.game_of(data.episodes[0]).tokens[:12].astype(np.int32), (0, 4))[None]
    shown[0, 5] = network.mask
    found = network.whole(shown, np.array([12]))[0, 6]
    for other, reached in ((4, True), (6, True), (12, False)):
        changed = shown.copy()
        changed[0, other] += 1
        assert np.allclose(network.whole(changed, np.array([12]))[0, 6], found, atol=1e-6) is not reached
    steps = data.episodes[0].observation
    seen = trees.rows(steps, slice(4, 5))
    action, state = actor.act(seen, np.zeros((1, actor.state_size), np.float32))
    count, window = int(seen["observation"][0, -1]), seen["observation"][0]
    shown = np.append(window[:count], network.mask).astype(np.int32)[None]
    expected = network.whole(shown, np.array([count + 1]))[0, count + 1]
    allowed = seen["action_mask"][0] > 0
    np.testing.assert_allclose(action.logits[0][allowed], expected[allowed], rtol=0, atol=1e-5)
    theirs = np.asarray(run.engine.act(seen, state)[0].logits)[0]
    np.testing.assert_allclose(theirs[allowed], expected[allowed], rtol=0, atol=1e-5)


def test_what_sees_both_ways_learns_masked_tokens_alone(games):
    spec = dataclasses.replace(SPEC, causal=False)
    with pytest.raises(ConfigError, match="causal = False, which sees the tokens that this algorithm predicts"):
        NumpyEngine(DPO(DPOConfig(network=spec)), games.spaces)
    with pytest.raises(ConfigError, match="masked = 1.5; expected a number from 0 to 1"):
        BCConfig(masked=1.5)
    for nothing in ("masked", "best"):
        with pytest.raises(ConfigError, match=f"{nothing} = 0; expected a number above 0"):
            BCConfig(**{nothing: 0})


def test_the_default_network_over_tokens_reads_whole_games(games, engine_name):
    run = etude.Run("bc", partial(language.Wordle, 5), data=games, engine=engine_name)
    assert run.agent.config.network == Transformer(context=73)


def test_what_reads_no_games_is_one_clear_error():
    with pytest.raises(NetworkError, match="reads the tokens of a text here; the observations are Discrete"):
        NumpyEngine(BC(BCConfig(network=SPEC)), Spaces(Discrete(3), Discrete(3)))
    with pytest.raises(ConfigError, match="best = 1.5; expected a number from 0 to 1"):
        BCConfig(best=1.5)
