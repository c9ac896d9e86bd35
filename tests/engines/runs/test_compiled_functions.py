"""Engines call what an earlier one compiled, with the numbers that they have alone."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref

import pytest
from batches import random_batches
from cases import BOTH, CASES, variants_but
from run_cases import DQN_TINY, PPO_TINY, SAC_TINY, differences

from etude import Recurrent, Run, engines
from etude.adapt import Adapt
from etude.algorithms import PPO
from etude.base.errors import ConfigError
from etude.base.events import Learned
from etude.base.schedules import Linear
from etude.engines.programs import KEPT, LAST, PROGRAMS
from etude.networks import Mlp
from etude.optimizers import SGD

PENALISED = dataclasses.replace(PPO_TINY, objective="penalty", learning_rate=0.01)
RUNS = {
    "ppo": ("CartPole-v1", PENALISED, {"learning_rate": 0.003, "kl_coefficient": 0.7, "gamma": 0.9}, 256),
    "dqn": ("CartPole-v1", DQN_TINY, {"learning_rate": Linear(1e-3, 1e-4), "target_update_every": 3}, 96),
    "sac": ("Pendulum-v1", SAC_TINY, {"temperature": 0.3, "tau": 0.1}, 64),
}
NAMED = {case.name: case for case in CASES}
PPO_CASE = NAMED["ppo discrete"]


@pytest.fixture(autouse=True)
def _nothing_is_compiled():
    forget()


def forget():
    """Let all that comes compile for itself."""
    PROGRAMS.clear()
    LAST.clear()


def state_of(run, steps):
    """The state of a run after so many steps, without what it is called and how long it took."""
    list(run.steps(steps))
    state = run.state()
    del state["description"], state["progress"]["seconds"]
    return state


@pytest.mark.parametrize("algorithm", variants_but({"ppo": BOTH}, RUNS))
def test_a_run_with_other_hyperparameters_has_the_numbers_of_one_that_compiles_for_itself(algorithm, engine_name):
    env, config, changes, steps = RUNS[algorithm]
    changed = dataclasses.replace(config, **changes)
    with Run(algorithm, env, config=config, environments=2, seed=1, engine=engine_name) as first:
        list(first.steps(steps))
    traces = getattr(first.engine, "traces", 0)
    with Run(algorithm, env, config=changed, environments=2, seed=2, engine=engine_name) as run:
        state = state_of(run, steps)
    if engine_name != "torch":
        assert run.engine._learning is first.engine._learning and run.engine.traces == traces > 0
    forget()
    with Run(algorithm, env, config=changed, environments=2, seed=2, engine=engine_name) as alone:
        assert differences(state_of(alone, steps), state) == []


def engine_of(case, engine_name, config=None, seed=0, agent=None):
    """An engine that compiles, on torch too."""
    agent = agent or dataclasses.replace(case, config=config or case.config).agent()
    return engines.create(engine_name, agent, case.spaces, seed=seed, compiled=True, device="cpu")


def changed_fields(config):
    """By field, the config with another value of it, where that fits the others."""
    others = {"optimizer": SGD(), "max_gradient_norm": 2.0, "adapt": (Adapt("noise_scale", "learning_rate"),)}
    others["network"] = Recurrent(Mlp((4,)), 4) if isinstance(config.network, Recurrent) else Mlp((4,))
    for field in dataclasses.fields(config):
        value, other = getattr(config, field.name), others.get(field.name)
        if isinstance(value, int | float):
            other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2 + 0.01
        if other is not None and field.name != "random_shift":  # there are no images
            with contextlib.suppress(ConfigError):
                yield field.name, dataclasses.replace(config, **{field.name: other})


def test_every_algorithm_shares_what_is_compiled_with_its_equals(engine_name):
    for case in {case.algorithm: case for case in CASES}.values():
        one, other = (engine_of(case, engine_name, seed=seed) for seed in (0, 1))
        assert one._learning is other._learning and one._acting is other._acting, case.name


@pytest.mark.parametrize("name", ["dqn", "ppo box, normalised", "sac", "r2d2, masked", "mappo"])
def test_each_field_of_a_config_is_an_argument_of_the_step_or_has_a_program_of_its_own(name, engine_name):
    case, seen = NAMED[name], set()
    first, again = (engine_of(case, engine_name, seed=seed) for seed in (0, 1))
    assert again._learning is first._learning and again._acting is first._acting
    for field, config in changed_fields(case.config):
        engine = engine_of(case, engine_name, config)
        is_argument = field in first.layout.hyper and engine.layout.hyper == first.layout.hyper
        assert (engine._learning is first._learning) == is_argument, field
        assert engine._acting is not first._acting, field
        seen.add(is_argument)
    assert seen == {True, False}


SCALE = 1.0


class Scaled(PPO):
    """An agent of one's own, which reads a number of its module."""

    def loss(self, batch, noise):
        losses = super().loss(batch, noise)
        losses["model"].value = losses["model"].value * SCALE
        return losses


