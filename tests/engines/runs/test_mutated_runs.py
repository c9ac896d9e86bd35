"""Runs whose networks and hyperparameters are mutated between two learning phases, on every engine."""

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but

import etude
from etude import Run, engines
from etude.algorithms import RecurrentPPOConfig
from etude.algorithms.dqn import DQN, DQNConfig
from etude.base.events import Collected
from etude.base.spaces import Spaces
from etude.networks import Conv, Mlp, Recurrent
from etude.run import from_state
from etude.tuning.evolution import ArchitectureLimits, Mutation, Mutations, copied, mutated, transfer
from etude.tuning.evolution.structure import moves_of

LIMITS = ArchitectureLimits(layers=(1, 3), units=(8, 64), latent=(4, 64), cell=(8, 64), filters=(4, 32))
OFTEN = {"learning_starts": 64, "train_every": 32, "gradient_steps": 2}
CASES = {
    "dqn": ("CartPole-v1", {"network": Mlp((16, 16), layer_norm=True), **OFTEN}),
    "sac": ("Pendulum-v1", {"network": Mlp((16, 16), "gelu"), **OFTEN}),
    "ppo": ("CartPole-v1", {"network": Mlp((16, 16), "tanh"), "rollout_length": 32}),
    "recurrent_ppo": ("CartPole-v1", {"network": Recurrent(Mlp((16,)), 16), "rollout_length": 32}),
    "qmix": ("etude.examples.two_step_game:TwoStepGame", {"network": Mlp((16, 16)), "mixing_units": 4, **OFTEN}),
}


def only(kind, **more):
    none = dict.fromkeys(("none", "architecture", "parameters", "hyperparameters"), 0.0)
    return Mutations(**{**none, kind: 1.0, "network": LIMITS, **more})


@pytest.mark.long_but("qmix", "recurrent_ppo")
@pytest.mark.variant
@pytest.mark.parametrize("algorithm", CASES)
def test_a_mutated_run_goes_on_with_all_that_its_parent_learned(engine_name, algorithm):
    env, config = CASES[algorithm]
    rng = np.random.default_rng(4)
    run = etude.Run(algorithm, env, engine=engine_name, environments=2, seed=3, **config)
    list(run.steps(128))
    before = run.state()
    child, mutation = mutated(run, only("architecture", new_layer=0.5), rng)
    assert mutation.kind != "none" and child.step == run.step
    assert child.agent.config.network != run.agent.config.network
    assert child.engine.state()["step"] == before["engine"]["step"] > 0
    assert any(np.abs(x).sum() for x in child.engine.state()["first"].values())
    list(child.steps(128))
    assert child.step == run.step + 128
    assert all(np.isfinite(x).all() for x in child.engine.weights().values())
    child.close()
    run.close()


@pytest.mark.parametrize("seed", range(2))
def test_growth_leaves_outputs_of_the_engine_as_they_were(engine_name, seed):
    limits = ArchitectureLimits(layers=(2, 3), units=(16, 500))
    run = etude.Run("dqn", "CartPole-v1", engine=engine_name, environments=2, seed=3, **OFTEN,
                    network=Mlp((16, 16), "silu", layer_norm=True, dueling=True))  # fmt: skip
    observation = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    child, mutation = mutated(run, only("architecture", network=limits, new_layer=0.5), np.random.default_rng(seed))
    assert mutation.kind in ("add_units", "add_layer")
    before, after = run.engine.act(observation), child.engine.act(observation)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    child.close()
    run.close()


@pytest.mark.variant
def test_a_changed_learning_rate_is_that_of_the_engine_and_keeps_all_moments(engine_name):
    run = etude.Run(
        "ppo", "CartPole-v1", engine=engine_name, environments=2, seed=3, rollout_length=32, learning_rate=1e-3
    )
    list(run.steps(64))
    child, mutation = mutated(run, only("hyperparameters", select=["learning_rate"]), np.random.default_rng(0))
    assert child.learner.hyper()["learning_rate"] == pytest.approx(mutation.after)
    assert mutation.after != mutation.before
    held, own = run.engine.state(), child.engine.state()
    for moment in ("first", "second", "values"):
        assert all(np.array_equal(own[moment][name], held[moment][name]) for name in held[moment])
    child.close()
    run.close()


def test_a_child_that_learns_more_often_takes_no_gradient_steps_for_the_steps_of_its_parent(engine_name):
    config = {"network": Mlp((4,)), "learning_starts": 50, "train_every": 120, "gradient_steps": 1, "batch_size": 8}
    run = etude.Run("dqn", "CartPole-v1", engine=engine_name, environments=1, seed=3, **config)
    run.train(600)
    limits = {"train_every": (3, 120)}
    child, _ = mutated(
        run, only("hyperparameters", select=("train_every",), limits=limits, step=100.0), np.random.default_rng(1)
    )
    assert child.agent.config.train_every == 3
    before = child.learner.progress.gradient_steps
    child.train(120)
    assert child.learner.progress.gradient_steps - before == 120 // 3 == 40
    child.close()
    run.close()


