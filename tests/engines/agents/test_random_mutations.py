"""Random mutations of random specs on every engine: what growth changes, what is carried over, and what repeats."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mutated_agents import LIMITS, candidates, observations, random_case, state_of

from etude import engines
from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.spaces import Discrete, Spaces
from etude.tuning.evolution import ActivationSample, Mutations, transfer
from etude.tuning.evolution.structure import (
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
from etude.tuning.trial import Genome, genome_from_json

GROWTH = (ADD_LAYER, ADD_UNITS, GROW_KERNEL)
SAME_SHAPES = {ACTIVATION: "activation", PARAMETERS: "parameters", HYPERPARAMETER: "hyperparameters"}
KINDS = (*GROWTH, REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL, *SAME_SHAPES)
UNCHANGED = 1e-5  # relative change of outputs
CHUNK, CHUNKS = 50, 10  # mutations of each kind in a long test, and how many of these there are
IN_A_ROW = 6  # mutations of one agent


def drawn(config, kind, rng):
    """A mutation of this kind, (config, what changed); None where there is none."""
    if kind in SAME_SHAPES:
        none = dict.fromkeys(("none", "architecture", "parameters", "activation", "hyperparameters"), 0.0)
        seed = rng.integers(2**31)
        mutations = Mutations(**{**none, SAME_SHAPES[kind]: 1.0}, network=LIMITS, select=["learning_rate"])
        found = mutations(config, np.random.default_rng(seed))
        assert found == mutations(config, np.random.default_rng(seed)), "the same seed gave another mutation"
        return found
    found = list(candidates(config, [kind]))
    return found[rng.integers(len(found))] if found else None


def outputs(engine, observation):
    """What an engine computes with all of its networks, one vector."""
    if engine.state_size:
        count = len(observation["image"] if isinstance(observation, dict) else observation)
        found, state = [], np.zeros((count, engine.state_size), np.float32)
        for _ in range(2):
            y, state = engine.act(observation, state)
            found.append(y)
    else:
        found = [engine.act(observation)]
        if type(engine.layout.agent).value is not Agent.value:
            found += [engine.value(observation)]
    return np.concatenate([np.reshape(x, -1) for x in found])


def lag(layout, values):
    return sum(np.square(values[f.source] - values[f.target], dtype=float).sum() for f in layout.following)


class Parent:
    """An agent of a random spec in an engine, with moments and target networks of their own."""

    def __init__(self, engine_name, rng):
        self.engine_name, self.rng, self.count = engine_name, rng, 0
        self.kind, self.config, space = random_case(rng)
        self.spaces, self.base = Spaces(space, Discrete(3)), self.config
        self.observation = observations(space, rng)
        self.engine = self.made(self.config)
        noise = self.engine.state()["noise"]
        self.engine.restore({**state_of(self.engine.layout, rng), "noise": noise})
        self.outputs = outputs(self.engine, self.observation)

    def made(self, config):
        self.count += 1
        agent = self.kind(config)
        return engines.create(self.engine_name, agent, self.spaces, seed=self.count, device="cpu")

    def mutate(self, config, mutation):
        """(relative change of outputs, parent's engine, its state, the child's state); the child is then the parent."""
        child, parent, state = self.made(config), self.engine, self.engine.state()
        sample = ActivationSample(self.observation)
        carried = transfer(state, parent.layout, child.layout, mutation, sample)
        again = transfer(state, parent.layout, child.layout, mutation, sample)
        child.check_state(Stored(carried, "engine"))
        child.restore(carried)
        held = child.state()
        for part in ("values", *child.layout.moments):
            assert {n: x.shape for n, x in carried[part].items()} == {n: x.shape for n, x in held[part].items()}
            for name, array in carried[part].items():
                assert np.array_equal(array, again[part][name]), "the same seed gave other weights"
                assert np.array_equal(array, held[part][name])
        before, after = self.outputs, outputs(child, self.observation)
        self.engine, self.config, self.outputs = child, config, after
        return np.linalg.norm(after - before) / np.linalg.norm(before), parent, state, held


def check(engine_name, kind, times, seed):
    """Carry out so many mutations of a kind, and check each; returns the largest relative change of outputs."""
    rng, done, worst = np.random.default_rng(seed), 0, 0.0
    while done < times:
        parent = Parent(engine_name, rng)
        for _ in range(min(IN_A_ROW, times - done)):
            found = drawn(parent.config, kind, rng)
            if found is None:
                break
            config, mutation = found
            genome = Genome("own", config, done)
            assert genome_from_json(json.loads(json.dumps(genome.to_json())), parent.base) == genome
            change, engine, before, after = parent.mutate(config, mutation)
            assert np.isfinite(change), mutation
            if kind in (*GROWTH, HYPERPARAMETER):
                assert change < UNCHANGED, (mutation, config.network)
            if kind not in (REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL):
                kept = lag(parent.engine.layout, after["values"])
                np.testing.assert_allclose(kept, lag(engine.layout, before["values"]), rtol=1e-3)
                for moment in engine.layout.moments:
                    total = sum(before[moment][name].sum(dtype=float) for name in engine.layout.trainable)
                    found = sum(x.sum(dtype=float) for x in after[moment].values())
                    assert found == pytest.approx(total, rel=1e-5), (moment, mutation)
            worst, done = max(worst, change), done + 1
    return worst


@pytest.mark.variant
@pytest.mark.parametrize("kind", KINDS)
def test_mutations_keep_what_they_should_whatever_the_spec(engine_name, kind):
    check(engine_name, kind, 8, seed=1)


@pytest.fixture
def eager_on_tensorflow(engine_name, monkeypatch):
    """TensorFlow keeps what XLA compiled until the process ends. That takes 40 memory maps for each mutation, of which
    Linux allows 65,530."""
    if engine_name == "tensorflow":
        from etude.engines.tensorflow import TensorFlowBackend

        def eager(self, function):
            return lambda own, *passed: function(own, *self.put(passed))

        monkeypatch.setattr(TensorFlowBackend, "compile", eager)


@pytest.mark.long
@pytest.mark.usefixtures("eager_on_tensorflow")
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("kind", KINDS)
def test_five_hundred_random_mutations_of_each_kind_keep_what_they_should(engine_name, kind, chunk, record_property):
    record_property("worst", check(engine_name, kind, CHUNK, seed=100 + chunk))
