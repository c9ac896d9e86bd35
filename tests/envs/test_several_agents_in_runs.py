"""PettingZoo environments as runs see them: at once and in turns, with agents that end, join and wait."""

import cloudpickle
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from several_worlds import Coming, Counting, Meeting, Mixed, Pausing
from worlds import Relay

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault, SpaceError
from etude.envs import check_environment, make_environment, make_environments
from etude.multi_agent.joint import ACTING, TERMINATED, TRUNCATED, WAITING

NAMES = ["mpe2:simple_speaker_listener_v4", "mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic:rps_v2"]


def made(env, columns=(0,)):
    return make_environments(env, np.array(columns), run_seed=5)


def none(environments, n=1):
    space = environments.spaces.action
    return np.zeros((n, *space.shape), space.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_environments_go_by_the_names_of_their_modules(name):
    environments = made(name, (0, 1))
    agents = environments.spaces.agents
    assert list(agents) == sorted(agents)
    observation = environments.reset()
    for key, own in agents.items():
        assert observation["agents"][key].shape == (2, *own.observation.shape)
    assert observation["status"].tolist() == [[ACTING] * len(agents)] * 2


@pytest.mark.parametrize("name", ["mpe2:simple_nothing_v3", "mpe2.simple_spread_v3:no_env"])
def test_a_module_that_is_not_there_is_told(name):
    with pytest.raises(ConfigError, match="has no '|There is no"):
        made(name)


def test_agents_are_joined_by_name_whatever_their_spaces():
    spaces = made(Mixed).spaces
    assert list(spaces.agents) == ["arm", "switch"]
    assert spaces.agents["switch"].action == Discrete(3)
    assert spaces.agents["arm"].action == Box(-1, 1, (2,), np.float32)
    assert spaces.agents["switch"].observation == Dict({"observation": Discrete(3), "action_mask": MultiBinary(3)})
    assert spaces.action.shape == (3,)
    assert not spaces.turns
    assert made(Coming).spaces.action == MultiDiscrete([2, 3, 2])


@pytest.mark.parametrize("in_infos", [False, True])
def test_actions_of_several_kinds_reach_their_agents_in_their_own_units(in_infos):
    environments = made(lambda: Mixed(in_infos))
    observation = environments.reset()
    mask = observation["agents"]["switch"]["action_mask"][0]
    number = int(mask.argmax())
    assert observation["agents"]["switch"]["observation"].tolist() == [number]  # counted from 0
    place = float(observation["agents"]["arm"][0, 0])
    action = np.array([[place / 4, place / 4, number]], np.float32)  # Box(-2, 2) from [-1, 1]
    _, reward, terminated, _, final = environments.step(action)
    np.testing.assert_allclose(reward, [[1.0, 1.0]], atol=1e-6)
    assert terminated.tolist() == [True]
    assert final[0]["status"].tolist() == [TERMINATED, TERMINATED]


def test_a_mask_that_allows_nothing_is_told_by_agent():
    class Stuck(Mixed):
        def _see(self):
            seen, infos = super()._see()
            seen["switch"]["action_mask"] = np.zeros(3, np.int8)
            return seen, infos

    with pytest.raises(EnvironmentFault, match="action mask of agent 'switch', whose turn it is, allows no action"):
        made(Stuck)


def test_agents_end_and_join_within_an_episode():
    environments = made(Coming)
    observation, seen = environments.reset(), []
    seen.append(observation["status"][0].tolist())
    rewards = []
    for _ in range(9):
        observation, reward, terminated, truncated, final = environments.step(none(environments))
        rewards.append(reward[0].tolist())
        seen.append((final[0] if final else trees.rows(observation, 0))["status"].tolist())
    early = [ACTING] * 2 + [TERMINATED] * 8
    joins = [WAITING] * 3 + [ACTING] * 6 + [TRUNCATED]
    late = [ACTING] * 9 + [TRUNCATED]
    assert seen == [list(row) for row in zip(early, joins, late, strict=True)]
    assert rewards == [[float(t < 2), 2.0 * (t >= 3), 1.0] for t in range(9)]
    assert (terminated.tolist(), truncated.tolist()) == ([False], [True])
    assert observation["status"].tolist() == [[ACTING, WAITING, ACTING]]


def test_an_agent_that_is_not_there_yet_shows_nothing_and_one_that_ended_its_last_observation():
    environments = made(Coming)
    assert environments.reset()["agents"]["joins"].tolist() == [[0, 0]]
    for _ in range(3):
        observation, *_ = environments.step(none(environments))
    assert observation["agents"]["joins"].tolist() == [[1, 1]]
    assert observation["agents"]["early"].tolist() == [[1]]


@pytest.mark.parametrize("silent", [False, True])
def test_agents_that_nobody_shows_wait_and_the_episode_goes_on(silent):
    environments = made(lambda: Pausing(silent=silent))
    status, rewards = [environments.reset()["status"][0].tolist()], []
    for _ in range(12):
        observation, reward, terminated, truncated, final = environments.step(none(environments) + 1)
        status.append((final[0]["status"] if final else observation["status"][0]).tolist())
        rewards.append(reward[0].tolist())
    end = WAITING if silent else TERMINATED
    assert status == [[ACTING if time in (3, 4, 8) else WAITING] * 2 for time in range(12)] + [[end] * 2]
    assert rewards == [[float(time in (4, 8) or time == 12 and not silent)] * 2 for time in range(1, 13)]
    assert (terminated.tolist(), truncated.tolist()) == ([not silent], [silent])


def test_an_agent_that_is_not_shown_and_not_there_is_told():
    class Gone(Relay):
        def step(self, actions):
            observations, *rest = super().step(actions)
            self.agents = ["b"]
            return {"b": observations["b"]}, *rest

    environments = made(Gone)
    environments.reset()
    with pytest.raises(EnvironmentFault, match="no observation for agent 'a', which still plays; got those of"):
        environments.step(none(environments))


def test_an_environment_that_never_lets_anybody_act_is_told(monkeypatch):
    monkeypatch.setattr("etude.envs.multi_agent.PATIENCE", 30)
    environments = made(lambda: Pausing(times=()))
    environments.reset()
    with pytest.raises(
        EnvironmentFault, match="episode 2, step 6: .* nobody could act in 30 steps in a row: .*ann, bob stayed in"
    ):
        for _ in range(30):
            environments.step(none(environments))


def test_in_turns_each_step_is_one_turn_and_rewards_come_at_the_next_one():
    environments = made(Counting)
    assert environments.spaces.turns
    assert environments.reset()["status"].tolist() == [[ACTING, WAITING]]
    found = [environments.step(none(environments)) for _ in range(8)]
    # `second` has earned 0.5 before its first turn; each turn's reward comes with what the other's added to it.
    assert [step[1][0].tolist() for step in found] == [
        [0, 0.5], [1.5, 0], [0, 1.5], [1.5, 0], [0, 1.5], [1.5, 0], [0, 1.5], [1.5, 1.0],
    ]  # fmt: skip
    assert [step[0]["status"][0].tolist() for step in found[:3]] == [[0, 1], [1, 0], [0, 1]]
    assert found[-1][4][0]["status"].tolist() == [TRUNCATED, TRUNCATED]
    assert (found[-1][2].tolist(), found[-1][3].tolist()) == ([False], [True])
    assert sum(float(step[1].sum()) for step in found) == 12


def test_a_game_of_pettingzoo_ends_for_both_in_the_turn_that_wins_it():
    environments = made("pettingzoo.classic:tictactoe_v3")
    observation = environments.reset()
    for move in (0, 1, 3, 4, 6):
        for name in ("player_1", "player_2"):  # who waits may do anything
            acting = observation["status"][0].tolist() == ([ACTING, WAITING] if name == "player_1" else [0, ACTING])
            mask = observation["agents"][name]["action_mask"][0]
            assert mask.all() if not acting else mask[move] == 1
        observation, reward, terminated, _, final = environments.step(np.array([[move, move]]))
    assert reward.tolist() == [[1, -1]]
    assert terminated.tolist() == [True]
    assert final[0]["agents"]["player_1"]["observation"].sum() == 5


@pytest.mark.parametrize("env", [Coming, Counting, NAMES[0], Pausing], ids=["joining", "turns", "speaker", "pausing"])
def test_open_episodes_are_replayed_bit_for_bit(env):
    one, other = made(env, (0, 1)), made(env, (0, 1))
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (60, 2, len(one.spaces.agents)))
    one.reset()
    for action in actions[:33]:
        one.step(action)
    _, differs = other.restore(cloudpickle.loads(cloudpickle.dumps(one.state())))
    assert differs == []
    for action in actions[33:]:
        for x, y in zip(trees.leaves(one.step(action)[:4]), trees.leaves(other.step(action)[:4]), strict=True):
            assert np.array_equal(x, y)


