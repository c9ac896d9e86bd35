"""Random mutations of every kind over random specs, on every engine: what the engine computes and holds afterwards."""

import gymnasium as gym
import numpy as np
import pytest
from mutated_agents import candidates, observations, random_case, state_of

from etude import engines
from etude.base.spaces import Spaces
from etude.tuning.evolution import ActivationSample, Mutations, transfer
from etude.tuning.evolution.mutation import (
    ACTIVATION,
    ADD_LAYER,
    ADD_UNITS,
    GROW_KERNEL,
    HYPERPARAMETER,
    PARAMETERS,
    REMOVE_LAYER,
    REMOVE_UNITS,
    SHRINK_KERNEL,
)
from etude.tuning.genome import Genome, genome_from_json

GROWTH, REMOVALS = (ADD_LAYER, ADD_UNITS, GROW_KERNEL), (REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL)
OTHERS = {PARAMETERS: "parameters", ACTIVATION: "activation", HYPERPARAMETER: "hyperparameters"}
GENERATIONS = 6  # of each random spec
NO_KIND = dict.fromkeys(("none", "architecture", *OTHERS.values()), 0.0)


@pytest.mark.variant
@pytest.mark.parametrize("kind", (*GROWTH, *REMOVALS, *OTHERS))
def test_a_few_mutations_of_each_kind(engine_name, kind):
    check_mutations(engine_name, kind, 12, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", (*GROWTH, *REMOVALS, *OTHERS))
def test_five_hundred_mutations_of_each_kind(engine_name, kind):
    check_mutations(engine_name, kind, 500, seed=2)


def check_mutations(engine_name, kind, times, seed):
    """So many mutations of one kind, of agents of random specs, each mutated again and again."""
    rng, done = np.random.default_rng(seed), 0
    while done < times:
        agent, config, space = random_case(rng)
        spaces, observation = Spaces(space, gym.spaces.Discrete(3)), observations(space, rng)
        parent = engines.create(engine_name, agent(config), spaces, seed=0, device="cpu")
        parent.restore({**parent.state(), **state_of(parent.layout, rng), "noise": parent.state()["noise"]})
        before = outputs(parent, observation) if kind in GROWTH else None
        for generation in range(1, GENERATIONS + 1):
            draw = int(rng.integers(2**31))
            found = drawn(config, kind, draw)
            if found is None or done == times:
                break
            assert drawn(config, kind, draw) == found, "the same seed gave another mutation"
            config, mutation = found
            check_genome(config)
            child = engines.create(engine_name, agent(config), spaces, seed=generation, device="cpu")
            state = check_state(parent, child, mutation, ActivationSample(observation))
            if kind in GROWTH:
                after = outputs(child, observation)
                assert np.linalg.norm(after - before) < 1e-5 * np.linalg.norm(before), (mutation, config)
                np.testing.assert_allclose(lag(child, child.state()), lag(parent, state), rtol=1e-4)
                before = after
            parent, done = child, done + 1
        assert np.isfinite(outputs(parent, observation) if before is None else before).all()


def drawn(config, kind, seed):
    """(config, mutation) of a kind; None where there is no such mutation."""
    rng = np.random.default_rng(seed)
    if kind in OTHERS:
        found = Mutations(**{**NO_KIND, OTHERS[kind]: 1.0}, select=["gamma"], limits={"gamma": (0.5, 1.0)})(config, rng)
        return found if found[1].kind == kind else None
    found = list(candidates(config, [kind]))
    return found[rng.integers(len(found))] if found else None


def check_genome(config):
    genome = Genome("dqn", config, 3)
    assert genome_from_json(genome.to_json(), type(config)()) == genome


def check_state(parent, child, mutation, sample):
    """The parent's state, which the child goes on from: as the transfer made it, and with all that the kind keeps."""
    state = parent.state()
    expected, again = (transfer(state, parent.layout, child.layout, mutation, sample) for _ in range(2))
    child.restore(expected)
    held = child.state()
    assert held["step"] == state["step"]
    for name in ("values", *child.layout.moments):
        assert held[name].keys() == expected[name].keys()
        for key, array in expected[name].items():
            np.testing.assert_array_equal(held[name][key], array)
            np.testing.assert_array_equal(again[name][key], array, "the same seed gave another state")
    assert {name: array.shape for name, array in child.layout.initial.items()}.items() <= {
        name: array.shape for name, array in held["values"].items()
    }.items()
    if mutation.kind in REMOVALS:
        assert parameters(child) < parameters(parent), "a removal made the network larger"
    else:  # of moments nothing is lost
        for moment in child.layout.moments:
            total = sum(x.sum(dtype=float) for x in state[moment].values())
            assert sum(x.sum(dtype=float) for x in held[moment].values()) == pytest.approx(total, rel=1e-5)
    if mutation.kind in (ACTIVATION, HYPERPARAMETER):
        for key, array in state["values"].items():
            np.testing.assert_array_equal(held["values"][key], array)
    return state


def outputs(engine, observation):
    """What the engine computes for observations, as one array."""
    if not engine.state_size:
        found = [engine.act(observation)]
        if engine.layout.agent.acts_by == "actions":  # of an actor, which has a critic
            found.append(engine.value(observation))
        return np.concatenate([np.reshape(x, -1) for x in found])
    n, found = len(observation["image"] if isinstance(observation, dict) else observation), []
    state = np.zeros((n, engine.state_size), np.float32)
    for _ in range(3):
        y, state = engine.act(observation, state)
        found.append(np.asarray(y))
    return np.concatenate(found, -1).reshape(-1)


def lag(engine, state):
    """How far target networks are from their sources."""
    values = state["values"]
    return sum(np.square(values[f.source] - values[f.target]).sum() for f in engine.layout.following)


def parameters(engine):
    return sum(x.size for x in engine.layout.initial.values())
