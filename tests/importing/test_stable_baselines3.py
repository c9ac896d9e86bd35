"""Models of Stable-Baselines3 as runs: what they answer, and what is taken over."""

import io
import json
import struct

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")
from saved_models import MODELS, dense, features_of, layer, members, named, nature_cnn, rewritten, saved  # noqa: E402

import etude  # noqa: E402
from etude.base.errors import ConfigError  # noqa: E402
from etude.cli import main  # noqa: E402
from etude.importing import read_model  # noqa: E402
from etude.optimizers import RMSProp  # noqa: E402

GOLDEN = json.loads((MODELS / "golden.json").read_text())
ENVIRONMENTS = dict.fromkeys(("ppo", "sac", "td3", "ddpg"), "Pendulum-v1") | dict.fromkeys(
    ("a2c", "dqn"), "CartPole-v1"
)


def answers(run, name):
    """What a run does for the observations of a golden model, and what the model did."""
    given = [np.asarray(each, np.float32) for each in GOLDEN[name]["observation"]]
    return np.array([run.act(each) for each in given]), np.array(GOLDEN[name]["action"])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_imported_model_acts_as_it_did_there_and_goes_on_training(name, tmp_path):
    with read_model(MODELS / name / "model.zip").run(ENVIRONMENTS[name], tmp_path / "run", engine="torch") as run:
        np.testing.assert_allclose(*answers(run, name), atol=1e-5)
    with etude.resume(tmp_path / "run") as run:
        np.testing.assert_allclose(*answers(run, name), atol=1e-5)
        run.train(128)
    assert run.step == 128


def test_another_run_starts_from_an_imported_one(tmp_path):
    with read_model(MODELS / "ppo" / "model.zip").run("Pendulum-v1", tmp_path / "run", engine="torch") as run:
        config = run.config
    with etude.Run("ppo", "Pendulum-v1", config=config, start_from=tmp_path / "run", engine="torch") as started:
        np.testing.assert_allclose(*answers(started, "ppo"), atol=1e-5)
        assert started.learner.moments.moments["all"].seen > 60


def test_networks_hyperparameters_and_moments_are_those_of_the_file():
    model = read_model(MODELS / "ppo" / "model.zip")
    config, normalised = model.config, model.observations
    assert config.network == etude.Mlp((6, 5), "tanh", "orthogonal")
    assert (config.rollout_length, config.minibatch_size, config.clip_range, model.environments) == (32, 16, 0.2, 2)
    assert config.normalize_observation and config.normalize_reward
    with model.run("Pendulum-v1", engine="torch") as run:
        scale = run.state()["scale"]["moments"]
        assert (
            scale["variance"] == pytest.approx(float(model.returns.variance))
            and len(run.state()["scale"]["returns"]) == 2
        )
    np.testing.assert_allclose(normalised.mean.shape, (3,))
    asynchronous = read_model(MODELS / "a2c" / "model.zip")
    assert asynchronous.config.network == etude.ActorCritic(
        etude.Mlp((6,), "elu", "orthogonal"), etude.Mlp((5,), "elu", "orthogonal")
    )
    assert asynchronous.config.optimizer == RMSProp(0.99, 1e-10)
    assert read_model(MODELS / "dqn" / "model.zip").config.double is False


def test_an_epsilon_of_its_own_gives_the_same_scale(tmp_path):
    whole, old = (MODELS / "ppo" / "vec_normalize.pkl").read_bytes(), struct.pack(">d", 1e-8)
    assert whole.count(old) == 1
    (tmp_path / "other.pkl").write_bytes(whole.replace(old, struct.pack(">d", 0.01)))
    path = MODELS / "ppo" / "model.zip"
    variance = read_model(path).observations.variance
    with read_model(path, vec_normalize=tmp_path / "other.pkl").run("Pendulum-v1", engine="torch") as run:
        expected = 1 / np.sqrt(variance + 0.01)
        np.testing.assert_allclose(run.engine.weights()["normaliser.all.scale"], expected, rtol=1e-6)
        np.testing.assert_allclose(run.learner.moments.values()["all.scale"], expected, rtol=1e-6)


def test_a_fixed_temperature_and_an_activation_that_is_given_are_taken(tmp_path):
    held = {"ent_coef_tensor": torch.tensor(0.3)}
    path = rewritten(tmp_path, "sac", pytorch_variables__pth=saved(held))
    config = read_model(path, activation="elu").config
    assert config.temperature == pytest.approx(0.3) and not config.learn_temperature
    assert config.network == etude.Mlp((6, 5), "elu")


