"""State dicts of CleanRL's scripts as runs. They are made here from the names and shapes of the scripts' layers."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

torch = pytest.importorskip("torch")
from saved_models import dense, layer, named, saved  # noqa: E402

import etude  # noqa: E402
from etude.base.errors import CheckpointError, ConfigError  # noqa: E402
from etude.importing import read_model  # noqa: E402

OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
LOW, HIGH = np.array([-2, 0.5], np.float32), np.array([1, 8], np.float32)
MIDDLE, HALF = (LOW + HIGH) / 2, (HIGH - LOW) / 2


class Arm(gymnasium.Env):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Box(LOW, HIGH)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        return (
            self.np_random.uniform(-1, 1, 3).astype(np.float32),
            float(action[0]),
            False,
            self.np_random.random() < 0.1,
            {},
        )


def imported(folder, value, env, **options):
    path = folder / "script.cleanrl_model"
    path.write_bytes(saved(value))
    return read_model(path, **options).run(env, folder / "run", engine="torch")


def mlp(draw, name, *widths):
    places = (f"{name}.{2 * i}" for i in range(len(widths)))
    return named({place: layer(draw, out, n) for place, n, out in zip(places, widths, widths[1:], strict=False)})


def evaluated(tensors, name, x, activation):
    places = sorted({int(each.split(".")[1]) for each in tensors if each.startswith(f"{name}.")})
    for place in places[:-1]:
        x = activation(dense(tensors, f"{name}.{place}", x))
    return dense(tensors, f"{name}.{places[-1]}", x).numpy()


def trained_on(folder, env=None):
    with etude.resume(folder / "run", env=env) as run:
        run.train(64)
        return run.step


def test_ppo_of_discrete_actions(tmp_path):
    draw = torch.Generator().manual_seed(0)
    tensors = mlp(draw, "actor", 4, 8, 8, 2) | mlp(draw, "critic", 4, 8, 8, 1)
    observations = np.random.default_rng(1).uniform(-1, 1, (20, 4)).astype(np.float32)
    with imported(tmp_path, tensors, "CartPole-v1") as run:
        expected = evaluated(tensors, "actor", torch.as_tensor(observations), torch.tanh).argmax(1)
        assert [run.act(each) for each in observations] == expected.tolist() and len(set(expected)) == 2
    assert trained_on(tmp_path) == 64


def test_ppo_of_continuous_actions_in_the_units_of_the_environment(tmp_path):
    draw = torch.Generator().manual_seed(1)
    tensors = mlp(draw, "actor_mean", 3, 8, 8, 2) | mlp(draw, "critic", 3, 8, 8, 1)
    tensors["actor_logstd"] = torch.tensor([[0.5, -0.2]])
    with imported(tmp_path, tensors, Arm) as run:
        mean = evaluated(tensors, "actor_mean", torch.as_tensor(OBSERVATIONS), torch.tanh)
        np.testing.assert_allclose([run.act(each) for each in OBSERVATIONS], np.clip(mean, LOW, HIGH), atol=1e-5)
        np.testing.assert_allclose(run.engine.weights()["model.log_std.value"], [0.5, -0.2] - np.log(HALF), atol=1e-6)
    assert any("NormalizeObservation" in note for note in read_model(tmp_path / "script.cleanrl_model").notes)


def test_dqn_and_an_activation_that_is_given(tmp_path):
    draw = torch.Generator().manual_seed(2)
    tensors = mlp(draw, "network", 4, 12, 9, 2)
    for name, activation in ((None, torch.relu), ("elu", torch.nn.functional.elu)):
        folder = tmp_path / str(name)
        folder.mkdir()
        with imported(folder, tensors, "CartPole-v1", activation=name) as run:
            x = np.random.default_rng(3).uniform(-1, 1, (20, 4)).astype(np.float32)
            np.testing.assert_allclose(
                run.actor().act(x), evaluated(tensors, "network", torch.as_tensor(x), activation), atol=1e-5
            )
            weights = run.engine.weights()
            np.testing.assert_array_equal(weights["q_target.dense0.weight"], weights["q.dense0.weight"])


def convolutions(draw):
    shapes = {0: (32, 4, 8, 8), 2: (64, 32, 4, 4), 4: (64, 64, 3, 3), 7: (16, 64 * 1 * 2)}
    return named({f"network.{place}": layer(draw, *shape) for place, shape in shapes.items()})


@pytest.mark.parametrize("script", ["ppo_atari", "dqn_atari"])
def test_convolutions_over_stacked_frames(script, tmp_path):
    draw = torch.Generator().manual_seed(3)
    tensors, heads = convolutions(draw), {"actor": layer(draw, 3, 16), "critic": layer(draw, 1, 16)}
    tensors |= named(heads if script == "ppo_atari" else {"network.9": layer(draw, 3, 16)})
    frames = np.random.default_rng(4).integers(0, 256, (6, 4, 40, 44)).astype(np.uint8)
    x = torch.as_tensor(frames).float() / 255
    for place, stride in ((0, 4), (2, 2), (4, 1)):
        x = torch.relu(torch.conv2d(x, tensors[f"network.{place}.weight"], tensors[f"network.{place}.bias"], stride))
    features = torch.relu(dense(tensors, "network.7", x.flatten(1)))
    expected = dense(tensors, "actor" if script == "ppo_atari" else "network.9", features).numpy()

    class Frames(Arm):
        observation_space = Box(0, 255, (4, 40, 44), np.uint8)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            return frames[0], {}

    with imported(tmp_path, tensors, Frames) as run:
        bound = run.engine.layout.bind({name: torch.as_tensor(each) for name, each in run.engine.weights().items()})
        found = bound.act(torch.as_tensor(frames))
        np.testing.assert_allclose(found.logits if script == "ppo_atari" else found, expected, atol=1e-5)


def actor(draw, *last):
    shapes = {"fc1": (8, 3), "fc2": (8, 8)} | dict.fromkeys(last, (2, 8))
    scaling = {"action_scale": torch.as_tensor(HALF), "action_bias": torch.as_tensor(MIDDLE)}
    return named({name: layer(draw, *shape) for name, shape in shapes.items()}) | scaling


def critic(draw):
    return named({"fc1": layer(draw, 8, 5), "fc2": layer(draw, 8, 8), "fc3": layer(draw, 1, 8)})


@pytest.mark.parametrize("script", ["sac", "td3", "ddpg"])
def test_actors_and_critics_of_actions_in_the_units_of_the_environment(script, tmp_path):
    draw = torch.Generator().manual_seed(5)
    own = actor(draw, *(("fc_mean", "fc_logstd") if script == "sac" else ("fc_mu",)))
    critics = [critic(draw) for _ in range(1 if script == "ddpg" else 2)]
    held = {"actor": own, "qf1": critics[0], "qf2": critics[1]} if script == "sac" else (own, *critics)
    x = torch.as_tensor(OBSERVATIONS)
    hidden = torch.relu(dense(own, "fc2", torch.relu(dense(own, "fc1", x))))
    expected = torch.tanh(dense(own, "fc_mean" if script == "sac" else "fc_mu", hidden)).numpy() * HALF + MIDDLE
    with imported(tmp_path, held, Arm) as run:
        assert run.algorithm == script
        np.testing.assert_allclose([run.act(each) for each in OBSERVATIONS], expected, atol=1e-5)
        bound = run.engine.layout.bind({name: torch.as_tensor(each) for name, each in run.engine.weights().items()})
        given = torch.rand((20, 2), generator=draw) * 2 - 1
        read = torch.cat([x, given * own["action_scale"] + own["action_bias"]], 1)
        values = [dense(q, "fc3", torch.relu(dense(q, "fc2", torch.relu(dense(q, "fc1", read))))) for q in critics]
        found = bound.critic((x, given)) if script == "ddpg" else bound.critic(x, given)
        np.testing.assert_allclose(found, values[0] if script == "ddpg" else torch.stack(values)[:, :, 0], atol=1e-4)
        if script == "sac":
            log_std = (3.5 * dense(own, "fc_logstd", hidden) - 1.5).clip(-20, 2)
            np.testing.assert_allclose(bound.act(x).log_std, log_std, atol=1e-5)
    assert trained_on(tmp_path, Arm) == 64


def test_what_is_no_state_dict_of_a_script_is_one_clear_error(tmp_path):
    draw = torch.Generator().manual_seed(6)
    path = tmp_path / "model.pth"
    for value, match in (
        ({"encoder.weight": torch.ones(2, 2)}, "its layers are those of another script"),
        (mlp(draw, "network", 4, 8, 2) | {"atoms": torch.ones(3)}, "it has atoms, which are not known"),
        (3, "no tensors by name, but a int"),
        ((actor(draw, "fc_mu"),), "holds 1 state dicts"),
        ((actor(draw, "fc_mean", "fc_logstd"), critic(draw)), "there are 1 critics for sac"),
    ):
        path.write_bytes(saved(value))
        with pytest.raises(CheckpointError, match=match):
            read_model(path)
    path.write_bytes(saved(mlp(draw, "network", 4, 8, 2)))
    with pytest.raises(ConfigError, match="vec_normalize is for models of Stable-Baselines3"):
        read_model(path, vec_normalize=path)
    with pytest.raises(ConfigError, match="activation = 'swish'; expected one of relu, tanh"):
        read_model(path, activation="swish")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_model(tmp_path / "missing")
