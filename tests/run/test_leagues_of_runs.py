"""Leagues: opponents that are frozen copies of a policy, drawn for each episode, and their ratings."""

import copy
from functools import partial

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY
from several_worlds import Counting, Duel, Mixed

import etude
from etude import Conv, Run
from etude.algorithms import DQN, PPO, PPOConfig
from etude.base.data import Choice
from etude.base.errors import CheckpointError, ConfigError
from etude.examples.connect_four import COLUMNS, LINES, ROWS, ConnectFour, connect_four, look_ahead
from etude.explore.combined import SampledOpponent
from etude.explore.explorer import StatelessExplorer
from etude.multi_agent import League
from etude.networks import ActorCritic
from etude.run import from_state
from etude.training.league import FIRST, LeagueCopy, LeagueTable

SMALL = League("even", every=64, size=3)


def made(members, env=Duel, **more):
    return Run(members, partial(env), **{"engine": "torch", "environments": 3, "seed": 1, **more})


def league_of(run):
    return run.learner.leagues["odd"]


@pytest.mark.parametrize("member", [PPO(PPO_TINY), DQN(DQN_TINY)], ids=["ppo", "dqn"])
def test_a_run_against_its_league_goes_on_bit_for_bit_where_it_was_saved(member, tmp_path):
    with made({"even": member, "odd": League("even", 64, 3, "win_rate")}) as run:
        run.train(160)
        run.save(tmp_path / "run.etude")
        run.train(160)
        expected, table = run.engine.of["even"].weights(), league_of(run).table()
    with etude.load(tmp_path / "run.etude", env=partial(Duel)) as again:
        again.train(160)
        found = again.engine.of["even"].weights()
        assert league_of(again).table() == table
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
    assert len(table) == 3
    assert sum(row["games"] for row in table) > 10


def test_workers_play_against_the_same_copies_as_one_process():
    found = []
    for workers in (0, 2):
        with made({"even": PPO(PPO_TINY), "odd": SMALL}, workers=workers) as run:
            run.train(320)
            found.append((league_of(run).table(), run.engine.of["even"].weights()))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(found[1][1][name], value, name)


def test_copies_are_taken_as_the_policy_was_and_the_oldest_go():
    with made({"even": PPO(PPO_TINY), "odd": SMALL}) as run:
        initial = run.engine.of["even"].weights(["even.model.policy.dense0.weight"])
        held = league_of(run).copies[0].weights["odd.model.policy.dense0.weight"]
        np.testing.assert_array_equal(held, *initial.values())
        run.train(48 * 8)
        assert [row["copy"] for row in league_of(run).table()] == [4, 5, 6]
        assert [row["step"] for row in league_of(run).table()] == [288, 336, 384]
        newest = league_of(run).copies[6].weights["odd.model.policy.dense0.weight"]
        now = run.engine.weights()
        np.testing.assert_array_equal(newest, now["even.model.policy.dense0.weight"])
        assert league_of(run).copies[6].weights["normaliser.agents.odd.mean"] != 0  # the moments of `even`


@pytest.mark.parametrize(("every", "steps"), [(16, [384, 432, 480]), (100, [336, 384, 432]), (1_000, [288, 336, 384])])
def test_a_league_that_is_to_copy_more_or_less_often_goes_on_from_its_newest_copy(every, steps):
    with made({"even": PPO(PPO_TINY), "odd": SMALL}) as run:
        run.train(48 * 8)
        state = copy.deepcopy(run.state())
        assert [row["copy"] for row in league_of(run).table()] == [4, 5, 6]
    with from_state(state, partial(Duel), agent={"odd": League("even", every, 3)}) as again:
        again.train(48 * 2)
        rows = league_of(again).table()
    assert [row["step"] for row in rows] == steps
    assert sorted({row["copy"] for row in rows}) == [row["copy"] for row in rows], "numbers grow"


