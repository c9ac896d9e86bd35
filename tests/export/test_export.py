"""Exported policies act as the evaluated ones do."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from export_cases import AGENTS, CASES

import etude
from etude import cli
from etude.base.errors import ConfigError
from etude.envs import make_environment
from etude.export.policy import policies_of

ROWS = 5  # of a batch


@pytest.fixture(scope="module")
def run_of():
    made = {}

    def run(name):
        if name not in made:
            made[name] = CASES[name]()
            made[name].train(16)  # which moves the moments of normalised observations
        return made[name]

    yield run
    for each in made.values():
        each.close()


def load(folder):
    spec = importlib.util.spec_from_file_location("act", folder / "act.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return np.array_equal(found, expected) and type(found) is type(expected)


def played(run, episodes=5):
    """(observation, info, first) of an environment that takes random actions."""
    env = make_environment(run.environment).env.unwrapped
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        first, over = True, False
        while not over:
            yield observation, info, first
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            first, over = False, terminated or truncated


@pytest.mark.parametrize("name", [name for name in CASES if name not in AGENTS])
def test_numpy_acts_as_evaluated_to_the_bit(run_of, tmp_path, name):
    run = run_of(name)
    act = load(run.export(tmp_path / "out")).act
    for observation, info, first in played(run):
        assert same(act(observation, info.get("action_mask"), first), run.act(observation, info, first=first))


@pytest.mark.parametrize("name", AGENTS)
def test_each_of_several_agents_acts_in_numpy_as_it_does_among_all(run_of, tmp_path, name):
    run = run_of(name)
    path, env = run.export(tmp_path / "out"), make_environment(run.environment).env.env
    acts = {agent: load(path / agent).act for agent in env.possible_agents}
    observations, _ = env.reset(seed=0)
    for step in range(10):
        expected = run.act(observations, {}, first=step == 0)
        for agent, observation in observations.items():
            assert same(acts[agent](observation), expected[agent])
        observations, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})


def in_onnx(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def in_torch(path):
    torch = pytest.importorskip("torch")
    program = torch.export.load(path).module()

    def act(inputs):
        found = program({name: torch.from_numpy(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in found.items()}

    return act


FORMATS = {"onnx": (".onnx", in_onnx), "torch": (".pt2", in_torch)}


IN_TORCH = ["dqn masks", "dqn images", "ppo mixed", "sac", "recurrent_ppo stacked", "maddpg"]  # it takes seconds


@pytest.mark.parametrize("name, to", [*((name, "onnx") for name in CASES), *((name, "torch") for name in IN_TORCH)])
def test_programs_of_other_libraries_act_as_evaluated(run_of, tmp_path, name, to):
    run, (suffix, loaded) = run_of(name), FORMATS[to]
    path = run.export(tmp_path / f"out{suffix}", to)
    for agent, policy in policies_of(run.policy).items():
        inputs = policy.examples(ROWS, np.random.default_rng(1))
        found = loaded(path.with_suffix("") / f"{agent}{suffix}" if agent else path)(inputs)
        for output, expected in policy(inputs, policy.weights()).items():
            assert found[output].dtype == expected.dtype and found[output].shape == expected.shape
            np.testing.assert_allclose(found[output], expected, 1e-5, 1e-5)


def test_act_needs_numpy_alone(run_of, tmp_path):
    run_of("dqn masks").export(tmp_path)
    program = (
        "import sys; sys.modules |= dict.fromkeys(['etude', 'gymnasium', 'safetensors', 'torch'])\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import act; print(act.act([1, 2, 3], [0, 0, 1, 0]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_act_says_what_an_observation_is_to_be(run_of, tmp_path):
    act = load(run_of("dqn").export(tmp_path)).act
    with pytest.raises(ValueError, match=r"observation has shape \(2,\); expected \(3,\)"):
        act([1, 2])


def test_further_environments_have_memories_of_their_own(run_of, tmp_path):
    run = run_of("recurrent_ppo stacked")
    module = load(run.export(tmp_path))
    steps = list(played(run))
    alone, one, other = module.make(), module.make(), module.make()
    expected = [alone.act(observation, None, first) for observation, _, first in steps]
    for (observation, _, first), action in zip(steps, expected, strict=True):
        assert same(one.act(observation, None, first), action)
        other.act(steps[0][0])


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


def test_the_command_writes_beside_where_it_is_called(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with etude.Run("dqn", "CartPole-v1", run_dir="runs/first", engine="torch") as run:
        run.train(20, save_every=20)
    assert cli.main(["export", "runs/first", "--to", "numpy"]) == 0
    assert "first-numpy" in capsys.readouterr().out
    assert load(tmp_path / "first-numpy").act(np.zeros(4)) == run.act(np.zeros(4, np.float32))
