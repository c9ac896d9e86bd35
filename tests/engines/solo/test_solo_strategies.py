"""Agents of one's own that train with strategies of tf.distribute, in processes of their own."""

from pathlib import Path

import numpy as np
import pytest
from strategy_processes import found_by, run_workers, start, with_servers

import etude
from etude.base.errors import ConfigError

PROGRAM = Path(__file__).parent / "strategy_program.py"


pytestmark = pytest.mark.usefixtures("on_tensorflow")


def assert_same(one, other):
    assert one["gradient_steps"] == other["gradient_steps"] >= 20
    assert one["rows"] == other["rows"], "what is sampled by priorities"
    np.testing.assert_allclose(one["parameters"], other["parameters"], rtol=1e-5, atol=1e-6)


def test_replicas_learn_what_one_learns_and_what_they_cannot_do_is_said():
    found = found_by(start(PROGRAM, "mirrored", kinds=["PR"], replicas=[2, 4]))
    alone, *replicated = found["learned"]["PR"]
    for other in replicated:
        assert_same(other, alone)
    said = {
        "batch": "A batch of 5 examples cannot be divided over the 4 replicas",
        "agent": "DQN was made outside of the strategy's scope",
        "optimizer": "The optimizer 'adam",
        "text": "strategy is a builtins.str; expected a tf.distribute MirroredStrategy",
        "kind": "OneDeviceStrategy; expected a tf.distribute MirroredStrategy",
        "none": "distributed_training needs a strategy",
        "twice": "distributed_training got strategy twice",
    }
    assert said.keys() == found["refused"].keys()
    for name, text in said.items():
        assert found["refused"][name].startswith("ConfigError: ") and text in found["refused"][name]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["DQN", "PPO", "DDPG", "Team"])
def test_agents_of_every_mode_learn_the_same_with_any_number_of_replicas(kind):
    alone, *replicated = found_by(start(PROGRAM, "mirrored", kinds=[kind], replicas=[1, 2, 4]))["learned"][kind]
    for other in replicated:
        assert other["rows"] == alone["rows"] and other["gradient_steps"] == alone["gradient_steps"]
        np.testing.assert_allclose(other["parameters"], alone["parameters"], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_hyperparameters_of_replicas_are_adjusted_as_those_of_one_and_batches_stay_divisible():
    alone, replicated = found_by(start(PROGRAM, "mirrored", kinds=["Adjusted"], replicas=[4]))["learned"]["Adjusted"]
    assert_same(replicated, alone)
    assert replicated["batch"] == alone["batch"] == 4
    assert replicated["rates"] == pytest.approx(alone["rates"], rel=1e-5) != [1e-2]


def test_two_workers_learn_what_one_learns_and_a_killed_one_ends_in_one_error(tmp_path):
    from strategy_program import made, optimizers

    files = [str(tmp_path / name) for name in ("chief.dat", "other.dat")]
    (chief, killed), codes = run_workers(PROGRAM, path=files, ends="kill")
    assert killed is None and codes[1] == -9
    assert chief["then"].startswith("ReplicaError: A process of this cluster ended or does not answer")
    assert [path.name for path in tmp_path.iterdir()] == ["chief.dat"], "one file, written by the chief"
    again = made("PR", None)
    again.restore(files[0])
    again.train(None, optimizers(again), 1, p=0, jit_compile=False)
    alone = made("PR", None)
    alone.train(None, optimizers(alone), 6, p=0, jit_compile=False)
    np.testing.assert_allclose(chief["parameters"], vector_of(alone), rtol=1e-5, atol=1e-6)
    alone.train(None, None, 1, p=0, jit_compile=False)
    assert again.total_episode == alone.total_episode == 7
    np.testing.assert_allclose(vector_of(again), vector_of(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_one_interrupted_worker_ends_all_and_all_learned_the_same(tmp_path):
    reports, codes = run_workers(PROGRAM, path=str(tmp_path / "agent.dat"), ends="interrupt")
    assert codes == [0, 0]
    assert all(report["then"].startswith("KeyboardInterrupt: ") for report in reports)
    assert reports[0]["episodes"] == reports[1]["episodes"] == 9
    assert_same(*reports)


@pytest.mark.long
def test_workers_that_were_started_differently_are_refused(tmp_path):
    reports, _ = run_workers(PROGRAM, path=str(tmp_path / "agent.dat"), other=True)
    assert "ConfigError: Worker 1 of 2" in reports[1]["message"]
    assert "seed = 1 here and 0 in the chief" in reports[1]["message"]
    assert "ConfigError: Worker 0 of 2" in reports[0]["message"]


@pytest.mark.long
@pytest.mark.parametrize(
    "job, said", [("worker", "worker 0 did not answer"), ("ps", "A process of this cluster ended")]
)
def test_a_parameter_server_and_a_worker_learn_what_one_process_learns(job, said):
    found = with_servers(PROGRAM, "scheduled", kills=job)
    assert_same(*found["learned"])
    assert found["message"].startswith("ReplicaError: ") and said in found["message"]


def vector_of(agent):
    return np.concatenate([np.ravel(x) for x in agent._session_state.session.learner.engine.parameters().values()])


def test_the_metric_of_a_distributed_training_gets_its_mean_loss():
    import keras
    import tensorflow as tf
    from solo_agents import agent_for, discrete

    strategy, metric = tf.distribute.MirroredStrategy(["CPU:0"]), keras.metrics.Mean()
    with strategy.scope():
        agent, optimizer = agent_for("tensorflow"), keras.optimizers.Adam()
    agent.set(**discrete())
    loss = agent.distributed_training(train_loss=metric, optimizer=optimizer, strategy=strategy, episodes=1, p=0)
    assert float(metric.result()) == pytest.approx(loss)


def test_an_agent_in_pytorch_is_refused():
    agent = type("Agent", (etude.RL_pytorch,), {})()
    with pytest.raises(ConfigError, match="trains agents in Keras with strategies of tf.distribute; Agent is written"):
        agent.distributed_training(None, None, 1)
