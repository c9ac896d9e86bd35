"""Whole games of tokens against the recorded episodes that they are from."""

import dataclasses
from functools import partial

import numpy as np
import pytest

import etude
from etude import language
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import ACTION_MASK
from etude.offline.dataset import Dataset
from etude.replay import Buffer, Ring, TokenSequences
from etude.replay.selectors import BestEpisodes
from etude.replay.token_sequences import padded_length


@pytest.fixture(scope="module")
def games():
    return etude.record(partial(language.Wordle, 5, list_words=True), 30, seed=3)


def buffer_of(data, best=1.0, first=True):
    ring = Ring(data.spaces, len(data) + 1)
    buffer = Buffer(ring, BestEpisodes(best, first), TokenSequences(0.9), np.random.default_rng(0))
    buffer.add(data.steps())
    return buffer


def test_a_batch_holds_whole_games(games):
    buffer = buffer_of(games)
    starts = dict(zip(np.cumsum([0, *[len(each.reward) for each in games.episodes]]), games.episodes, strict=False))
    batch = buffer.sample(2, 100)
    assert batch.action.shape == (2, 100, padded_length(max(map(len_of, games.episodes)), 72))
    assert set(batch.index.ravel()) == set(starts)
    for at in np.ndindex(2, 100):
        episode = starts[batch.index[at]]
        game, n = language.game_of(episode), len_of(episode)
        mine, places = batch.extras["mine"][at], np.flatnonzero(game.mine)
        assert batch.action[at][:n].tolist() == game.tokens.tolist() and not batch.action[at][n:].any()
        assert batch.observation["observation"][at].tolist() == batch.action[at].tolist()
        assert mine[:n].astype(bool).tolist() == game.mine.tolist() and not mine[n:].any()
        assert batch.reward[at][:n].tolist() == game.reward.tolist() and not batch.reward[at][n:].any()
        assert batch.discount[at][places].tolist() == [np.float32(0.9)] * (len(places) - 1) + [0.0]
        assert batch.extras["next_place"][at][places].tolist() == [*places[1:], n]
        allowed = batch.observation[ACTION_MASK][at]
        np.testing.assert_array_equal(allowed[places], episode.observation[ACTION_MASK][:-1])
        assert allowed[mine == 0].all() and not batch.discount[at][mine == 0].any()
    scaled = buffer.view.reward_scale = 2.0
    assert buffer.view(buffer.ring, batch.index, batch.weight).reward.sum() == scaled * batch.reward.sum()


def len_of(episode):
    return int(episode.observation["observation"][-1, -1])


def test_a_game_that_was_cut_goes_on_with_the_value_of_all_of_its_tokens(games):
    cut = [Episode(e.observation, e.action, e.reward, False, True) for e in games.episodes[:3]]
    batch = buffer_of(Dataset(tuple(cut), games.source)).sample(1, 5)
    assert (batch.discount == 0.9 * batch.extras["mine"]).all()


def test_the_best_share_of_episodes_alone_is_drawn(games):
    best = sorted(games.returns)[-3:]
    for first in (True, False):
        buffer = buffer_of(games, 0.1, first)
        rows, weight = buffer.selector.select(buffer.ring, 3, 200, np.random.default_rng(1))
        starts = np.cumsum([0, *[len(each.reward) for each in games.episodes]])
        drawn = np.searchsorted(starts, np.unique(rows), side="right") - 1
        assert sorted(games.returns[np.unique(drawn)]) == best and (weight == 1).all()
        assert len(drawn) == (3 if first else sum(len(games.episodes[i].reward) for i in np.unique(drawn)))
    buffer.selector.adjust({"best": 1.0})
    assert len(np.unique(buffer.selector.select(buffer.ring, 20, 500, np.random.default_rng(1))[0])) == len(games)


def test_each_column_of_a_ring_holds_episodes_of_its_own(games):
    ring, selector = Ring(games.spaces, 600, 2), BestEpisodes(first=True)
    for column, few in enumerate((games.episodes[:4], games.episodes[4:10])):
        ring.add(dataclasses.replace(Dataset(few, games.source).steps(), columns=np.array([column])))
    rows, _ = selector.select(ring, 1, 300, np.random.default_rng(0))
    batch = TokenSequences(0.9)(ring, rows, np.ones(rows.shape, np.float32))
    drawn = {tuple(tokens[: len_of(e)]) for e in games.episodes[:10] for tokens in [language.game_of(e).tokens]}
    assert {tuple(row[row > 0]) for row in batch.action[0]} == drawn
    ring.kind[ring.ahead(ring.head * 2 + np.arange(2), -1)] = 0  # the last ones of both go on
    ring.version += 1
    rows, _ = selector.select(ring, 1, 300, np.random.default_rng(0))
    assert len(np.unique(rows)) == 8


@pytest.mark.parametrize(("longest", "length"), [(1, 8), (8, 8), (9, 12), (13, 16), (17, 24), (50, 64), (65, 72)])
def test_lengths_are_on_a_ladder(longest, length):
    assert padded_length(longest, 72) == length


def test_what_is_no_whole_game_is_refused(games):
    def slid():
        return language.TokenEnvironment(language.Wordle(5, list_words=True), context=24, slide=True)

    with pytest.raises(DataError, match="its context was too short"):
        buffer_of(etude.record(slid, 5)).sample(1, 50)
    buffer = buffer_of(games)
    buffer.ring.trim(3)
    buffer.ring.kind[:] = 0
    with pytest.raises(ConfigError, match="no whole episode in 3 steps"):
        buffer.sample(1, 2)