def generators(state, place=""):
    """The states of all generators in the state of a run, and what noise they have drawn for layers, by place."""
    if not isinstance(state, dict):
        return {}
    if "increment" in state:
        return {place: state["state"]}
    found = {at: own for name, part in state.items() for at, own in generators(part, f"{place}/{name}").items()}
    if state.keys() == {"noise", "generator"}:
        found |= {f"{place}/{name}": array.tolist() for name, array in state["noise"].items()}
    return found


def watched(run, steps):
    """(which rows are sampled, the actions and rewards that are collected) while a run trains."""
    sample, rows, collected = run.learner.replay.sample, [], []

    def sampled(k, n):
        batches = sample(k, n)
        rows.append(batches.index.copy())
        return batches

    def note(event):
        if isinstance(event, Collected):
            collected.extend((part.action.copy(), part.observation.copy()) for part in event.steps)

    run.learner.replay.sample = sampled
    run.train(steps, callbacks=note)
    run.learner.replay.sample = sample
    actions, observations = (np.concatenate([np.asarray(each[i]) for each in collected]) for i in (0, 1))
    return np.concatenate(rows), actions, observations


NOISY = {"network": Mlp((8,), noisy=1.0), "priority_exponent": 0.6, "epsilon": 0.5, **OFTEN}
SEEDED = {
    "dqn": ("CartPole-v1", NOISY, None),
    "sac": ("Pendulum-v1", {"network": Mlp((8,)), **OFTEN}, None),
    "mixed": ("CartPole-v1", NOISY, 0.5),
}


@pytest.mark.parametrize("name", variants_but(("dqn",), ["dqn", "sac", "mixed"]))
def test_a_copy_with_another_seed_draws_nothing_that_its_parent_draws_and_is_resumed_bit_for_bit(engine_name, name):
    env, config, share = SEEDED[name]
    data = None if share is None else [(etude.record(env, 4, seed=5), share), ("sampler", 1 - share)]
    given = {"engine": engine_name, "environments": 2, "seed": 3, "data": data, **config}
    run = etude.Run("sac" if name == "sac" else "dqn", env, **given)
    run.train(192)
    child = copied(run, run.agent.config, Mutation(), seed=77)
    own, parents = generators(child.state()), generators(run.state())
    assert own.keys() == parents.keys() and len(own) >= 5
    assert not [place for place in own if own[place] == parents[place]]
    one, other = watched(run, 512), watched(child, 512)
    for found, expected in zip(other, one, strict=True):
        assert found.shape == expected.shape and (found == expected).mean() < 0.6
    state = copy.deepcopy(child.state())
    again = from_state(state, env)
    for each in (child, again):
        each.train(64)
    for name, value in child.engine.weights().items():
        np.testing.assert_array_equal(again.engine.weights()[name], value, name)
    for each in (run, child, again):
        each.close()


@pytest.mark.variant
def test_kernels_and_filters_change_on_images(engine_name):
    spaces = Spaces(gym.spaces.Box(0, 255, (12, 12, 3), np.uint8), gym.spaces.Discrete(3))
    spec = Conv(((8, 4, 2), (8, 3, 1)), (16,), layer_norm=True)
    parent = engines.create(engine_name, DQN(DQNConfig(network=spec)), spaces, seed=1, device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 12, 3)).astype(np.uint8)
    for (kind, chain), found in moves_of(spec, LIMITS).items():
        if chain != "conv" or kind not in ("grow_kernel", "add_units", "add_layer") or not found:
            continue
        changed, mutation = found[-1]
        child = engines.create(engine_name, DQN(DQNConfig(network=changed)), spaces, seed=2, device="cpu")
        mutation = dataclasses.replace(mutation, field="network")
        child.restore(transfer(parent.state(), parent.layout, child.layout, mutation))
        np.testing.assert_allclose(child.act(images), parent.act(images), rtol=1e-5, atol=1e-6)


@pytest.mark.variant
@pytest.mark.parametrize("steps", [64, 70])
@pytest.mark.parametrize("units", [8, 24])
def test_the_cell_of_recurrent_ppo_changes_its_size_between_rollouts_and_within(units, steps, engine_name):
    config = RecurrentPPOConfig(
        network=Recurrent(Mlp((8,)), 16, "gru"), rollout_length=16, sequence_length=8, minibatch_size=16, epochs=1
    )
    mutation = Mutation("add_units" if units > 16 else "remove_units", "network", "cell", amount=8)
    with Run("recurrent_ppo", "CartPole-v1", config=config, environments=4, engine=engine_name, seed=1) as run:
        run.train(steps)
        changed = dataclasses.replace(config, network=Recurrent(Mlp((8,)), units, "gru"))
        with copied(run, changed, mutation, seed=2) as child:
            child.train(128)
            before, after = run.learner.progress, child.learner.progress
            assert after.step == steps + 128 and after.gradient_steps > before.gradient_steps