class Drawn(StatelessExplorer):
    """Returns the slot that acted."""

    def draw(self, rng, steps, action_space):
        return rng.random((steps, 1), np.float32)

    def __call__(self, output, noise, step, state):
        return Choice(output, {"log_prob": np.zeros(len(noise), np.float32)})


class Copies:
    """Three copies, whose output is their slot."""

    numbers = np.array([4, 5, 7], np.float32)
    chances = np.array([1, 0, 3], np.float32)

    def act(self, slot, rows):
        return np.full(len(rows), slot)


def test_an_environment_plays_a_whole_episode_against_one_copy_drawn_by_its_chances():
    explorer = SampledOpponent(Drawn())
    noise = explorer.draw(np.random.default_rng(0), 2_000, None)
    state = np.full((2_000, explorer.state_size), np.nan)
    first = explorer(Copies(), noise, 0, state)
    assert set(first.extras["copy"].tolist()) == {4.0, 7.0}
    assert np.mean(first.extras["copy"] == 7) == pytest.approx(0.75, abs=0.04)
    np.testing.assert_array_equal(first.action, np.where(first.extras["copy"] == 4, 0, 2))
    again = explorer(Copies(), np.random.default_rng(1).random(noise.shape, np.float32), 1, state)
    np.testing.assert_array_equal(again.extras["copy"], first.extras["copy"])
    state[:1_000] = np.nan  # new episodes
    later = explorer(Copies(), np.random.default_rng(2).random(noise.shape, np.float32), 2, state)
    assert (later.extras["copy"][1_000:] == first.extras["copy"][1_000:]).all()
    assert (later.extras["copy"][:1_000] != first.extras["copy"][:1_000]).any()
    newest = SampledOpponent(Drawn(), newest=True)(Copies(), noise, 0, np.full((2_000, 1), np.nan))
    assert (newest.action == 2).all()


def test_noise_for_opponents_does_not_depend_on_how_it_is_cut():
    explorer, whole = SampledOpponent(Drawn()), np.random.default_rng(3)
    parts = np.random.default_rng(3)
    expected = explorer.draw(whole, 8, None)
    found = np.concatenate([explorer.draw(parts, 3, None), explorer.draw(parts, 5, None)])
    np.testing.assert_array_equal(found, expected)
    assert explorer.draw(parts, 0, None).shape == (0, 2)


class Ended:
    """Steps of which these games ended: (copy, return of the player)."""

    def __init__(self, games):
        self.extras = {"odd.copy": np.array([[copy for copy, _ in games]], np.float32)}
        self.final_index = np.array([(0, i) for i in range(len(games))])
        self.episodes = [
            etude.base.data.EpisodeEnd(i, 0, 5, 0.0, False, {"even": won, "odd": -won})
            for i, (_, won) in enumerate(games)
        ]


def test_games_move_elo_ratings_by_how_unlikely_their_results_were():
    table = LeagueTable(League("even", every=10, size=2), "odd", dict, ["even"], ["odd"])
    table.record(Ended([(0, 3.0)]))
    assert (table.elo, table.copies[0].elo) == (FIRST + 8, FIRST - 8)  # as likely to win as to lose: half of 16
    table.update(10)
    table.copies[1].elo = table.elo + 400  # odds of 10 to 1 against the player
    before = table.elo
    table.record(Ended([(1, 0.0), (9, 3.0)]))  # a draw, and a copy that is gone
    assert table.elo == pytest.approx(before + 16 * (0.5 - 1 / 11))
    assert [(row["games"], row["win_rate"]) for row in table.table()] == [(1, 2 / 3), (1, 0.5)]
    assert table.metrics() == {"odd.elo": table.elo, "odd.win_rate": pytest.approx(7 / 12)}


