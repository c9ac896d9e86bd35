"""A run goes on with other fields, environments, rollouts and replays than it had; what cannot stay is told."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY
from several_worlds import Duel

import etude
from benchmarks.reliability.runs import DATA, NETWORK, RUNS
from etude import Linear, Mlp, Run, cli
from etude.adapt import Adapt
from etude.algorithms import DQN, PPO, DQNConfig, PPOConfig
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Collected, Learned, Warned
from etude.multi_agent import League
from etude.rewrite import RND
from etude.run import from_state
from etude.training.description import Environment, Execution

STEPS = 50  # of 2 environments, and within a rollout of ppo and a3c


@functools.cache
def state_of(name: str) -> dict:
    with RUNS[name]() as run:
        run.train(STEPS)
        return copy.deepcopy(run.state())


def test_fields_of_the_config_change_as_in_a_new_run(tmp_path):
    etude.checkpoint.write(tmp_path / "run.etude", state_of("dqn"))
    with etude.load(tmp_path / "run.etude", learning_rate=1e-4, epsilon=Linear(0.5, 0.1)) as run:
        config = run.agent.config
        assert (config.learning_rate, config.epsilon) == (1e-4, Linear(0.5, 0.1))
        assert (config.n_step, config.priority_exponent) == (3, 0.6), "the rest is as it was saved"
        assert run.description()["config"]["learning_rate"] == 1e-4
        assert run.train(16).step == STEPS + 16


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"learning_rat": 1e-4}, "learning_rat.*learning_rate"),
        ({"n_steps": 64}, "n_steps.*rollout_length"),
        ({"callbacks": []}, "Give train what a run reports"),
        ({"config": DQNConfig(), "learning_rate": 1e-4}, "config= and learning_rate= both"),
        ({"data": "some.h5"}, "data= is for new runs"),
        ({"policies": "each"}, "policies= is for new runs"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_what_cannot_change_is_refused_in_the_words_of_a_new_run(more, message):
    with pytest.raises(ConfigError, match=message):
        from_state(state_of("dqn"), **more)


def test_a_field_that_was_a_function_may_be_given_alone():
    torch = pytest.importorskip("torch")

    def network():
        return torch.nn.Linear(4, 2)

    with Run("dqn", "CartPole-v1", network=network, learning_starts=8, engine="torch") as run:
        run.train(16)
        state = copy.deepcopy(run.state())
    with pytest.raises(ConfigError, match="network was made by"):
        from_state(state, learning_rate=1e-4)
    with from_state(state, network=network, learning_rate=1e-4) as run:
        assert run.train(8).step == 24 and run.agent.config.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("name", "environments"),
    [(name, count) for name in RUNS if name not in ("bc", "es") for count in (1, 5)] + [("es", 6)],
)
@pytest.mark.long_but(
    "dqn-1", "dqn-5", "sac-5", "ppo-1", "ppo-5", "recurrent_ppo-5", "r2d2-1", "maddpg-5", "a3c-1", "es-6",
)  # fmt: skip
def test_a_run_goes_on_with_another_number_of_environments(name, environments):
    state, notes = state_of(name), []
    with warnings.catch_warnings(record=True):
        run = from_state(copy.deepcopy(state), environments=environments)
    with run:
        before = len(run.learner.replay)
        kept = {"dqn": 50, "sac": 50, "r2d2": 50, "maddpg": 50}.get(name, 0)
        assert before >= kept - 3 * environments, "the steps of a replay stay"
        finished = run.train(97, lambda event: notes.append(event))
        assert finished.step >= state["progress"]["step"] + 97 and run.learner.progress.gradient_steps > 0
        told = [event.message for event in notes if isinstance(event, Warned) and "new episode" in event.message]
        assert len(told) == 1, told
        ends = [end for event in notes if isinstance(event, Collected) for end in event.episodes]
        assert {end.environment for end in ends} <= set(range(environments))
        opened = {int(i): own["episode"] for i, own in state["rollout"]["environments"].items()}
        assert all(end.episode > opened.get(end.environment, -1) for end in ends)
        again = copy.deepcopy(run.state())
    with from_state(again) as run:
        run.train(8)


def test_a_time_step_that_was_not_complete_does_not_shift_those_of_other_environments():
    with Run("ppo", "CartPole-v1", environments=4, rollout_length=8, engine="torch") as run:
        run.train(4 * 8 + 5)
        state = copy.deepcopy(run.state())
    with pytest.warns(UserWarning, match="had 4 environments and has 3: the steps of a rollout"):
        run = from_state(state, environments=3)
    with run:
        events = []
        run.train(3 * 8 * 2, events.append)
        assert [event.step for event in events if isinstance(event, Collected | Learned)] == [61, 61, 85, 85]


def test_what_counts_by_environment_is_as_large_as_there_are_environments():
    with Run(
        "ppo",
        "CartPole-v1",
        environments=4,
        rollout_length=8,
        engine="torch",
        normalize_reward=True,
        network=NETWORK,
        execution=Execution(rewrite=RND(network=NETWORK, batch_size=8)),
    ) as run:
        run.train(64)
        state = copy.deepcopy(run.state())
    for environments in (2, 7):
        with from_state(state, environments=environments) as run:
            run.train(8 * environments)
            assert run.learner.scale.returns.shape == (environments,)
            assert run.learner.scale.moments.seen == 64 + 8 * environments, "and what was seen of rewards stays"


def test_runs_of_several_policies_and_leagues_take_other_environments():
    member = DQN(DQN_TINY)
    for members in ({"even": PPO(PPO_TINY), "odd": League("even", 16, 3)}, {"even": member, "odd": member}):
        with Run(members, functools.partial(Duel), environments=3, engine="torch") as run:
            run.train(64)
            state = copy.deepcopy(run.state())
        with warnings.catch_warnings(record=True):
            run = from_state(state, functools.partial(Duel), environments=5)
        with run:
            run.train(85)
            assert run.learner.progress.since == 64
            assert {learner.progress.begun(5) for learner in run.learner.of.values()} == {0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"rollout_length": 8, "minibatch_size": 8}),
        ("ppo", {"rollout_length": 32}),
        ("ppo", {"workers": 2}),
        ("recurrent_ppo", {"rollout_length": 32}),
        ("dqn", {"buffer_size": 30}),
        ("dqn", {"buffer_size": 1_000}),
        ("dqn", {"priority_exponent": 0.0}),
        ("sac", {"priority_exponent": 0.6, "n_step": 3}),
        ("r2d2", {"buffer_size": 40}),
        ("r2d2", {"sequence_length": 4, "burn_in": 1}),
        ("maddpg", {"buffer_size": 90, "environments": 3}),
        ("es", {"sigma": 0.2}),
        ("bc", {"batch_size": 4}),
        ("sac", {"normalize_reward": True}),
        ("ppo", {"normalize_reward": False}),
        ("dqn", {"adapt": (Adapt("ess", "batch_size"),)}),
    ],
)
def test_a_run_goes_on_with_another_rollout_or_replay(name, changes):
    state = state_of(name)
    with warnings.catch_warnings(record=True):
        run = from_state(copy.deepcopy(state), **changes)
    with run:
        for field, value in changes.items():
            assert getattr(run.agent.config, field, getattr(run.execution, field, None)) == value
        size = changes.get("buffer_size")
        if size is not None:
            assert len(run.learner.replay) == min(STEPS, size)
        events = []
        finished = run.train(64, events.append)
        assert finished.step >= state["progress"]["step"] + 64 and any(isinstance(each, Learned) for each in events)


def test_the_steps_of_an_incomplete_rollout_stay_where_they_are_fewer_than_a_rollout():
    state = state_of("ppo")  # 25 time steps: 9 of a rollout of 16
    with from_state(state, rollout_length=12, minibatch_size=24) as run:
        events = []
        run.train(2 * (3 + 12), events.append)
        assert [event.step for event in events if isinstance(event, Learned)] == [STEPS + 6, STEPS + 30]
    with pytest.warns(UserWarning, match="as many as a whole one has now"):
        run = from_state(state, rollout_length=8, minibatch_size=16)
    with run:
        events = []
        run.train(16, events.append)
        assert [event.step for event in events if isinstance(event, Learned)] == [STEPS + 16]


@pytest.mark.parametrize("length", [8, 12, 64])
def test_gradients_of_rollouts_that_had_another_length_count_the_steps_that_they_took(length):
    """Of three environments and rollouts of 20: those that have begun end after 20, and the next ones have the new
    length. Each environment has its turn."""
    with Run("a3c", "CartPole-v1", environments=3, network=NETWORK, rollout_length=20, engine="torch") as run:
        run.train(30)
        state = copy.deepcopy(run.state())
    with from_state(state, rollout_length=length) as run:
        events = []
        run.train(30 + 20 + 2 * length, events.append)
        learned = [event.step - 30 for event in events if isinstance(event, Learned)]
        assert learned == [10, 30, 50, 50 + length, 50 + 2 * length][: len(learned)] and len(learned) == 5
        assert run.state()["rollout"]["turn"] == 0
    older = {**state, "rollout": {k: v for k, v in state["rollout"].items() if k not in ("turn", "counted")}}
    with from_state(older, rollout_length=length) as run:
        events = []
        run.train(30, events.append)
        assert [event.step - 30 for event in events if isinstance(event, Learned)] == [10, 30]


def test_other_networks_are_told_by_what_fits_what_is_new_and_what_is_gone():
    state = state_of("dqn")
    with pytest.raises(CheckpointError) as error:
        from_state(state, network=Mlp((4, 5)))
    for part in (
        "fit: q.dense0.weight, q.dense0.bias, q_target.dense0.weight, q_target.dense0.bias.",
        "q.dense1.weight is (4, 2), here (4, 5)",
        "New: q.dense2.weight, q.dense2.bias, q_target.dense2.weight, q_target.dense2.bias. Gone: none.",
        "start_from=",
    ):
        assert part in str(error.value)
    with pytest.raises(CheckpointError, match=r"fit: none\..* New: none\. Gone: q\.dense1\.bias, q\.dense1\.weight"):
        from_state(state, network=Mlp(()))


def test_another_optimizer_is_told():
    with pytest.raises(CheckpointError, match="another optimizer .* than Lion.*start_from="):
        from_state(state_of("dqn"), optimizer=etude.optimizers.Lion())


def test_a_new_run_takes_the_weights_that_fit_as_the_message_says():
    weights = state_of("dqn")["engine"]["values"]
    fitting = {name: value for name, value in weights.items() if "dense0" in name}
    with Run("dqn", "CartPole-v1", network=Mlp((4, 5)), start_from=fitting, engine="torch") as run:
        assert np.array_equal(run.engine.weights()["q.dense0.weight"], weights["q.dense0.weight"])


def test_resume_changes_hyperparameters_and_environments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = ["train", "dqn", "CartPole-v1", "--steps", "200", "--engine", "torch", "--evaluate-every", "0", "-q"]
    assert cli.main([*train, "--set.learning-starts", "50", "--run-dir", "run"]) == 0
    changes = ["--set.learning-rate", "1e-4:0", "--set.buffer-size", "90", "--envs", "3"]
    assert cli.main(["resume", "run", "--steps", "300", "-q", *changes]) == 0
    with etude.load("run") as run:
        config = run.agent.config
        assert (config.learning_rate, config.buffer_size) == (Linear(1e-4, 0.0), 90)
        assert (config.learning_starts, run.execution.environments, len(run.learner.replay)) == (50, 3, 90)
    assert cli.main(["resume", "run", "--steps", "400", "--set.network.widths", "7"]) == 2
    assert "here (4, 7)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["resume", "run", "--help"])
    assert "--set.learning-rate" in capsys.readouterr().out


def test_a_run_of_recorded_data_keeps_its_data_with_other_fields():
    with Run("dqn", "CartPole-v1", data={str(DATA): 0.5, "sampler": 0.5}, engine="torch", network=NETWORK,
             buffer_size=100, batch_size=8, learning_starts=8) as run:  # fmt: skip
        run.train(40)
        recorded = len(run.learner.replay)
        state = copy.deepcopy(run.state())
    with from_state(state, buffer_size=20, environments=2) as run:
        assert len(run.learner.replay) == recorded - 20
        run.train(20)


def test_a_dict_of_policies_is_told_to_change_its_agents():
    with Run({"even": "ppo", "odd": "ppo"}, functools.partial(Duel), environments=2, engine="torch") as run:
        run.train(8)
        state = copy.deepcopy(run.state())
    with pytest.raises(ConfigError, match="give each policy an agent with its own config"):
        from_state(state, functools.partial(Duel), learning_rate=1e-4)


def test_an_agent_of_ones_own_holds_its_config():
    agent = etude.algorithms.PPO(PPOConfig(rollout_length=8))
    with Run(agent, "CartPole-v1", engine="torch", environments=2) as run:
        run.train(16)
        state = copy.deepcopy(run.state())
    changed = etude.algorithms.PPO(dataclasses.replace(agent.config, rollout_length=4))
    with from_state(state, agent=changed, environments=3) as run:
        assert run.train(12).totals["gradient_steps"] > 0
    with pytest.raises(ConfigError, match="The agent and rollout_length= both"):
        from_state(state, agent=changed, rollout_length=4)


def test_images_and_stacked_frames_move_to_other_environments():
    def make():
        return gym.wrappers.TimeLimit(Flat(), 7)

    class Flat(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros((36, 36, 1), np.uint8), {}

        def step(self, action):
            return np.full((36, 36, 1), 9, np.uint8), 1.0, False, False, {}

    with Run(
        "dqn", Environment(make, frame_stack=2), learning_starts=8, batch_size=4, buffer_size=60, engine="torch"
    ) as run:
        run.train(20)
        state = copy.deepcopy(run.state())
    with from_state(state, make, environments=2, buffer_size=100) as run:
        assert len(run.learner.replay) == 20
        run.train(20)
