"""Runs call what an earlier one compiled, with the numbers that they have alone."""

from __future__ import annotations

import dataclasses

import pytest
from cases import variants_but
from run_cases import DQN_TINY, PPO_TINY, SAC_TINY, differences

from etude import Run
from etude.algorithms import PPO
from etude.base.schedules import Linear
from etude.networks import Mlp
from etude.run.group import CompiledFunctions

PENALISED = dataclasses.replace(PPO_TINY, objective="penalty", learning_rate=0.01)
RUNS = {
    "ppo": ("CartPole-v1", PENALISED, {"learning_rate": 0.003, "kl_coefficient": 0.7, "gamma": 0.9}, 256),
    "dqn": ("CartPole-v1", DQN_TINY, {"learning_rate": Linear(1e-3, 1e-4), "target_update_every": 3}, 96),
    "sac": ("Pendulum-v1", SAC_TINY, {"temperature": 0.3, "tau": 0.1}, 64),
}


def state_of(run, steps):
    """The state of a run after so many steps, without what it is called and how long it took."""
    list(run.steps(steps))
    state = run.state()
    del state["description"], state["progress"]["seconds"]
    return state


@pytest.mark.parametrize("algorithm", variants_but(("ppo",), RUNS))
def test_a_run_with_other_hyperparameters_has_the_numbers_of_one_that_compiles_for_itself(algorithm, engine_name):
    env, config, changes, steps = RUNS[algorithm]
    changed, compiled = dataclasses.replace(config, **changes), CompiledFunctions()
    with Run(algorithm, env, config=config, environments=2, seed=1, engine=engine_name) as first:
        compiled.share(first)
        list(first.steps(steps))
    with (
        Run(algorithm, env, config=changed, environments=2, seed=2, engine=engine_name) as run,
        Run(algorithm, env, config=changed, environments=2, seed=2, engine=engine_name) as alone,
    ):
        compiled.share(run)
        assert differences(state_of(alone, steps), state_of(run, steps)) == []
        if engine_name != "torch":
            assert first.engine.traces == alone.engine.traces > 0 and run.engine.traces == 0


class Halved(PPO):
    """An agent of one's own, which reads a float of its config as it is built."""

    def build(self, make, spaces):
        super().build(make, spaces)
        self.half = self.config.entropy_coefficient / 2

    def loss(self, batch, noise):
        losses = super().loss(batch, noise)
        losses["model"].value = losses["model"].value * self.half
        return losses


@pytest.mark.parametrize(
    "change", [{"network": Mlp((4,))}, {"normalize_advantage": False}, {"max_gradient_norm": None}]
)
def test_agents_that_compile_otherwise_share_nothing(change, engine_name):
    compiled = CompiledFunctions()
    for config in (PPO_TINY, dataclasses.replace(PPO_TINY, **change)):
        run = Run("ppo", "CartPole-v1", config=config, environments=2, engine=engine_name)
        compiled.share(run)
        assert getattr(run.engine, "_compiler", run.engine) is run.engine
        run.close()


def test_agents_of_ones_own_share_what_is_compiled_where_their_configs_are_equal(engine_name):
    compiled, engines = CompiledFunctions(keep=2), []
    for coefficient, seed in ((0.1, 1), (0.2, 1), (0.1, 2)):
        agent = Halved(dataclasses.replace(PPO_TINY, entropy_coefficient=coefficient))
        run = Run(agent, "CartPole-v1", environments=2, seed=seed, engine=engine_name)
        compiled.share(run)
        engines.append(run.engine)
        run.close()
    if engine_name != "torch":
        assert [engine._compiler for engine in engines] == [engines[0], engines[1], engines[0]]