def test_a_class_of_ones_own_is_known_by_itself_and_what_it_reads(engine_name, monkeypatch):
    if engine_name == "torch":
        pytest.skip("its compiler traces no means over replicas, which PPO's advantages take")

    def learned():
        engine = engine_of(PPO_CASE, engine_name, agent=Scaled(PPO_CASE.config))
        return engine, engine.learn(random_batches(PPO_CASE, 1, 8), PPO_CASE.hyper()).losses["model"]

    (first, loss), (again, same) = learned(), learned()
    assert again._learning is first._learning and same == loss
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    other, doubled = learned()
    assert other._learning is not first._learning and doubled == pytest.approx(2 * loss)


def test_the_time_that_compiling_takes_is_told_once(engine_name):
    told = []
    for _ in range(2):
        with Run("dqn", "CartPole-v1", config=DQN_TINY, environments=2, engine=engine_name) as run:
            told.append([event.compile_seconds for event in run.steps(96) if isinstance(event, Learned)])
    compiles = engine_name != "torch"
    assert (told[0][0] > 0.0) == compiles and not any((*told[0][1:], *told[1]))


def test_classes_of_one_name_share_nothing(engine_name):
    kinds = [type("Mine", (PPO,), {"act": lambda self, x: PPO.act(self, x)}) for _ in range(2)]
    one, other = (engine_of(PPO_CASE, engine_name, agent=kind(PPO_CASE.config)) for kind in kinds)
    assert one._acting is not other._acting and one._learning is not other._learning


class Halved(PPO):
    """An agent of one's own, which reads a float of its config as it is built."""

    def build(self, make, spaces):
        super().build(make, spaces)
        self.half = self.config.entropy_coefficient / 2


def test_agents_of_ones_own_share_what_is_compiled_where_they_are_built_alike(engine_name):
    found = []
    for coefficient, seed in ((0.1, 1), (0.2, 1), (0.1, 2)):
        config = dataclasses.replace(PPO_CASE.config, entropy_coefficient=coefficient)
        found.append(engine_of(PPO_CASE, engine_name, seed=seed, agent=Halved(config)))
    first, other, again = found
    assert first._learning is again._learning and first._learning is not other._learning


class Compared(PPO):
    """An agent of one's own, whose loss computes with the first weights of its networks."""

    def build(self, make, spaces):
        super().build(make, spaces)
        self.first = [*self.model.values()]


def test_agents_that_hold_a_network_elsewhere_compile_for_themselves(engine_name):
    one, other = (engine_of(PPO_CASE, engine_name, agent=Compared(PPO_CASE.config)) for _ in range(2))
    assert one._learning is not other._learning and one._learning.layout is one.layout


def test_nothing_is_kept_of_an_engine_and_few_programs_are(engine_name):
    engine = engine_of(PPO_CASE, engine_name)
    assert engine._acting.layout is not engine.layout
    alive = weakref.ref(engine), *(weakref.ref(part) for part in engine.layout.parts.values())
    del engine
    for width in range(1, KEPT + 2):
        config = dataclasses.replace(PPO_CASE.config, network=Mlp((width,)))
        assert engine_of(PPO_CASE, engine_name, config)._acting in PROGRAMS.values()
    gc.collect()
    assert not any(each() for each in alive) and len(PROGRAMS) == KEPT
