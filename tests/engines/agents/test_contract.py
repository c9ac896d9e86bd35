"""What every algorithm does on every engine, on every kind of space and network that it takes."""

import dataclasses

import numpy as np
import pytest
from batches import GAMES, acted, random_batches, random_values, valued
from cases import BOX2, CASES, EVERY_KIND, HYBRID, VECTOR, every_case, made

from etude import Conv, Linear, Mlp, engines
from etude.algorithms import DQN, PPO, SAC, DQNConfig, PPOConfig, SACConfig
from etude.base import trees
from etude.base.data import Batch
from etude.base.errors import ConfigError, NetworkError, NumericalError, SpaceError
from etude.base.spaces import Box, Dict, Discrete, MultiDiscrete, Spaces, Tuple
from etude.engines.numpy import NumpyEngine
from etude.explore import EpsilonGreedy, GaussianNoise, Greedy, Sample
from etude.losses.distributions import Deterministic
from etude.losses.masks import MaskedValues
from etude.networks.network import parts_of
from etude.training.assembly.agents import check_spaces

every_kind_of_state = every_case(*EVERY_KIND, others_long=True)  # another engine, which compiles again, takes it over
SLOW = ("pets", "td_mpc2 on images", "cal_ql, lagrange", "impala multidiscrete")  # whose losses fall late


def exploring(output):
    """An explorer that fits what an agent's `act` returned."""
    if isinstance(output, np.ndarray | MaskedValues):
        return EpsilonGreedy(0.5)
    return GaussianNoise(0.5) if isinstance(output, Deterministic) else Sample()


@every_case()
def test_actions_lie_in_the_space_and_obey_the_mask(case, engine_name):
    engine = made(case, engine_name)
    observation = random_values(case.spaces.observation, np.random.default_rng(1), 64)
    output = acted(engine, observation)
    if engine.state_size:
        output, state = output
        assert state.shape == (64, engine.state_size) and state.dtype == np.float32
    explorers = (Greedy(), exploring(output)) if case.spaces.agents is None else case.explorers()
    for explorer in explorers:
        noise = explorer.draw(np.random.default_rng(2), 64, case.spaces.action)
        action = explorer(output, noise, 0, np.empty((64, 0))).action
        if isinstance(case.spaces.action, Box):  # a Gaussian has no bounds; the environment's adapter clips it
            action = np.clip(action, case.spaces.action.low, case.spaces.action.high)
        assert all(np.asarray(a, case.spaces.action.dtype) in case.spaces.action for a in action)
        if case.spaces.masked:
            assert all(mask[a] for mask, a in zip(observation["action_mask"], action, strict=True))


@every_case()
def test_learning_lowers_the_loss_on_one_batch_and_every_number_is_finite(case, engine_name):
    engine = made(case, engine_name)
    batches = random_batches(case, 1, 16)
    many = Batch(**{field.name: _twice(getattr(batches, field.name)) for field in dataclasses.fields(Batch)})
    hyper = case.hyper(target_update_every=1_000_000, tau=0.0, entropy_coefficient=0.0, learning_rate=3e-3)
    first = engine.learn(many, hyper)
    for _ in range(20 if case.name in SLOW else 10):
        last = engine.learn(many, hyper)
    last_names = {name.split(".")[-1]: name for name in first.losses}
    part = next(part for part in ("q", "critic", "model", "actor", "reward_model") if part in last_names)
    for name in first.losses:
        if name.split(".")[-1] == part:
            assert last.losses[name] < first.losses[name]
    assert np.isfinite([*last.losses.values(), *last.metrics.values()]).all()
    assert last.steps == 2
    if case.agent().learns_from in ("transitions", "returns", "sequences") and case.algorithm != "bc":
        assert last.td_error.shape == (2, 16)


def _twice(tree):
    return None if tree is None else trees.map(lambda x: np.repeat(x, 2, 0), tree)


