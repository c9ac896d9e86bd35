"""Action masks in infos that are there at some steps and for some agents. Environments count illegal moves."""

import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, assert_same_weights
from several_worlds import DoorsAlone, DoorsByMethod, DoorsInTurns, DoorsTogether

import etude
from etude import Mlp, Recurrent, Run
from etude.algorithms import DQN, PPO, MADDPGConfig, MAPPOConfig, QMIXConfig, RecurrentPPOConfig
from etude.base.errors import EnvironmentFault, SpaceError
from etude.envs import examine, make_environment, make_environments
from etude.multi_agent import League

WHOLE, LATE = (0, 99), (3, 99)
TWO, JOINS = {"a": WHOLE, "b": WHOLE}, {"a": WHOLE, "b": LATE}
LEAVES, OTHERS = {"a": (0, 5), "b": WHOLE, "c": (4, 8)}, {"c": WHOLE, "d": LATE}
AFTER_RESET, SOMETIMES, SELDOM = range(1, 10), (0, 2, 3, 7), (4,)
ALONE = {
    "after every step, and not after resets": partial(DoorsAlone, shown=AFTER_RESET),
    "at some steps": partial(DoorsAlone, shown=SOMETIMES),
    "at one step": partial(DoorsAlone, shown=SELDOM),
    "by a method": DoorsByMethod,
}
SEVERAL = {
    "an agent that joins has masks": partial(DoorsTogether, [JOINS], ["b"]),
    "all have masks, and one joins": partial(DoorsTogether, [JOINS], ["a", "b"]),
    "teams change": partial(DoorsTogether, [LEAVES, OTHERS], ["a", "c", "d"]),
    "after resets alone there is none": partial(DoorsTogether, [TWO], ["a", "b"], shown=AFTER_RESET),
    "at some steps": partial(DoorsTogether, [LEAVES], ["a", "b", "c"], shown=SOMETIMES),
    "in turns": DoorsInTurns,
    "in turns, at some": partial(DoorsInTurns, shown=(1, 4, 5)),
}
RECURRENT = RecurrentPPOConfig(network=Recurrent(before=Mlp((4,)), units=4), rollout_length=32, minibatch_size=32)
CONFIGS = {
    "dqn": DQN_TINY,
    "ppo": PPO_TINY,
    "recurrent_ppo": RECURRENT,
    "mappo": MAPPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=32, epochs=1),
    "maddpg": MADDPGConfig(network=Mlp((4,)), learning_starts=16, train_every=8, batch_size=8),
    "qmix": QMIXConfig(network=Mlp((4,)), learning_starts=16, train_every=8, batch_size=8),
}


def made(algorithm, env, moves, **more):
    config = {"config": CONFIGS[algorithm]} if isinstance(algorithm, str) else {}
    return Run(
        algorithm, partial(env, moves=moves), **{"environments": 3, "engine": "torch", "seed": 1, **config, **more}
    )


def illegal(moves):
    """(illegal moves, all moves)."""
    found = moves.read_bytes()
    return sum(found), len(found)


@pytest.mark.long_but(
    "dqn-0-at one step", "dqn-0-by a method", "ppo-1-at some steps", "ppo-1-after every step, and not after resets",
    "recurrent_ppo-0-at one step", "recurrent_ppo-0-after every step, and not after resets",
)  # fmt: skip
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize(("algorithm", "workers"), [("dqn", 0), ("ppo", 1), ("recurrent_ppo", 0)])
def test_one_agent_never_makes_an_illegal_move(name, algorithm, workers, tmp_path):
    with made(algorithm, ALONE[name], tmp_path / "moves", workers=workers) as run:
        run.train(180)
        run.evaluate(episodes=3)
    wrong, moves = illegal(tmp_path / "moves")
    assert wrong == 0 and moves >= 210


def test_masks_of_a_method_are_those_of_infos_below_wrappers_too():
    found = []
    for env in (DoorsAlone, DoorsByMethod, lambda: gym.wrappers.TimeLimit(DoorsByMethod(), 20)):
        with Run("dqn", env, config=DQN_TINY, environments=3, engine="torch", seed=1) as run:
            run.train(180)
            found.append(run.engine.weights())
            assert run.engine.spaces.masked
    assert_same_weights(*found[:2])
    assert_same_weights(*found[1:])