def test_a_league_that_chooses_by_win_rate_prefers_the_copies_that_are_not_beaten_yet():
    table = LeagueTable(League("even", every=10, size=3, choose="win_rate"), "odd", dict, ["even"], ["odd"])
    table.update(10)
    table.copies[0] = LeagueCopy(0, {}, FIRST, games=8, score=8.0)  # win rate 0.9
    table.copies[1] = LeagueCopy(10, {}, FIRST, games=8, score=4.0)  # win rate 0.5
    table.update(11)
    np.testing.assert_allclose(table.weights()["chances"], [0.01, 0.25, 0], rtol=1e-5)
    assert table.weights()["numbers"].tolist() == [0, 1, -1]


def test_ratings_are_metrics_of_learning():
    with made({"even": PPO(PPO_TINY), "odd": SMALL}) as run:
        found = [event.metrics for event in run.steps(96) if isinstance(event, etude.base.events.Learned)]
    assert {"odd.elo", "odd.win_rate"} <= found[-1].keys()


@pytest.mark.parametrize(
    ("members", "env", "message"),
    [
        ({"even": PPO(PPO_TINY), "odd": League("eve")}, Duel, "'odd' is a league of 'eve'; expected .* learns: even"),
        ({"even": League("odd"), "odd": League("even")}, Duel, "expected a policy of this run that learns: none does"),
        ({"arm": PPO(PPO_TINY), "switch": League("arm")}, Mixed, "which acts for other observations or actions"),
    ],
)
def test_a_league_that_cannot_be_is_refused(members, env, message):
    with pytest.raises(ConfigError, match=message):
        made(members, env)


@pytest.mark.parametrize(("field", "value"), [("every", 0), ("size", 0), ("choose", "best"), ("every", 2.5)])
def test_a_league_of_wrong_settings_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        League("even", **{field: value})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda league: league.pop("elo"), "'elo' in it"),
        (lambda league: league["copies"].clear(), "1 to 3 copies"),
        (lambda league: league["copies"]["0"].update(games=1, score=2.0), "a number from 0 to 1"),
        (lambda league: league["copies"]["0"]["weights"].clear(), "in it"),
        (lambda league: league.update(chances=np.ones(2, np.float32)), r"shape \(3\)"),
    ],
)
def test_a_league_that_was_changed_in_a_checkpoint_is_refused(spoil, message):
    with made({"even": PPO(PPO_TINY), "odd": SMALL}) as run:
        run.train(30)
        state = copy.deepcopy(run.state())
    spoil(state["leagues"]["odd"])
    with pytest.raises(CheckpointError, match=message):
        from_state(state, partial(Duel))


def test_a_league_of_a_module_of_one_s_own_is_refused():
    torch = pytest.importorskip("torch")
    network = ActorCritic(lambda: torch.nn.Linear(1, 2), lambda: torch.nn.Linear(1, 1))
    config = PPOConfig(network=network, rollout_length=16)
    with pytest.raises(ConfigError, match="league of 'even', whose network NumPy cannot compute. Use a spec, such as"):
        made({"even": PPO(config), "odd": SMALL})


def test_in_turns_a_copy_plays_the_second_seat():
    with made({"first": PPO(PPO_TINY), "second": League("first", 64, 2)}, Counting) as run:
        run.train(200)
        assert run.learner.leagues["second"].copies[2].games > 0


# -- Connect Four ------------------------------------------------------------------------------------------------------


def board_of(*lines):
    """A board from its lowest rows: x for one's own stones, o for the other's."""
    board = np.zeros((ROWS, COLUMNS, 2), np.int8)
    for up, line in enumerate(reversed(lines)):
        for column, stone in enumerate(line):
            if stone in "xo":
                board[ROWS - 1 - up, column, "xo".index(stone)] = 1
    return {"observation": board, "action_mask": (board.sum((0, 2)) < ROWS).astype(np.int8)}


