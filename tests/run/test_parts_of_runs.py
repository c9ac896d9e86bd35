"""Which parts a run is put together from, and resuming where not all of them can be brought back."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from invariants import check_ring
from run_makers import DQN_TINY, tiny
from run_worlds import Counted

import etude
from etude import Agent, Conv, Linear, Mlp, Recurrent, Run, checkpoint
from etude.algorithms import DQNConfig, OffPolicyConfig, PPOConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected, Learned, Saved, Warned
from etude.checkpoint.run_directory import RunDirectory
from etude.run import from_state
from etude.training.kinds import TrainingContext, kind, kind_of


class Picture(gym.Env):
    """Images, which only a convolutional network takes."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((36, 36, 1), np.uint8), {}

    def step(self, action):
        return np.zeros((36, 36, 1), np.uint8), 1.0, False, False, {}


def network_of(algorithm, config=None):
    with etude.Run(algorithm, Picture, config=config, engine="torch") as run:
        return run.agent.config.network


def test_over_images_a_convolutional_network_takes_the_place_of_the_default_one():
    assert network_of("dqn") == Conv()
    assert network_of("dqn", DQNConfig(gamma=0.9)) == Conv()
    assert network_of("ppo") == Conv()
    assert network_of("r2d2") == Recurrent(before=Conv())


def test_a_network_that_was_chosen_is_left_as_it_is():
    chosen = dataclasses.replace(Conv(), activation="tanh")
    assert network_of("dqn", DQNConfig(network=chosen)) == chosen
    with tiny(config=DQNConfig(network=Mlp((7,)))) as run:
        assert run.agent.config.network == Mlp((7,))
    both = etude.ActorCritic(Conv(widths=(8,)), Conv(widths=(9,)))
    assert network_of("ppo", etude.config("ppo", network=both)) == both


@pytest.mark.parametrize(("environments", "expected"), [(64, "native"), (32, "loop")])
def test_workers_step_their_environments_as_one_process_would_step_all_of_them(environments, expected, monkeypatch):
    made = []
    monkeypatch.setattr(kind, "Pool", lambda make, *rest: made.append(make))
    with tiny("CartPole-v1", environments=environments, workers=2) as run:
        context = TrainingContext(run.agent, run.engine, run.environment, run.execution)
        kind_of(run.agent).rollout(context, None)
    assert made[0].keywords["vectorization"] == expected