def test_a_mask_in_an_info_goes_before_that_of_the_method():
    class Both(DoorsByMethod):
        def _see(self):
            seen, _ = super()._see()
            return seen, {"action_mask": np.array([0, 1, 0], np.int8)}

    environments = make_environments(Both, np.arange(1), run_seed=0)
    assert environments.reset()["action_mask"].tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("algorithm", "policies", "workers"),
    [("dqn", "each", 0), ("ppo", "shared", 0), ("mappo", "shared", 0), ("maddpg", "each", 0), ("qmix", "shared", 0)],
)
@pytest.mark.long_but(
    "dqn-each-0-an agent that joins has masks", "dqn-each-0-in turns, at some",
    "ppo-shared-0-all have masks, and one joins", "ppo-shared-0-in turns", "mappo-shared-0-teams change",
    "mappo-shared-0-in turns, at some", "maddpg-each-0-after resets alone there is none",
    "maddpg-each-0-at some steps", "qmix-shared-0-at some steps", "qmix-shared-0-all have masks, and one joins",
)  # fmt: skip
def test_several_agents_never_make_an_illegal_move(name, algorithm, policies, workers, tmp_path):
    if algorithm in ("maddpg", "qmix") and "turns" in name:
        pytest.skip("it takes simultaneous actions")
    with made(algorithm, SEVERAL[name], tmp_path / "moves", policies=policies, workers=workers) as run:
        run.train(180)
        run.evaluate(episodes=3)
    wrong, moves = illegal(tmp_path / "moves")
    assert wrong == 0 and moves >= 210


def test_policies_of_several_algorithms_their_copies_and_functions_never_make_an_illegal_move(tmp_path):
    def first_open(observation, rng):
        return int(observation["action_mask"].argmax())

    members = {"a": PPO(PPO_TINY), "b": DQN(DQN_TINY), "c": first_open, "d": League("a", every=32, size=2)}
    env = partial(DoorsTogether, [{**LEAVES, "d": LATE}], ["c"], shown=SOMETIMES)
    with made(members, env, tmp_path / "moves") as run:
        run.train(180)
        run.evaluate(episodes=3)
    wrong, moves = illegal(tmp_path / "moves")
    assert wrong == 0 and moves >= 210


@pytest.mark.parametrize(
    ("algorithm", "env", "workers"),
    [
        ("dqn", ALONE["after every step, and not after resets"], 0),
        ("recurrent_ppo", ALONE["at some steps"], 2),
        ("ppo", SEVERAL["teams change"], 2),
        ("mappo", SEVERAL["in turns, at some"], 1),
    ],
)
def test_a_run_whose_masks_come_and_go_continues_bit_for_bit(algorithm, env, workers, tmp_path):
    with made(algorithm, env, tmp_path / "moves") as run:
        run.train(97)
        run.save(tmp_path / "run.etude")
        run.train(83)
        expected = run.engine.weights()
    made_again = partial(env, moves=tmp_path / "moves")
    with etude.load(tmp_path / "run.etude", env=made_again, workers=workers) as again:
        again.train(83)
        assert_same_weights(again.engine.weights(), expected)
    assert illegal(tmp_path / "moves")[0] == 0


def test_single_actions_obey_the_mask_of_an_info_and_without_one_all_are_legal(tmp_path):
    seen = np.zeros(1, np.float32)
    with made("dqn", ALONE["at one step"], tmp_path / "moves") as run:
        for only in range(3):
            assert run.act(seen, {"action_mask": np.eye(3, dtype=np.int8)[only]}) == only
        assert {run.act(seen, {}, explore=True) for _ in range(60)} == {0, 1, 2}
        with pytest.raises(SpaceError, match=r"run\.act\(observation, info\)"):
            run.act(seen)
    with made("ppo", SEVERAL["an agent that joins has masks"], tmp_path / "moves") as run:
        for only in range(3):
            mask = np.eye(3, dtype=np.int8)[only]
            assert run.act({"a": seen, "b": seen}, {"b": {"action_mask": mask}}, first=True)["b"] == only
        assert {run.act({"b": seen}, {}, explore=True)["b"] for _ in range(60)} == {0, 1, 2}


