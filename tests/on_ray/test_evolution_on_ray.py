"""Members of an evolution in Ray actors."""

from __future__ import annotations

import os
import signal

import pytest

from etude.algorithms import PPOConfig
from etude.base.errors import ConfigError
from etude.networks import Mlp
from etude.tuning import RayExecutor, SerialExecutor
from etude.tuning.evolution import Evolution, Mutations

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("local_ray")


def evolved(folder, executor, call=()):
    """The history of two members over two generations, and what was noted."""
    with Evolution(
        "ppo", "CartPole-v1", population=2, every=32, steps=64, evaluate_episodes=1, folder=folder, engine="torch",
        environments=2, seed=2, config=PPOConfig(network=Mlp((4,)), rollout_length=8, minibatch_size=16, epochs=1),
        mutations=Mutations(none=0.2, architecture=1.0), executor=executor,
    ) as evolution:  # fmt: skip
        evolution.run(call)
        history = [(t.number, t.parent, t.genome, t.status, t.scores, t.change) for t in evolution.trials]
        return history, [text for _, text in evolution.notes]


@pytest.mark.long
def test_members_in_ray_actors_give_the_lineage_of_one_process_and_an_actor_that_is_killed_is_replaced(tmp_path):
    executor, killed = RayExecutor(2), []

    def kill_once(evolution):
        if not killed and evolution.busy:
            killed.append(executor._workers[0].process_id)
            os.kill(killed[0], signal.SIGKILL)

    history, _ = evolved(tmp_path / "here", SerialExecutor())
    on_ray, notes = evolved(tmp_path / "ray", executor, kill_once)
    assert on_ray == history
    assert any("was lost by Ray" in text for text in notes)


def test_an_address_where_there_is_no_ray_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError("refused")))
    with pytest.raises(ConfigError, match="no Ray cluster that answers"):
        evolved(tmp_path, RayExecutor(2, "nowhere:6379"))
