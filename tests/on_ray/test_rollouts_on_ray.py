"""Rollouts whose workers are Ray actors."""

import os
import signal

import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError

ray = pytest.importorskip("ray")


def trained(algorithm, **setup):
    with etude.Run(algorithm, "CartPole-v1", seed=1, environments=4, **setup) as run:
        run.train(400)
        return run.engine.weights()


@pytest.mark.parametrize("algorithm", ["dqn", "a3c"])
def test_ray_actors_give_the_numbers_of_worker_processes(algorithm):
    processes, actors = trained(algorithm, workers=2), trained(algorithm, workers=2, ray="local")
    assert all(np.array_equal(processes[name], actors[name]) for name in processes)


def test_an_actor_that_is_killed_is_replaced():
    setup = etude.Setup(workers=2, environments=2, ray="local")
    rollout = etude.assemble("dqn", "CartPole-v1", total=1000, setup=setup).rollout
    try:
        rollout.collect(3, 0)
        os.kill(rollout._supervisor.workers[0].process_id, signal.SIGKILL)
        assert len(rollout.collect(3, 6)) == 6
        (warning,) = rollout.warnings()
        assert "Worker 0 (environment 0) was lost by Ray" in warning
    finally:
        rollout.close()


def test_ray_without_workers_is_refused():
    with pytest.raises(ConfigError, match="how many actors collect"):
        etude.Run("dqn", "CartPole-v1", ray="local")
