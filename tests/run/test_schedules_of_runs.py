"""What schedules of hyperparameters are while a run learns: of each learning phase, the mean over its steps."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, pair
from several_worlds import Meeting

import etude
from etude import Execution, Linear, Mlp, Run
from etude.algorithms import DQN, PPO, A3CConfig, BCConfig, CQLConfig, ESConfig, PPOConfig, ReinforceConfig
from etude.base.errors import ConfigError
from etude.base.events import Learned
from etude.explore import Boltzmann
from etude.run import from_state

FALLING = Linear(1e-2, 0.0)


def rates_of(engine: Any) -> list[tuple[int, float]]:
    """(gradient steps, learning rate) of all calls of an engine from now on."""
    found: list[tuple[int, float]] = []
    learn, apply = engine.learn, engine.apply

    def learned(batches, hyper):
        found.append((batches.weight.shape[0], hyper["learning_rate"]))
        return learn(batches, hyper)

    def applied(gradients, hyper):
        found.append((1, hyper["learning_rate"]))
        return apply(gradients, hyper)

    engine.learn, engine.apply = learned, applied
    return found


def mean(rates: list[tuple[int, float]]) -> float:
    """Over all gradient steps."""
    return float(np.average([rate for _, rate in rates], weights=[steps for steps, _ in rates]))


@pytest.fixture(scope="module")
def cart():
    return etude.record("CartPole-v1", 5, seed=5)


@pytest.mark.parametrize(("steps", "rate", "expected"), [
    (100, FALLING, 0.005), (400, FALLING, 0.005), (250, FALLING, 0.005), (100, Linear(1e-2, 0.0, 0.5), 0.0025),
    (100, Linear(1e-2, 0.0, steps=20), 0.001), (100, Linear.through([(0, 0.0), (10, 1e-2), (20, 0.0)]), 0.001),
])  # fmt: skip
@pytest.mark.long_but("bc", "cql-250-rate2-0.005")
@pytest.mark.parametrize("algorithm", ["bc", "cql"])
def test_a_schedule_on_recorded_data_has_the_mean_over_the_run_that_it_describes(
    algorithm, steps, rate, expected, cart
):
    config: Any = {"bc": BCConfig, "cql": CQLConfig}[algorithm](network=Mlp((4,)), batch_size=8, learning_rate=rate)
    assert config.gradient_steps == 100
    with Run(algorithm, "CartPole-v1", config=config, data=cart, engine="torch") as run:
        rates = rates_of(run.engine)
        run.train(steps)
    assert sum(count for count, _ in rates) == steps
    assert mean(rates) == pytest.approx(expected)


def test_a_schedule_on_recorded_data_is_the_same_mean_in_pieces_with_a_stop_between(cart):
    config = BCConfig(network=Mlp((4,)), batch_size=8, learning_rate=FALLING)
    with Run("bc", "CartPole-v1", config=config, data=cart, engine="torch") as run:
        rates = rates_of(run.engine)
        run.train(30, schedule=etude.Schedule(total=200))
        run.train(115)
        with from_state(run.state(), "CartPole-v1") as again:
            rates_again = rates_of(again.engine)
            again.train(55)
    assert mean(rates + rates_again) == pytest.approx(0.005)
    assert rates == [(30, pytest.approx(0.00925)), (100, pytest.approx(0.006)), (15, pytest.approx(0.003125))]


def online(name: str, cart: Any) -> tuple[Run, int]:
    """(a run with a falling learning rate, after how many steps it begins to learn)."""
    small = {"network": Mlp((4,)), "learning_rate": FALLING}
    dqn = dataclasses.replace(DQN_TINY, learning_rate=FALLING)
    cases: dict[str, tuple[str, Any, int]] = {
        "ppo": ("ppo", dataclasses.replace(PPO_TINY, learning_rate=FALLING), 0),
        "dqn": ("dqn", dqn, 8),
        "mixed": ("dqn", dqn, 8),
        "a3c": ("a3c", A3CConfig(**small, rollout_length=8), 0),
        "reinforce": ("reinforce", ReinforceConfig(**small), 0),
        "es": ("es", ESConfig(**small), 0),
    }
    algorithm, config, begins = cases[name]
    data = [(cart, 0.5), ("sampler", 0.5)] if name == "mixed" else None
    return Run(algorithm, "CartPole-v1", config=config, engine="torch", environments=4, seed=1, data=data), begins


@pytest.mark.parametrize("name", ["ppo", "dqn", "mixed", "a3c", "reinforce", "es"])
def test_every_learning_phase_has_the_mean_of_its_own_steps_and_the_last_one_is_not_at_rate_0(name, cart):
    run, begins = online(name, cart)
    with run:
        rates, ends = rates_of(run.engine), [begins]
        for event in run.steps(640):
            if isinstance(event, Learned):
                ends.append(event.step)
    assert ends[-1] >= 640
    slices = 1_000
    for (_, rate), before, after in zip(rates, ends, ends[1:], strict=False):
        within = np.linspace(before, after, slices, endpoint=False) + (after - before) / slices / 2
        assert rate == pytest.approx(np.mean(1e-2 * np.maximum(0.0, 1 - within / 640)), rel=1e-4)
        assert rate > 0


def test_each_of_several_policies_has_the_mean_of_the_steps_that_its_own_phase_is_for():
    members = {
        "ann": DQN(dataclasses.replace(DQN_TINY, learning_rate=FALLING)),
        "bob": PPO(dataclasses.replace(PPO_TINY, learning_rate=FALLING)),
    }
    with pair(members, partial(Meeting)) as run:
        rates = {policy: rates_of(run.engine.of[policy]) for policy in members}
        run.train(320)
    per_step = 1e-2 / 320
    assert [rate for _, rate in rates["ann"]] == pytest.approx([1e-2 - per_step * (12 + 8 * i) for i in range(39)])
    phases = {rate: None for _, rate in rates["bob"]}
    assert list(phases) == pytest.approx([1e-2 - per_step * (16 + 32 * i) for i in range(10)])


def test_the_values_of_schedules_are_metrics_also_where_a_longer_run_stretches_them(tmp_path):
    config = dataclasses.replace(PPO_TINY, learning_rate=FALLING, clip_range=Linear(0.3, 0.1))
    steps = 2 * config.rollout_length
    with Run("ppo", "CartPole-v1", config=config, engine="torch", environments=1) as run:
        found = [event.metrics for event in run.steps(steps) if isinstance(event, Learned)]
        assert [each["learning_rate"] for each in found] == pytest.approx([7.5e-3, 2.5e-3])
        assert [each["clip_range"] for each in found] == pytest.approx([0.25, 0.15])
        assert "gamma" not in found[0], "only what changes"
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as run:
        later = [event.metrics["learning_rate"] for event in run.steps(steps) if isinstance(event, Learned)]
        assert later == pytest.approx([3.75e-3, 1.25e-3])


@pytest.mark.parametrize(
    ("priorities", "explorer", "recorded"),
    [
        (0.0, None, {"learning_rate", "epsilon"}),
        (0.6, None, {"learning_rate", "epsilon", "importance_exponent"}),
        (0.0, Boltzmann(0.5), {"learning_rate"}),
    ],
)
def test_only_schedules_that_a_run_reads_are_metrics(priorities, explorer, recorded):
    scheduled = {"learning_rate": FALLING, "epsilon": FALLING, "importance_exponent": FALLING}
    config = dataclasses.replace(DQN_TINY, **scheduled, priority_exponent=priorities)
    with Run("dqn", "CartPole-v1", config=config, engine="torch", execution=Execution(explorer=explorer)) as run:
        found = [event.metrics.keys() & scheduled.keys() for event in run.steps(100) if isinstance(event, Learned)]
    assert found and all(each == recorded for each in found)


def test_a_hyperparameter_that_is_set_on_a_run_is_refused_and_what_to_do_is_said():
    with Run("ppo", "CartPole-v1", config=PPO_TINY, engine="torch") as run:
        with pytest.raises(
            ConfigError, match=r"run.learning_rate = 0.5 would change nothing.*load\(path, learning_rate"
        ):
            run.learning_rate = 0.5
        run.note = "one's own"


@dataclasses.dataclass(frozen=True)
class NamedAsParts(PPOConfig):
    history: int = 3
    directory: str = "there"


def test_a_config_may_have_fields_of_the_names_of_parts_of_a_run():
    config = NamedAsParts(**vars(PPO_TINY))
    with Run(PPO(config), "CartPole-v1", engine="torch") as run:
        assert run.directory is None and run.config.directory == "there"
        with pytest.raises(ConfigError, match="run.gamma = 0.5 would change nothing"):
            run.gamma = 0.5