@pytest.mark.parametrize(
    ("lines", "column"),
    [
        (["xxx...."], 3),
        ([".oo.o..", ".xx.xo."], 3),
        (["x......", "x......", "x......"], 0),
        (["..xo...", ".xox...", "xoxo..."], 3),
        (["o......", "o......", "o.xx.x."], 4),
        (["o......", "o......", "o.x..x."], 0),
    ],
)
def test_the_player_that_looks_ahead_wins_where_it_can_and_else_stops_the_other(lines, column):
    assert look_ahead(board_of(*lines), np.random.default_rng(0)) == column


def test_the_player_that_looks_ahead_never_takes_a_full_column_and_either_agent_begins():
    begins = set()
    for seed in range(12):
        env = connect_four()
        env.reset(seed=seed)
        begins.add(env.agent_selection)
        rng = np.random.default_rng(seed)
        while env.agents:
            agent = env.agent_selection
            _, _, terminated, truncated, _ = env.last(observe=False)
            env.step(None if terminated or truncated else look_ahead(env.observe(agent), rng))
    assert begins == {"player", "opponent"}


def test_a_league_of_connect_four_obeys_masks_and_knows_who_won():
    config = PPOConfig(network=etude.Mlp((8,)), rollout_length=16, minibatch_size=64, epochs=1)
    members = {"learner": PPO(config), "league": League("learner", every=100)}
    drives = {"player": "learner", "opponent": "league"}
    with Run(members, connect_four, policies=drives, environments=4, engine="torch", seed=1) as run:
        run.train(400)
        table = run.learner.leagues["league"].table()
    assert sum(row["games"] for row in table) > 5
    assert {row["win_rate"] != 0.5 for row in table if row["games"]} != {False}


def test_connect_four_in_plain_python_has_the_rules_of_pettingzoo_s():
    ours, theirs, results = ConnectFour(), connect_four(), set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ours.reset(seed=seed)
        theirs.reset(seed=seed)
        while theirs.agents:
            agent = theirs.agent_selection
            assert (ours.agents, ours.agent_selection) == (theirs.agents, agent)
            for name in theirs.agents:
                for key, value in theirs.observe(name).items():
                    np.testing.assert_array_equal(ours.observe(name)[key], value)
            _, reward, over, truncated, info = theirs.last(observe=False)
            assert ours.last(observe=False) == (None, reward, over, truncated, info)
            legal = np.flatnonzero(theirs.observe(agent)["action_mask"])
            column = None if over else int(rng.choice(legal))
            results.add((over, reward))
            ours.step(column)
            theirs.step(column)
        assert ours.agents == []
    assert results >= {(False, 0), (True, 1), (True, -1)}


def test_connect_four_ends_in_a_draw_where_the_board_is_full_and_refuses_a_full_column():
    env = ConnectFour(render_mode="ansi")
    env.reset(seed=0)
    for column in 6 * [0]:
        env.step(column)
    with pytest.raises(ValueError, match=r"column 0 is no legal move; the mask is \[0, 1"):
        env.step(0)
    for column in [*6 * [1], *6 * [2], 4, *6 * [3], *5 * [4], *6 * [5], *6 * [6]]:
        assert env.last(observe=False)[1:3] == (0.0, False)
        env.step(column)
    assert env.last(observe=False)[1:3] == (0.0, True)
    assert "." not in env.render()


class Screen(Duel):
    """Where the agents see an image of a side."""

    def observation_space(self, agent):
        return etude.base.spaces.Box(0, 255, (7, 7, 1), np.uint8)

    def _see(self):
        return {name: self.rng.integers(0, 256, (7, 7, 1)).astype(np.uint8) for name in self.possible_agents}


