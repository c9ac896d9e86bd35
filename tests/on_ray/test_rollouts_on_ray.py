"""Rollouts whose workers are Ray actors."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from several_worlds import Meeting

import etude
from etude.algorithms import A3CConfig, ApexDQNConfig, DQNConfig, PPOConfig
from etude.base.data import Steps
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.events import Collected, Warned, WorkerReplaced
from etude.examples.far_goal import FarGoal

pytestmark = pytest.mark.usefixtures("local_ray")

SMALL = etude.Mlp((8,))
OFF_POLICY = {"learning_starts": 64, "train_every": 16, "batch_size": 8, "buffer_size": 500}
WHOLE_RUN = {"environments": 4, "engine": "torch", "seed": 1}


class Informing(gym.Wrapper):
    def step(self, action):
        observation, *rest, info = self.env.step(action)
        return observation, *rest, {**info, "x": float(observation[0])}


def arrays_of(steps: Steps) -> dict[str, np.ndarray]:
    found = {"observation": steps.observation, "action": steps.action, "reward": steps.reward, **steps.extras}
    return {f"{name}/{i}": np.array(part) for name, x in found.items() for i, part in enumerate(leaves(x))}


def leaves(x):
    return [leaf for part in x.values() for leaf in leaves(part)] if isinstance(x, dict) else [x]


FEATURES = {
    "gradients of workers": (("a3c", "CartPole-v1"), {"config": A3CConfig(network=SMALL), "workers": 2}),
    "priorities, stacked frames and info": (
        ("apex_dqn", "CartPole-v1"),
        {"config": ApexDQNConfig(network=SMALL, **OFF_POLICY), "wrappers": [Informing], "frame_stack": 2,
         "keep_info": ["x"], "workers": 2},
    ),
    "several agents": (("dqn", Meeting), {"config": DQNConfig(network=SMALL, **OFF_POLICY), "workers": 1}),
    "tasks and collecting ahead": (
        ("ppo", FarGoal),
        {"config": PPOConfig(network=SMALL, rollout_length=16, minibatch_size=32, epochs=1), "overlap": True,
         "workers": 1},
    ),
}  # fmt: skip


def collected(feature, path=None, **where):
    """Everything that a run collects, with its weights; halfway saved at `path` and gone on with by two actors."""
    (algorithm, env), setup = FEATURES[feature]
    found = []

    def keep(event):
        found.extend(arrays_of(steps) for steps in getattr(event, "steps", ()))

    with etude.Run(algorithm, env, **WHOLE_RUN, **setup, **where) as run:
        if "tasks" in feature:
            run.set_task(3)
        run.train(128, keep)
        if path is not None:
            run.save(path)
    with run if path is None else etude.load(path, env, workers=2, **where) as run:
        run.train(128, keep)
        return [*found, run.engine.weights()]


LONG = ("gradients of workers", "several agents")


@pytest.mark.parametrize(
    "feature", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in FEATURES]
)
def test_what_actors_collect_is_what_processes_collect(feature, tmp_path):
    path = tmp_path / "run.etude" if feature == "several agents" else None
    processes, actors = collected(feature), collected(feature, path, ray="local")
    assert len(processes) == len(actors)
    for expected, found in zip(processes, actors, strict=True):
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name], equal_nan=True) for name in expected)
    if "info" in feature:
        assert {"priority/0", "info.x/0"} <= actors[0].keys()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "was lost by Ray"),
        pytest.param(signal.SIGTERM, "was lost by Ray", marks=pytest.mark.long, id="is told to end"),
        pytest.param(signal.SIGSTOP, "took no time step for 2", marks=pytest.mark.long, id="hangs"),
    ],
)
def test_an_actor_that_is_killed_or_hangs_is_replaced_and_the_run_says_so(number, said):
    def kill(event):
        if not events and event.step >= 128:
            os.kill(run.collection.rollout._supervisor.workers[0].process_id, number)
            events.append(event)
        if isinstance(event, Warned | WorkerReplaced):
            events.append(event)

    events = []
    config = PPOConfig(network=SMALL, rollout_length=16, minibatch_size=32, epochs=1)
    with etude.Run(
        "ppo", "CartPole-v1", config=config, workers=2, execution=etude.Execution(ray="local"), **WHOLE_RUN
    ) as run:
        run.train(256, kill)
    _, warned, replaced = events
    assert f"Worker 0 (environments 0 to 1) {said}" in warned.message and replaced.environments == (0, 1)


class Raising(gym.Wrapper):
    def step(self, action):
        if self.env.unwrapped.np_random.random() < 0.004:
            raise ValueError("no ink")
        return self.env.step(action)


def test_an_exception_in_an_actor_ends_the_run_with_its_words_and_a_checkpoint_and_no_actor_is_left(tmp_path):
    config = PPOConfig(network=SMALL, rollout_length=16, minibatch_size=32, epochs=1)
    setup = {"config": config, "workers": 2, "ray": "local", "wrappers": [Raising], "run_dir": tmp_path, **WHOLE_RUN}
    actors = set()
    with etude.Run("ppo", "CartPole-v1", **setup) as run:

        def look(event):
            if isinstance(event, Collected):
                actors.update(worker.process_id for worker in run.collection.rollout._supervisor.workers)

        with pytest.raises(EnvironmentFault, match=r"environment \d, .*raised ValueError: no ink"):
            run.train(2560, look)
    assert 0 < run.step == etude.load(tmp_path, wrappers=[Raising], workers=0, ray=None).step
    assert len(actors) == 2
    until = time.monotonic() + 60  # Ray waits for processes that have ended in a process of its own
    for actor in actors:
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < until:
                os.kill(actor, 0)
                time.sleep(0.05)


def test_ray_without_workers_is_refused():
    with pytest.raises(ConfigError, match="how many actors collect"):
        etude.Run("dqn", "CartPole-v1", execution=etude.Execution(ray="local"))


def test_more_workers_than_the_cluster_has_cpus_are_refused_at_once():
    setup = etude.Execution(workers=3, environments=3, ray="local")
    with pytest.raises(ConfigError, match="no place for 3 workers: of the cluster's 2 CPUs"):
        etude.assemble("dqn", "CartPole-v1", total=1000, execution=setup)