class Pictures(gymnasium.Env):
    observation_space = Box(0, 255, (40, 44, 3), np.uint8)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros((40, 44, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((40, 44, 3), np.uint8), 0.0, False, True, {}


IMAGES = np.random.default_rng(0).integers(0, 256, (8, 40, 44, 3)).astype(np.uint8)
ACTIONS = Box(np.array([-2, 0.5], np.float32), np.array([1, 8], np.float32))
SPACES = {"observation_space": None, "action_space": None, "policy_kwargs": {}}


def bound(run):
    """The agent as a function of torch's tensors."""
    return run.engine.layout.bind({name: torch.as_tensor(x) for name, x in run.engine.weights().items()})


def test_a_cnn_policy_with_a_shared_extractor_computes_the_same_actions_and_values(tmp_path):
    draw = torch.Generator().manual_seed(1)
    tensors = nature_cnn("features_extractor", draw, 16, 128)
    aliases = {f"{which}_{name}": x for which in ("pi", "vf") for name, x in tensors.items()}
    heads = named({"action_net": layer(draw, 2, 16), "value_net": layer(draw, 1, 16)})
    replaced = dict.fromkeys(torch.load(_policy("ppo"), weights_only=True))
    all_of_it = replaced | tensors | aliases | heads | {"log_std": torch.tensor([0.1, -0.4])}
    model = read_model(rewritten(tmp_path, "ppo", SPACES, all_of_it))
    assert any("share" in note for note in model.notes) and "activation relu" in model.notes[0]
    with model.run(lambda: Pictures(ACTIONS), engine="torch") as run:
        features = features_of(tensors, "features_extractor", IMAGES)
        expected = np.clip(dense(heads, "action_net", features).numpy(), ACTIONS.low, ACTIONS.high)
        np.testing.assert_allclose([run.act(each) for each in IMAGES], expected, atol=1e-5)
        value = bound(run).value(torch.as_tensor(IMAGES))
        np.testing.assert_allclose(value, dense(heads, "value_net", features)[:, 0], atol=1e-5)
        half = (ACTIONS.high - ACTIONS.low) / 2
        np.testing.assert_allclose(run.engine.weights()["model.log_std.value"], [0.1, -0.4] - np.log(half), atol=1e-6)


def test_critics_of_images_and_actions_compute_the_same_values(tmp_path):
    draw = torch.Generator().manual_seed(2)
    tensors = {}
    for name in ("actor", "critic", "critic_target"):
        tensors |= nature_cnn(f"{name}.features_extractor", draw, 16, 128)
    for name in ("critic", "critic_target"):
        for i in (0, 1):
            tensors |= named({f"{name}.qf{i}.0": layer(draw, 7, 18), f"{name}.qf{i}.2": layer(draw, 1, 7)})
    tensors |= named({"actor.latent_pi.0": layer(draw, 7, 16), "actor.mu": layer(draw, 2, 7)})
    tensors |= named({"actor.log_std": layer(draw, 2, 7)})
    replaced = dict.fromkeys(torch.load(_policy("sac"), weights_only=True))
    model = read_model(rewritten(tmp_path, "sac", SPACES, replaced | tensors))
    with model.run(lambda: Pictures(ACTIONS), engine="torch") as run:
        hidden = torch.relu(
            dense(tensors, "actor.latent_pi.0", features_of(tensors, "actor.features_extractor", IMAGES))
        )
        mean = torch.tanh(dense(tensors, "actor.mu", hidden)).numpy()
        expected = ACTIONS.low + 0.5 * (mean + 1) * (ACTIONS.high - ACTIONS.low)
        np.testing.assert_allclose([run.act(each) for each in IMAGES], expected, atol=1e-5)
        actions = torch.rand((8, 2), generator=draw) * 2 - 1
        x = torch.cat([features_of(tensors, "critic_target.features_extractor", IMAGES), actions], 1)
        values = [
            dense(tensors, f"critic_target.qf{i}.2", torch.relu(dense(tensors, f"critic_target.qf{i}.0", x)))
            for i in (0, 1)
        ]
        found = bound(run).critic_target(torch.as_tensor(IMAGES), actions)
        np.testing.assert_allclose(found, torch.stack(values)[:, :, 0], atol=1e-5)


def test_a_q_network_of_images_computes_the_same_values(tmp_path):
    draw = torch.Generator().manual_seed(3)
    tensors = {}
    for name in ("q_net", "q_net_target"):
        tensors |= nature_cnn(f"{name}.features_extractor", draw, 16, 128) | named(
            {f"{name}.q_net.0": layer(draw, 3, 16)}
        )
    replaced = dict.fromkeys(torch.load(_policy("dqn"), weights_only=True))
    model = read_model(rewritten(tmp_path, "dqn", SPACES, replaced | tensors))
    with model.run(lambda: Pictures(Discrete(3)), engine="torch") as run:
        for there, here in (("q_net", "q"), ("q_net_target", "q_target")):
            expected = dense(tensors, f"{there}.q_net.0", features_of(tensors, f"{there}.features_extractor", IMAGES))
            np.testing.assert_allclose(getattr(bound(run), here)(torch.as_tensor(IMAGES)), expected, atol=1e-5)


def _policy(name):
    return io.BytesIO(members(name)["policy.pth"])


def test_the_command_makes_a_run_directory_and_says_what_was_assumed(tmp_path, capsys):
    given = ["import", str(MODELS / "ppo" / "model.zip"), "--env", "Pendulum-v1", "--engine", "torch"]
    assert main([*given, "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "activation tanh: the default of Stable-Baselines3" in said and "vec_normalize.pkl" in said
    assert f"etude resume {tmp_path / 'run'}" in said
    with etude.load(tmp_path / "run") as run:
        np.testing.assert_allclose(*answers(run, "ppo"), atol=1e-5)
    with pytest.raises(SystemExit):
        main(["import", "--help"])


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_without_an_environment_a_run_has_the_spaces_that_the_file_prints(name, tmp_path, capsys):
    path = tmp_path / "run"
    assert main(["import", str(MODELS / name / "model.zip"), "--run-dir", str(path), "--engine", "torch"]) == 0
    assert "does not name its environment: give it to the commands below" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="env="):
        etude.load(path)
    with etude.load(path, env=ENVIRONMENTS[name]) as run:
        np.testing.assert_allclose(*answers(run, name), atol=1e-5)