def test_a_simulator_resumes_at_an_episode_boundary_and_says_so(tmp_path):
    with tiny("CartPole-v1", vectorization="native") as run:
        run.train(100)
        run.save(tmp_path / "run.etude")
        before = len(run.learner.replay)
    with etude.load(tmp_path / "run.etude") as again:
        events = list(again.steps(100))
        told = [event.message for event in events if isinstance(event, Warned)]
        ring = again.learner.replay.ring
        kind = ring.kind[ring.locate(np.arange(len(ring)))].reshape(-1, 4)
        np.testing.assert_array_equal(kind[before // 4 - 1] != 0, True)  # nothing joins what was before
        check_ring(ring)
    assert told == ["The open episode of environment 0, 1, 2, 3 could not be replayed; it starts a new episode."]
    assert again.step == 200


def numbers(events):
    return [(e.step, getattr(e, "losses", None), getattr(e, "episodes", None)) for e in events
            if isinstance(e, Collected | Learned)]  # fmt: skip


def test_steps_that_were_collected_ahead_of_a_checkpoint_are_in_it(tmp_path):
    settings = {"workers": 2, "overlap": True, "environments": 4}
    # An evaluation saves the best agent while workers are ahead.
    schedule = {"evaluate_every": 40, "evaluate_episodes": 1}
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        with tiny(run_dir=directory, **settings) as run:
            whole = list(run.steps(120, **schedule))
        best = next(event for event in whole if isinstance(event, Saved) and event.kind == "best")
        state = checkpoint.read(directory.best)
    assert (best.step, state["rollout"]["ahead"] is None) == (40, False)
    with from_state(state, Counted) as again:
        events = list(again.steps(80, **schedule))
    assert not any(isinstance(event, Warned) for event in [*whole, *events])
    assert numbers(events) == [row for row in numbers(whole) if row[0] > 40]


def test_no_steps_are_collected_past_a_checkpoint_or_the_end(tmp_path):
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        with tiny(run_dir=directory, workers=2, overlap=True) as run:
            events = list(run.steps(83, save_every=40))
        steps = [event.step for event in events if isinstance(event, Saved)]
        ahead = [checkpoint.read(path)["rollout"]["ahead"] for path in directory.saved().values()]
    assert steps == [40, 80, 83]
    assert ahead == [None, None, None]


def test_a_run_that_was_left_early_keeps_the_length_of_its_schedules(tmp_path):
    config = dataclasses.replace(DQN_TINY, learning_rate=Linear(1e-2, 0.0))
    with tiny("CartPole-v1", config=config) as run:
        next(event for event in run.steps(1_000) if event.step >= 200)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as again:
        description = next(again.steps(50)).description
        assert (description["total"], description["end"]) == (1_000, 250)
        assert again.learner.hyper() == run.learner.hyper()
        assert again.learner.hyper()["learning_rate"] == pytest.approx(0.8e-2)


def test_a_network_of_ones_own_resumes_with_workers_as_without(tmp_path):
    config = dataclasses.replace(DQN_TINY, network=own_network)
    with tiny(config=config) as run:
        run.train(60)
        run.save(tmp_path / "run.etude")
        run.learner.progress.total = 120
        expected = numbers(run.steps(60))
    with etude.load(tmp_path / "run.etude", Counted, config, workers=2) as again:
        assert numbers(again.steps(60)) == expected


def own_network():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def test_overlap_is_refused_where_workers_cannot_act():
    config = dataclasses.replace(DQN_TINY, network=own_network)
    run = tiny(config=config, environments=2, workers=2, overlap=True)
    with run, pytest.raises(ConfigError, match="Leave overlap off"):
        run.train(8)


@dataclasses.dataclass(frozen=True)
class Bare:
    learning_rate: float = 1e-3
    gamma: float = 0.9


def test_a_config_that_does_not_say_when_to_learn_is_refused():
    class OwnAgent(Agent):
        pass

    with pytest.raises(ConfigError, match="OwnAgent learns from transitions, and Bare is no OffPolicyConfig"):
        Run(OwnAgent(Bare()), "CartPole-v1")
    with pytest.raises(ConfigError, match="OwnAgent learns from transitions, and PPOConfig is no OffPolicyConfig"):
        Run(OwnAgent(PPOConfig()), "CartPole-v1")


def test_a_config_that_does_not_say_how_to_explore_is_refused():
    class OwnAgent(Agent):
        acts_by = "values"

    with pytest.raises(ConfigError, match="explored as the config says in epsilon; OffPolicyConfig lacks it"):
        Run(OwnAgent(OffPolicyConfig()), "CartPole-v1")


def test_an_agent_that_acts_by_something_unknown_is_refused():
    class OwnAgent(Agent):
        acts_by = "value"

    with pytest.raises(ConfigError, match="OwnAgent: acts_by = 'value'; expected one of values, actions, distribution"):
        Run(OwnAgent(DQNConfig()), "CartPole-v1")


def test_an_agent_without_a_method_is_answered_with_its_name():
    class OwnAgent(Agent):
        pass

    with pytest.raises(NotImplementedError, match=r"OwnAgent defines no build\(make, spaces\)"):
        Run(OwnAgent(OffPolicyConfig()), "CartPole-v1")


def test_a_run_of_a_callable_has_the_same_description_in_every_process():
    made_by = [lambda: gym.make("CartPole-v1") for _ in range(2)]
    first, second = (tiny(make).description()["environment"] for make in made_by)
    assert first == second and "lambda" in first and "0x" not in first


def test_priorities_follow_the_errors_and_the_exponents_of_the_config():
    config = DQNConfig(
        network=Mlp((8,)), learning_starts=20, batch_size=8, priority_exponent=0.6, importance_exponent=Linear(0.4, 1.0)
    )
    with tiny(config=config) as run:
        run.train(100)
        selector = run.learner.replay.selector
        assert (selector.alpha, selector.beta) == (pytest.approx(0.6), pytest.approx(0.4 + 0.6 * 98 / 100))
        assert len(set(selector.error[: len(run.learner.replay)])) > 50  # of its own for each transition drawn


def test_a_replay_in_files_is_the_same_replay(tmp_path):
    folder = tmp_path / "replay"
    with tiny() as one, tiny(replay_folder=str(folder)) as other:
        for run in (one, other):
            run.train(100)
        assert sum(path.stat().st_size for path in folder.iterdir()) > 0
        assert list(other.learner.replay.ring.reward) == list(one.learner.replay.ring.reward)
        for name, value in one.engine.weights().items():
            assert np.array_equal(value, other.engine.weights()[name])
        with pytest.raises(ConfigError, match="still runs"):
            tiny(replay_folder=str(folder))


def test_what_only_acts_leaves_the_files_to_the_run_that_trains(tmp_path):
    with tiny(replay_folder=str(tmp_path / "replay")) as run:
        run.train(40)
        state = run.state()
        acting = from_state({name: part for name, part in state.items() if name != "replay"}, env=run.environment)
        assert acting.execution.replay_folder is None
        run.train(40)