def test_recordings_and_what_is_watched_have_the_masks_of_later_steps(tmp_path):
    env = partial(ALONE["after every step, and not after resets"], moves=tmp_path / "moves")
    dataset = etude.record(env, 3)
    assert all("action_mask" in episode.observation for episode in dataset.episodes)
    with made("dqn", ALONE["after every step, and not after resets"], tmp_path / "moves") as run:
        etude.record(env, 3, run=run)
        watched = make_environment(run.environment)
        assert watched.reset(seed=1)["action_mask"].tolist() == [1, 1, 1]
        assert watched.step(0)[0]["action_mask"].sum() == 1
    assert illegal(tmp_path / "moves")[0] == 0


def test_agents_that_share_a_policy_all_have_a_mask_where_one_has():
    spaces = examine(DoorsInTurns).spaces.agents
    assert {name: own.masked for name, own in spaces.items()} == dict.fromkeys("abc", True)
    assert not examine(partial(DoorsTogether, [TWO], [])).spaces.agents["a"].masked


class Seldom(DoorsAlone):
    """Shows its first mask in the 30th episode."""

    episodes = 0

    def reset(self, **how):
        self.episodes += 1
        self.doors.shown = () if self.episodes < 30 else None
        return super().reset(**how)


def test_a_first_mask_that_comes_too_late_for_the_observations_is_refused_with_what_to_do():
    with (
        Run("dqn", Seldom, config=DQN_TINY, engine="torch", environments=1) as run,
        pytest.raises(EnvironmentFault, match="'action_mask' comes for the first time.* Return one from every reset"),
    ):
        run.train(400)
    environments = make_environments(partial(DoorsTogether, [JOINS], ["b"]), np.arange(1), run_seed=0)
    environments.reset()
    with pytest.raises(EnvironmentFault, match="info of agent 'b' comes for the first time"):
        for _ in range(4):
            environments.step(np.zeros((1, 2), np.int64))


@pytest.mark.parametrize(("slow", "steps"), [([0], 5), (range(10), 2)])
def test_one_slow_step_does_not_end_the_search_for_masks_and_slow_steps_do(slow, steps, monkeypatch):
    monkeypatch.setattr("etude.envs.make.SECONDS", 0.05)
    taken = []

    class Slow(DoorsAlone):
        def step(self, action):
            taken.append(action)
            time.sleep(0.06 if self.time in slow else 0.0)
            return super().step(action)

    assert examine(partial(Slow, shown=(5,))).spaces.masked == (steps == 5)
    assert len(taken) == steps


class Simulated(gym.vector.VectorEnv):
    """Copies of one agent before three doors: masks at some steps of some copies, which count illegal moves."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}

    def __init__(self, num_envs, moves=None, shown=AFTER_RESET):
        self.num_envs, self.copies = num_envs, [DoorsAlone(moves, shown) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = DoorsAlone.observation_space, DoorsAlone.action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.seen = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        return self._told(
            {i: env.reset(seed=None if seed is None else seed + i) for i, env in enumerate(self.copies) if chosen[i]}
        )

    def step(self, actions):
        found = [env.step(action) for env, action in zip(self.copies, actions, strict=True)]
        seen, infos = self._told({i: (each[0], each[4]) for i, each in enumerate(found)})
        return seen, *(np.array([each[k] for each in found]) for k in (1, 2, 3)), infos

    def _told(self, found):
        infos = {}
        for i, (seen, info) in found.items():
            self.seen[i] = seen
            infos = self._add_info(infos, info, i)
        return self.seen.copy(), infos


def test_a_vectorised_simulator_gives_masks_to_some_of_its_environments(tmp_path):
    env = partial(Simulated, moves=tmp_path / "moves")
    with Run("dqn", env, config=DQN_TINY, engine="torch", environments=4, seed=1) as run:
        run.train(180)
        run.evaluate(episodes=4)
    wrong, moves = illegal(tmp_path / "moves")
    assert wrong == 0 and moves > 200
