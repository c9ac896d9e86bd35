"""What surrounds training: callbacks, custom metrics, numbers of info, tasks, weights to start from,
and evaluations beside training or by a function of one's own. None of it changes what is learned."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from run_cases import A2C_TINY, DQN_TINY, PPO_TINY, differences, measured

import etude
from etude import Callback, Conv, Run
from etude.base.errors import ConfigError
from etude.base.events import Collected, Evaluated, Learned, Saved
from etude.examples.far_goal import FarGoal

CONFIGS = {"dqn": DQN_TINY, "ppo": dataclasses.replace(PPO_TINY, normalize_observation=True)}
DISTANCE = 3
EVALUATED = {"evaluate_every": 48, "evaluate_episodes": 3}


class Measured(FarGoal):
    """With the distance that is left as a number of info, and a task from its beginning."""

    def __init__(self):
        super().__init__(DISTANCE)

    def step(self, action):
        observation, *rest, info = super().step(action)
        return observation, *rest, {"left": float(np.abs(self.offset).sum())}


def made(engine_name, algorithm, **more):
    settings = {"environments": 4, "seed": 3, "engine": engine_name, "config": CONFIGS[algorithm], **more}
    return Run(algorithm, Measured, **settings)


def plain(state):
    return {name: part for name, part in state.items() if name not in ("description", "evaluation")}


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


class Watching(Callback):
    """Counts, and reads the run that it is called with."""

    def __init__(self):
        self.calls, self.rewards, self.episodes, self.norms = [], 0.0, 0, []

    def on_train_begin(self, run, event):
        self.calls.append("begin")

    def on_steps_collected(self, run, event):
        self.rewards += sum(float(part.reward.sum()) for part in event.steps)

    def on_episode_end(self, run, episode):
        self.episodes += 1

    def on_update(self, run, event):
        self.norms.append(sum(float(np.square(value).sum()) for value in run.engine.weights().values()))

    def on_train_end(self, run, event):
        self.calls.append("end")


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_callbacks_metrics_and_numbers_of_info_see_the_run_and_change_nothing(algorithm, engine_name):
    with made(engine_name, algorithm) as run:
        expected = list(run.steps(160))
        state = plain(run.state())
    watching, events = Watching(), []
    with made(engine_name, algorithm, keep_info=("left",)) as run:
        run.metric("height", lambda steps: steps.observation[..., 1])
        run.train(160, [watching, events.append])
        left = plain(run.state())
    assert measured(events) == measured(expected)
    assert differences({"engine": state["engine"]}, {"engine": left["engine"]}) == []
    collected = [event for event in events if isinstance(event, Collected)]
    assert (watching.calls, watching.episodes) == (["begin", "end"], sum(len(event.episodes) for event in collected))
    assert len(watching.norms) == len(set(watching.norms)) == sum(isinstance(event, Learned) for event in events) > 0
    assert sum(event.metrics["height"].size for event in collected) == 160
    kept = np.concatenate([event.metrics["left"] for event in collected if "left" in event.metrics])
    reached = [episode.total == 1.0 for event in collected for episode in event.episodes]
    assert (kept == 0).tolist() == reached


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_a_task_is_learned_with_and_saved_and_resumed_in_workers_with_the_same_numbers(
    algorithm, engine_name, tmp_path
):
    with made(engine_name, algorithm) as run:
        run.set_task(2)
        run.train(96)
        run.save(tmp_path / "run.etude")
        run.set_task(5)
        expected = list(run.steps(128))
        state = plain(run.state())
    lengths = [episode.length for event in expected if isinstance(event, Collected) for episode in event.episodes]
    assert max(lengths) == 5 + 1 + 2, "an episode of distance 5 is truncated there"
    with etude.load(tmp_path / "run.etude", env=Measured, workers=2) as again:
        assert again.task == 2
        again.set_task(5)
        assert measured(list(again.steps(128))) == measured(expected)
        assert differences(state, plain(again.state())) == []


@pytest.mark.parametrize(
    ("algorithm", "other", "taken"),
    [
        pytest.param("ppo", A2C_TINY, "model.policy", id="ppo-from-a2c"),
        pytest.param("dqn", DQN_TINY, "q.", id="dqn-from-dqn", marks=pytest.mark.variant),
    ],
)
def test_a_run_starts_from_the_weights_of_another_by_their_names(algorithm, other, taken, engine_name, tmp_path):
    name = type(other).__name__.removesuffix("Config").lower()
    with Run(name, Measured, config=other, environments=4, seed=7, engine=engine_name) as source:
        source.train(64)
        source.save(tmp_path / "source.etude")
        weights = source.engine.weights()
    with made(engine_name, algorithm, start_from=tmp_path / "source.etude", config=_plainly(algorithm)) as run:
        started = run.description()["started_from"]["taken"]
        assert any(each.startswith(taken) for each in started)
        for each in set(started) & weights.keys():
            np.testing.assert_array_equal(run.engine.weights()[each], weights[each], each)
        assert any(isinstance(event, Learned) for event in run.steps(64))


def _plainly(algorithm):
    return dataclasses.replace(CONFIGS[algorithm], normalize_observation=False)


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_evaluations_beside_training_are_those_in_this_process_and_the_best_agent_is_kept(
    algorithm, engine_name, tmp_path
):
    found = []
    for workers in (0, 1):
        with made(engine_name, algorithm, run_dir=tmp_path / str(workers)) as run:
            events = list(run.steps(160, **EVALUATED, evaluate_workers=workers))
            found.append((of_kind(events, Evaluated), plain(run.state())))
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) >= 3
    assert differences(found[0][1], found[1][1]) == []
    best = [event for event in found[1][0] if event.best][-1]
    with etude.load(tmp_path / "1" / "checkpoints" / "best.etude", env=Measured) as again:
        assert (again.step, again.evaluate(3).returns) == (best.step, best.returns)


@pytest.mark.variant
def test_a_run_resumed_while_an_evaluation_is_pending_equals_the_uninterrupted_one(engine_name, tmp_path):
    schedule = {**EVALUATED, "evaluate_workers": 1}
    with made(engine_name, "dqn", run_dir=tmp_path / "run") as run:
        events = list(run.steps(160, **schedule, save_every=64))
        state = plain(run.state())
    saved = next(event for event in of_kind(events, Saved) if event.step == 64 and event.kind == "last")
    with etude.load(saved.path, env=Measured) as again:
        rest = list(again.steps(96, **schedule))
        assert of_kind(rest, Evaluated) == of_kind(events, Evaluated)
        assert differences(state, plain(again.state())) == []


def test_a_function_of_ones_own_evaluates_with_the_engine(engine_name):
    def by_distance(run):
        return {"returns": run.evaluate(2, task=2).returns, "far": run.evaluate(2, task=5).mean}

    with made(engine_name, "dqn") as run:
        (event,) = of_kind(run.steps(48, evaluate_every=48, evaluate=by_distance), Evaluated)
        assert event.returns == run.evaluate(2, task=2).returns
        assert event.metrics == {"far": run.evaluate(2, task=5).mean}


@pytest.mark.variant
def test_what_the_engine_alone_computes_is_not_evaluated_beside_training(engine_name):
    class Picture(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((12, 12, 1), np.uint8), {}

        def step(self, action):
            return np.zeros((12, 12, 1), np.uint8), 1.0, True, False, {}

    config = dataclasses.replace(DQN_TINY, network=Conv(((4, 4, 2),), (8,)))
    with Run("dqn", Picture, config=config, environments=2, engine=engine_name) as run:
        with pytest.raises(ConfigError, match="workers act in NumPy"):
            run.train(48, schedule=etude.Schedule(evaluate_workers=1, **EVALUATED))
        assert len(of_kind(run.steps(48, **EVALUATED), Evaluated)) == 1