@every_case()
def test_nothing_is_compiled_again_on_the_second_call_nor_when_a_hyperparameter_changes(case, engine_name):
    if engine_name == "torch":
        pytest.skip("eager torch compiles nothing")
    engine = made(case, engine_name)
    engine.learn(random_batches(case, 2, 16), case.hyper())
    traced = engine.traces
    changes = {name: value * 0.5 if isinstance(value, float) else 7 for name, value in case.hyper().items()}
    engine.learn(random_batches(case, 2, 16, seed=1), changes)
    engine.load(engine.weights())
    engine.learn(random_batches(case, 2, 16, seed=2), case.hyper())
    assert traced > 0
    assert engine.traces == traced


def test_memory_that_the_compiler_freed_is_given_back_once_for_each_shape(engine_name, monkeypatch):
    if engine_name != "jax":
        pytest.skip("the compiler of JAX leaves much")
    from etude.engines import jax as backend

    calls = []
    monkeypatch.setattr(backend, "release_freed_memory", lambda: calls.append(None))
    double = backend.JaxBackend("cpu").compile(lambda x: 2 * x)
    for size, times in ((3, 1), (3, 1), (4, 2)):
        assert double(np.ones(size, np.float32)).shape == (size,)
        assert len(calls) == times


def test_a_changed_hyperparameter_takes_effect(engine_name):
    case = CASES[0]
    outcomes = []
    for rate in (0.0, 1e-2):
        engine = made(case, engine_name)
        before = engine.weights()
        engine.learn(random_batches(case, 2, 16), case.hyper(learning_rate=1e-3))
        between = engine.weights()
        engine.learn(random_batches(case, 2, 16), case.hyper(learning_rate=rate))
        after = engine.weights()
        name = "q.dense0.weight"
        assert not np.array_equal(before[name], between[name])
        outcomes.append(np.array_equal(between[name], after[name]))
    assert outcomes == [True, False]