def test_what_a_parallel_environment_leaves_out_is_told():
    class Forgetful(Relay):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return observations, {}, *rest

    environments = made(Forgetful)
    environments.reset()
    with pytest.raises(EnvironmentFault, match="no reward for agent 'a', which still plays"):
        environments.step(none(environments))


class Older(Relay):
    """Says in other ways what has one meaning."""

    infos = staticmethod(lambda agents: {})

    def reset(self, seed=None, options=None):
        observations, _ = super().reset(seed=seed, options=options)
        infos = self.infos(observations)
        return observations, None if infos == "none" else infos

    def step(self, actions):
        observations, rewards, *flags, _ = super().step(actions)
        infos = self.infos(observations)
        rewards = {name: np.array([reward]) for name, reward in rewards.items()}
        return observations, rewards, *flags, None if infos == "none" else infos


@pytest.mark.parametrize("infos", ["none", None, "of each"])
def test_infos_that_are_none_and_rewards_in_arrays_are_read(infos):
    kind = type("Kind", (Older,), {"infos": lambda self, names: dict.fromkeys(names) if infos == "of each" else infos})
    played = []
    for env in (Relay, kind):
        environments = made(env)
        steps = (environments.step(none(environments))[:4] for _ in range(3))
        played.append((environments.reset(), *steps))
    for expected, found in zip(*map(trees.leaves, played), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_agent_that_was_not_named_is_told():
    class Crowded(Relay):
        def step(self, actions):
            observations, *rest = super().step(actions)
            return {**observations, "guest": 0}, *rest

    environments = made(Crowded)
    environments.reset()
    with pytest.raises(
        EnvironmentFault, match="observation of agent 'guest'; expected agents of possible_agents: b, a"
    ):
        environments.step(none(environments))


def test_agents_of_an_environment_in_turns_that_does_not_name_them_are_those_of_its_first_reset():
    class Unnamed(Counting):
        possible_agents = None

        def reset(self, seed=None, options=None):
            self.possible_agents = ["first", "second"]
            super().reset(seed, options)
            self.possible_agents = None

    assert made(Unnamed).spaces == made(Counting).spaces


def test_an_environment_without_agents_is_refused():
    with pytest.raises(SpaceError, match="no possible_agents"):
        made(lambda: Relay({}, {"x": Discrete(2)}))


@pytest.mark.parametrize("env", [Meeting, Coming, Counting, *NAMES[:2]])
def test_nothing_is_found_wrong_with_environments_that_work(env):
    assert [finding for finding in check_environment(env) if finding.kind == "mistake"] == []


def test_the_check_finds_mistakes_in_environments_of_several_agents():
    class Wrong(Meeting):
        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return {**observations, "bob": np.array([3.0], np.float32)}, {**rewards, "ann": float("nan")}, *rest

    messages = " ".join(finding.message for finding in check_environment(Wrong))
    assert "'agents.bob' holds 3.0" in messages
    assert "The reward is nan" in messages


def test_one_of_them_can_be_watched():
    environment = make_environment(Meeting)
    environment.reset(seed=1)
    _, reward, terminated, _, _ = environment.step(np.array([0, 0]))
    assert reward in (0.0, 2.0)
    assert terminated


def test_meeting_gives_both_the_same_reward():
    environments = made(Meeting, range(20))
    side = environments.reset()["agents"]["ann"][:, 0]
    _, reward, *_ = environments.step((np.stack([side, side], 1) > 0).astype(np.int64))
    assert (reward == 1).all()
    assert (environments.scores == 2).all()