CONV = PPOConfig(network=Conv(((2, 4, 1),), (4,)), rollout_length=16, minibatch_size=32, epochs=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_league_of_a_convolutional_policy_acts_with_its_copies_and_goes_on_bit_for_bit(workers, tmp_path):
    with made({"even": PPO(CONV), "odd": SMALL}, Screen, workers=workers) as run:
        initial = run.engine.of["odd"].weights()["0.odd.model.policy.image0.conv0.weight"]
        np.testing.assert_array_equal(initial, run.engine.weights()["even.model.policy.image0.conv0.weight"])
        run.train(160)
        run.save(tmp_path / "run.etude")
        acting = run.engine.of["odd"].weights()
        run.train(96)
        expected, table = run.engine.of["even"].weights(), league_of(run).table()
    with etude.load(tmp_path / "run.etude", env=partial(Screen), workers=0) as again:
        for name, value in again.engine.of["odd"].weights().items():
            np.testing.assert_array_equal(acting[name], value, name)
        again.evaluate(episodes=2)
        again.train(96)
        assert league_of(again).table() == table
        for name, value in expected.items():
            np.testing.assert_array_equal(again.engine.of["even"].weights()[name], value, name)


def slow_line_counts(board, column, row):
    """How many lines through a cell hold 1, 2, 3 stones of one side and none of the other."""
    found = np.zeros(6)
    for line in LINES:
        if row >= 0 and (row, column) in line:
            own, other = (sum(int(board[r, c, side]) for r, c in line) for side in (0, 1))
            if (own == 0) != (other == 0):
                found[own - 1 if own else 2 + other] += 1
    return found


def test_counts_of_lines_are_those_through_the_two_cells_that_a_column_offers_next():
    assert len(LINES) == 69
    env = ConnectFour(line_counts=True)
    for seed in range(12):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(3 * seed):
            if not env.last(observe=False)[2]:
                env.step(int(rng.choice(np.flatnonzero(env.observe(env.agent_selection)["action_mask"]))))
        for agent in env.possible_agents:
            seen = env.observe(agent)
            board = seen["observation"]
            for column in range(COLUMNS):
                lowest = ROWS - 1 - int(board[:, column].sum())
                expected = [slow_line_counts(board, column, row) for row in (lowest, lowest - 1)]
                np.testing.assert_array_equal(seen["columns"][column], np.concatenate(expected))


def test_an_agent_may_be_the_one_that_always_begins():
    for agent in ("player", "opponent"):
        env = ConnectFour(begins=agent)
        for seed in range(6):
            env.reset(seed=seed)
            assert env.agent_selection == agent
    with pytest.raises(ConfigError, match="begins = 'red'; expected 'player', 'opponent' or None"):
        ConnectFour(begins="red")


def test_an_episode_is_played_to_its_end_against_the_copy_that_it_began_with():
    played = {}

    def follow(steps):
        for n, column in enumerate(steps.columns):
            for t in range(len(steps.reward)):
                played.setdefault(int(column), []).append(int(steps.extras["odd.copy"][t, n]))
                if steps.terminated[t, n] or steps.truncated[t, n]:
                    played[int(column)].append(None)
        return 0.0

    class Long(Duel):
        def step(self, actions):
            self.count = getattr(self, "count", 0) + 1
            self.time = 4 if self.count % 60 == 0 else 0
            return super().step(actions)

    league = League("even", every=16, size=3)
    with made({"even": PPO(PPO_TINY), "odd": league}, Long) as run:
        run.metric("follow", follow)
        run.train(1_500)
        loaded, own = league_of(run).weights(), run.engine.of["odd"].weights()
        for name, value in loaded.items():
            np.testing.assert_array_equal(own[name], value, name)
        newest = next(reversed(league_of(run).copies.values()))
        moments = run.engine.of["even"].weights()["normaliser.agents.even.mean"]
        if newest.step == run.step:
            np.testing.assert_array_equal(newest.weights["normaliser.agents.odd.mean"], moments)
    changes = sum(
        a is not None and b is not None and a != b
        for row in played.values()
        for a, b in zip(row, row[1:], strict=False)
    )
    assert changes == 0 and len({number for row in played.values() for number in row} - {None}) > 5
