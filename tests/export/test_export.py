"""Exported policies act as the evaluated ones do."""

import json
import subprocess
import sys

import numpy as np
import pytest
from export_cases import MIXED, Random, load

import etude
from etude import cli
from etude.base.errors import ConfigError
from etude.export.policy import policies_of


def test_act_needs_numpy_alone(run_of, tmp_path):
    run_of("dqn masks").export(tmp_path)
    program = (
        "import sys; sys.modules |= dict.fromkeys(['etude', 'gymnasium', 'safetensors', 'torch'])\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import act; print(act.act([1, 2, 3], [0, 0, 1, 0]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_what_exports_are_compared_on_are_observations_in_stacked_frames_too():
    stacked = etude.Environment(lambda: Random(MIXED), frame_stack=2)
    with etude.Run("r2d2", stacked, network=etude.Recurrent(etude.Mlp((8,)), 8), engine="torch") as run:
        policy = policies_of(run.policy)[""]
    drawn = policy.examples(50, np.random.default_rng(0))
    for name in ("number", "choice", "pair.0", "pair.1"):
        single, frames = drawn[f"observation.{name}"], drawn[f"frames.{name}"]
        assert frames.shape == (50, 2, *single.shape[1:]) and frames.dtype == single.dtype
        assert set(map(str, frames.reshape(100, -1))) <= set(map(str, single.reshape(50, -1)))


def test_act_says_what_an_observation_is_to_be(run_of, tmp_path):
    act = load(run_of("dqn").export(tmp_path)).act
    with pytest.raises(ValueError, match=r"observation has shape \(2,\); expected \(3,\)"):
        act([1, 2])


def test_further_environments_have_memories_of_their_own(run_of, tmp_path):
    module = load(run_of("recurrent_ppo stacked").export(tmp_path))
    seen = np.random.default_rng(0).normal(size=(9, 3))
    alone, one, other = module.make(), module.make(), module.make()
    expected = [alone.act(x) for x in seen]
    for x, action in zip(seen, expected, strict=True):
        assert np.array_equal(one.act(x), action)
        other.act(seen[0])
    assert not np.array_equal(alone.act(seen[0]), expected[0])
    assert np.array_equal(alone.act(seen[0], first=True), expected[0])


def test_weights_say_what_they_belong_to_and_start_another_run(run_of, tmp_path):
    run = run_of("ppo")
    path = run.export(tmp_path / "out.safetensors", "safetensors")
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        described = json.loads(file.metadata()["etude"])
    assert described["algorithm"] == "ppo" and described["config"]["network"]["widths"] == [16]
    with etude.Run("ppo", run.environment, config=run.config, environments=2, engine="torch", start_from=path) as other:
        for name, value in run.engine.weights().items():
            assert np.array_equal(other.engine.weights()[name], value), name


def test_modules_of_ones_own_are_refused(tmp_path):
    torch = pytest.importorskip("torch")

    def network():
        return torch.nn.Sequential(torch.nn.Linear(4, 2))

    with (
        etude.Run("dqn", "CartPole-v1", network=network, engine="torch") as run,
        pytest.raises(ConfigError, match=r"torch.nn.Module"),
    ):
        run.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(run_of):
    with pytest.raises(ConfigError, match="to = 'tflite'; expected one of numpy, onnx, torch, safetensors"):
        run_of("dqn").export(to="tflite")


@pytest.mark.parametrize("to", ["numpy", "safetensors"])
def test_where_nothing_can_be_written_is_one_error(run_of, tmp_path, to):
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"x cannot be written: .*\. Name another one"):
        run_of("dqn").export(tmp_path / "taken" / "x", to)


def test_the_command_writes_beside_where_it_is_called(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with etude.Run("dqn", "CartPole-v1", run_dir="runs/first", engine="torch") as run:
        run.train(20, save_every=20)
    assert cli.main(["export", "runs/first", "--to", "numpy"]) == 0
    assert "first-numpy" in capsys.readouterr().out
    assert load(tmp_path / "first-numpy").act(np.zeros(4)) == run.act(np.zeros(4, np.float32))
