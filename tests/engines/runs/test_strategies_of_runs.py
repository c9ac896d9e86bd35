"""Runs that train with strategies of tf.distribute, in processes of their own."""

from pathlib import Path

import numpy as np
import pytest
from strategy_processes import found_by, run_workers, start, with_servers

PROGRAM = Path(__file__).parent / "strategy_runs.py"


pytestmark = pytest.mark.usefixtures("on_tensorflow")


def assert_divided(found, replicas):
    """Each replica saw its part of every batch, and all learned what one learns of whole batches."""
    alone, *replicated = found
    assert alone["gradient_steps"] >= 20
    assert np.abs(np.subtract(alone["weights"], alone["before"])).max() > 1e-3, "learned something"
    [[only, rows]] = alone["rows"]
    assert only == 0
    for count, other in zip(replicas, replicated, strict=True):
        assert other["rows"] == [[replica, rows // count] for replica in range(count)]
        assert other["gradient_steps"] == alone["gradient_steps"]
        for moment in ("weights", "then"):
            np.testing.assert_allclose(other[moment], alone[moment], rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def on_two_replicas():
    return found_by(start(PROGRAM, "mirrored", algorithms=["dqn", "ppo"], replicas=[2]))


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_two_replicas_learn_from_halves_of_batches_what_one_learns_from_whole_ones(on_two_replicas, algorithm):
    assert_divided(on_two_replicas["learned"][algorithm], [2])


def test_what_a_run_cannot_do_with_a_strategy_is_refused(on_two_replicas):
    said = {
        "batch": "A batch of 9 examples cannot be divided over 2 devices; expected a multiple of 2",
        "engine": "strategy= is for the engine tensorflow; got engine = 'jax'",
        "compiled": "strategy= is for the engine tensorflow; got compiled = True",
        "both": "devices and strategy both say what a run trains on",
        "text": "strategy is a builtins.str; expected a tf.distribute MirroredStrategy",
        "kind": "OneDeviceStrategy; expected a tf.distribute MirroredStrategy",
        "a3c": "A3C computes gradients in its workers",
    }
    refused = on_two_replicas["refused"]
    assert said.keys() == refused.keys()
    for name, text in said.items():
        assert refused[name].startswith("ConfigError: ") and text in refused[name]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "sac", "td3", "recurrent_ppo"])
def test_one_two_and_four_replicas_learn_the_same_one_strategy_after_the_other(algorithm):
    found = found_by(start(PROGRAM, "mirrored", algorithms=[algorithm], replicas=[1, 2, 4]))
    assert_divided(found["learned"][algorithm], [1, 2, 4])


@pytest.mark.parametrize("hashes", ["same", pytest.param("other", marks=pytest.mark.long)])  # of strings
def test_two_workers_learn_what_one_process_learns_and_go_on_from_what_the_chief_saved(
    hashes, on_two_replicas, tmp_path
):
    alone = on_two_replicas["learned"]["dqn"][0]
    reports, codes = run_workers(PROGRAM, forked=(True, hashes == "same"), path=str(tmp_path / "run"))
    assert codes == [0, 0]
    assert [report["chief"] for report in reports] == [True, False]
    assert [report["rows"] for report in reports] == [[[0, 4]], [[1, 4]]], "of batches of 8"
    assert [report["step"] for report in reports] == [184, 184]
    for moment in ("weights", "then"):
        assert reports[0][moment] == reports[1][moment]
        np.testing.assert_allclose(reports[0][moment], alone[moment], rtol=1e-5, atol=1e-6)
    assert reports[0]["weights"] != reports[0]["then"]


@pytest.mark.long
def test_a_parameter_server_is_refused_with_what_takes_it():
    said = with_servers(PROGRAM, "scheduled")
    assert said.startswith("ConfigError: A run takes a MirroredStrategy or a MultiWorkerMirroredStrategy")
    assert "RL.distributed_training" in said