def test_lagged_networks_follow_when_they_are_due_and_only_then(engine_name):
    case = CASES[0]
    engine = made(case, engine_name)
    start = engine.weights()["q_target.dense0.weight"]
    engine.learn(random_batches(case, 2, 16), case.hyper(target_update_every=4))
    assert np.array_equal(engine.weights()["q_target.dense0.weight"], start)
    engine.learn(random_batches(case, 2, 16), case.hyper(target_update_every=4))
    weights = engine.weights()
    assert np.array_equal(weights["q_target.dense0.weight"], weights["q.dense0.weight"])

    case = next(case for case in CASES if case.name == "sac")
    engine = made(case, engine_name)
    before = engine.weights()["critic_target.dense0.weight"]
    engine.learn(random_batches(case, 2, 16), case.hyper(tau=0.25, learning_rate=0.0))
    engine.load({"critic.dense0.weight": before + 1.0})
    engine.learn(random_batches(case, 2, 16), case.hyper(tau=0.25, learning_rate=0.0))
    weights = engine.weights()
    expected = before + (1 - 0.75**2)
    np.testing.assert_allclose(weights["critic_target.dense0.weight"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.variant
def test_sac_with_a_delay_of_2_trains_its_actor_and_its_temperature_at_every_second_gradient_step(engine_name):
    case = next(case for case in CASES if case.name == "sac, five critics")
    engine, batches = made(case, engine_name), random_batches(case, 1, 16)
    told = [set(engine.learn(batches, case.hyper(policy_delay=2)).losses) for _ in range(4)]
    assert told == [{"critic"}, {"critic", "actor", "temperature"}] * 2


@pytest.mark.variant
def test_the_network_of_a_mixture_gives_shares_then_locations_then_log_deviations(engine_name):
    case = next(case for case in CASES if case.name == "appo mixture")  # 2 components of 2 numbers
    engine = made(case, engine_name)
    weights = engine.weights()
    last = max(name for name in weights if name.startswith("model.policy.") and name.endswith(".bias"))
    bias, offset = np.arange(10, dtype=np.float32) / 10, 0.1 * np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    engine.load({last: bias, last.replace("bias", "weight"): 0 * weights[last.replace("bias", "weight")]})
    engine.load({"model.offset.value": offset})
    found = engine.act(np.zeros((1, 5), np.float32))
    np.testing.assert_allclose(found.logits[0], bias[:2])
    np.testing.assert_allclose(found.components.mean[0], bias[2:6].reshape(2, 2) + offset[0], rtol=1e-6)
    np.testing.assert_allclose(found.components.log_std[0], bias[6:].reshape(2, 2) + offset[1], rtol=1e-6)


def test_a_delayed_loss_is_trained_and_told_only_when_it_is_due(engine_name):
    case = next(case for case in CASES if case.name == "td3")
    engine, hyper = made(case, engine_name), case.hyper(policy_delay=2, tau=0.5)
    batches = random_batches(case, 1, 16)
    start = engine.weights()
    first = engine.learn(batches, hyper)
    between = engine.weights()
    second = engine.learn(batches, hyper)
    end = engine.weights()
    assert set(first.losses) == {"critic"} and set(second.losses) == {"critic", "actor"}
    assert "saturation" in second.metrics and "saturation" not in first.metrics
    for name in ("actor.dense0.weight", "actor_target.dense0.weight", "critic_target.dense0.weight"):
        assert np.array_equal(start[name], between[name])
        assert not np.array_equal(between[name], end[name])
    assert not np.array_equal(start["critic.dense0.weight"], between["critic.dense0.weight"])


@pytest.mark.variant("jax")
def test_what_a_delayed_loss_tells_is_the_mean_over_the_gradient_steps_at_which_it_is_due(engine_name):
    case = next(case for case in CASES if case.name == "td3")
    hyper = case.hyper(policy_delay=2, learning_rate=0.0)
    batches = random_batches(case, 5, 16)
    told = made(case, engine_name).learn(batches, hyper)
    engine = made(case, engine_name)
    one_by_one = [engine.learn(_only(batches, i), hyper) for i in range(5)]
    due = [update.losses["actor"] for update in one_by_one if "actor" in update.losses]
    assert len(due) == 2
    assert told.losses["actor"] == pytest.approx(np.mean(due), rel=1e-5)
    assert told.metrics["saturation"] == pytest.approx(np.mean([one_by_one[i].metrics["saturation"] for i in (1, 3)]))


def _only(batches, i):
    fields = {field.name: getattr(batches, field.name) for field in dataclasses.fields(Batch)}
    return Batch(**{name: trees.map(lambda x: x[i : i + 1], value) for name, value in fields.items()})


@every_kind_of_state
def test_a_restored_engine_goes_on_bit_for_bit(case, engine_name):
    engine = made(case, engine_name)
    engine.learn(random_batches(case, 2, 16), case.hyper())
    state = engine.state()
    expected = [engine.learn(random_batches(case, 2, 16, seed=i), case.hyper()).losses for i in (1, 2)]
    again = made(case, engine_name, seed=99)
    again.restore(state)
    assert [again.learn(random_batches(case, 2, 16, seed=i), case.hyper()).losses for i in (1, 2)] == expected
    for name, value in engine.weights().items():
        assert np.array_equal(value, again.weights()[name]), name


@every_kind_of_state
def test_a_fresh_engine_can_be_restored_to_a_fresh_state(case, engine_name):
    engine, again = made(case, engine_name), made(case, engine_name, seed=99)
    again.restore(engine.state())
    batches = random_batches(case, 2, 16)
    assert again.learn(batches, case.hyper()).losses == engine.learn(batches, case.hyper()).losses


@every_case()
def test_each_loss_trains_the_part_of_its_name_only(case, engine_name):
    engine = made(case, engine_name)
    before = engine.weights()
    agent = engine.layout.agent
    follows = [part.target_of.every for part in parts_of(agent).values() if part.target_of]
    late = {name: 1_000_000 for name in follows if name}
    due = dict.fromkeys(agent.trained_every.values(), 2)
    engine.learn(random_batches(case, 2, 16), case.hyper(**{"tau": 0.0, **late, **due}))
    moved = {name for name, value in engine.weights().items() if not np.array_equal(value, before[name])}
    ends = ("mean", "variance", "passes", ".spectral", "regression.inverse", "regression.b")
    statistics = {name for name in engine.layout.untrained if name.endswith(ends) and "normaliser" not in name}
    assert statistics <= moved <= set(engine.layout.trainable) | statistics
    moved -= statistics
    assert {engine.layout.agent.trained_by(name) for name in moved} == set(engine.layout.groups)


@every_case()
def test_numpy_acts_as_the_engine_does(case, engine_name):
    engine = made(case, engine_name)
    actor = NumpyEngine(case.agent(), case.spaces)
    actor.load(engine.weights())
    observation = random_values(case.spaces.observation, np.random.default_rng(1), 64)
    found, expected = acted(actor, observation), acted(engine, observation)
    if case.agent().learns_from in GAMES:  # NumPy alone keeps keys and values
        found, expected = found[0], expected[0]
    for mine, theirs in zip(_arrays(found), _arrays(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    valuing = ("advantages", "advantage_sequences", "demonstrations", "gradients", "unrolls", "episodes")
    if case.agent().learns_from in valuing:
        for mine, theirs in zip(_arrays(valued(actor, observation)), _arrays(valued(engine, observation)), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def _arrays(output):
    return trees.leaves(output)


def test_acting_reads_the_actor_and_not_the_critics():
    case = next(case for case in CASES if case.name == "sac")
    actor = NumpyEngine(case.agent(), case.spaces)
    read = actor.read_by_acting()
    assert {name.split(".")[0] for name in read} == {"actor"}


def torch_network():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


def keras_network():
    import keras

    return keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)])


def own_network(engine_name):
    return torch_network if engine_name == "torch" else keras_network


def test_a_network_of_ones_own_learns_and_is_restored(engine_name):
    case = dataclasses.replace(CASES[0], config=DQNConfig(network=own_network(engine_name), double=False))
    engine = engines.create(engine_name, case.agent(), case.spaces)
    assert not engine.exportable
    before = engine.weights()
    first = engine.learn(random_batches(case, 4, 32), case.hyper())
    moved = {name for name, value in engine.weights().items() if not np.array_equal(value, before[name])}
    assert any(name.startswith("q.") for name in moved)
    assert any(name.startswith("q_target.") for name in moved)
    assert np.isfinite(first.losses["q"])
    again = engines.create(engine_name, case.agent(), case.spaces, seed=5)
    again.restore(engine.state())
    batches = random_batches(case, 4, 32, seed=1)
    assert again.learn(batches, case.hyper()).losses == engine.learn(batches, case.hyper()).losses
    observation = random_values(VECTOR, np.random.default_rng(0), 4)
    np.testing.assert_array_equal(engine.act(observation), again.act(observation))


def test_the_first_weights_of_a_network_of_ones_own_come_from_the_seed(engine_name):
    case = dataclasses.replace(CASES[0], config=DQNConfig(network=own_network(engine_name)))
    one, same, other = (
        engines.create(engine_name, case.agent(), case.spaces, seed=seed).weights() for seed in (1, 1, 2)
    )
    assert all(np.array_equal(value, same[name]) for name, value in one.items())
    assert not all(np.array_equal(value, other[name]) for name, value in one.items())


def test_a_wrong_output_shape_is_told_with_what_was_expected(engine_name):
    spaces = Spaces(VECTOR, Discrete(4))
    with pytest.raises(NetworkError, match=r"\(2, 3\).*expected \(2, 4\)"):
        engines.create(engine_name, DQN(DQNConfig(network=own_network(engine_name))), spaces)


def test_a_network_that_cannot_read_the_observations_is_named(engine_name):
    if engine_name != "torch":
        pytest.skip("the layers of Keras take the size of their inputs from what they see first")
    spaces = Spaces(Box(-1, 1, (9,), np.float32), Discrete(3))
    with pytest.raises(NetworkError, match=r"Sequential cannot read 2 observations of Box\(9,\) float32"):
        engines.create(engine_name, DQN(DQNConfig(network=torch_network)), spaces)


def test_weights_that_do_not_fit_are_refused_by_name(engine_name):
    engine = made(CASES[0], engine_name)
    with pytest.raises(NetworkError, match="no weight named 'q.dense9.weight'"):
        engine.load({"q.dense9.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(NetworkError, match=r"'q.dense0.weight' has shape \(2, 2\)"):
        engine.load({"q.dense0.weight": np.zeros((2, 2), np.float32)})


def test_a_loss_that_is_not_a_number_is_named(engine_name):
    engine = made(CASES[0], engine_name)
    batches = random_batches(CASES[0], 2, 16)
    batches.reward[0, 3] = np.nan
    with pytest.raises(NumericalError, match="q = nan"):
        engine.learn(batches, CASES[0].hyper())


def test_a_gpu_that_is_not_there_is_refused_in_one_line(engine_name):
    with pytest.raises(ConfigError, match="asks for a GPU; this engine sees 0"):
        engines.create(engine_name, CASES[0].agent(), CASES[0].spaces, device="cuda:7")
    with pytest.raises(ConfigError, match="Unknown device 'tpu'"):
        engines.create(engine_name, CASES[0].agent(), CASES[0].spaces, device="tpu")
    assert made(CASES[0], engine_name).device.startswith("cpu")


def test_a_space_that_an_algorithm_cannot_use_is_refused_with_those_that_can():
    refused = [
        (SAC(SACConfig()), Discrete(2), "SAC needs Box actions; this environment has Discrete.2.. Use .*dqn"),
        (DQN(DQNConfig()), BOX2, "DQN needs Discrete actions.*Use .*ppo.* or .*td3"),
        (DQN(DQNConfig()), MultiDiscrete([2, 2]), "Use .*ppo"),
        (PPO(PPOConfig()), Dict({"a": Discrete(2)}), "No algorithm"),
        (
            SAC(SACConfig()),
            HYBRID,
            r"SAC needs Box actions; this environment has Box\(2,\) .* MultiDiscrete\(\[2, 3\]\)",
        ),
    ]
    for agent, action, message in refused:
        with pytest.raises(SpaceError, match=message):
            check_spaces(agent, Spaces(VECTOR, action))


def test_an_mlp_reads_images_flattened_and_scaled():
    spaces = Spaces(Tuple([VECTOR, Box(0, 255, (8, 8, 3), np.uint8)]), Discrete(2))
    engine = NumpyEngine(DQN(DQNConfig(network=Mlp(()))), spaces)
    weight, bias = engine.weights()["q.dense0.weight"], engine.weights()["q.dense0.bias"]
    assert weight.shape == (5 + 8 * 8 * 3, 2)
    vector, image = random_values(spaces.observation, np.random.default_rng(0), 3)
    flat = np.concatenate([vector, image.reshape(3, -1) / np.float32(255)], -1)
    np.testing.assert_allclose(engine.act((vector, image)), flat @ weight + bias, rtol=1e-5, atol=1e-6)


IMAGES = np.random.default_rng(0).integers(0, 255, (3, 2, 12, 14, 3)).astype(np.uint8)  # [B, stack, height, width, RGB]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (IMAGES[:, 0], IMAGES[:, 0]),
        (np.moveaxis(IMAGES[:, 0], -1, 1), IMAGES[:, 0]),  # channels first
        (IMAGES[..., 0], np.moveaxis(IMAGES[..., 0], 1, -1)),  # stacked grey frames, as Gymnasium stacks them
        (IMAGES, np.moveaxis(IMAGES, 1, 3).reshape(3, 12, 14, 6)),  # stacked images in colour
        (np.moveaxis(IMAGES, -1, 2), np.moveaxis(IMAGES, 1, 3).reshape(3, 12, 14, 6)),  # the same, channels first
    ],
)
def test_images_are_read_in_any_order_of_their_dimensions(given, expected, engine_name):
    spec = Conv(((4, 3, 2),), (8,))
    read, wanted = (
        engines.create(
            engine_name, DQN(DQNConfig(network=spec)), Spaces(Box(0, 255, x.shape[1:], np.uint8), Discrete(2))
        )
        for x in (given, expected)
    )
    assert {name: value.shape for name, value in read.weights().items()} == {
        name: value.shape for name, value in wanted.weights().items()
    }
    np.testing.assert_allclose(np.asarray(read.act(given)), np.asarray(wanted.act(expected)), rtol=1e-5, atol=1e-6)


def test_configs_refuse_what_cannot_be():
    with pytest.raises(ConfigError, match="gamma = 1.5; expected a number from 0 to 1"):
        DQNConfig(gamma=1.5)
    with pytest.raises(ConfigError, match="batch_size = 0"):
        SACConfig(batch_size=0)
    with pytest.raises(ConfigError, match="epsilon"):
        DQNConfig(epsilon=Linear(2.0, 0.1))
    with pytest.raises(ConfigError, match="unknown activation 'swish'"):
        Mlp((8,), activation="swish")
