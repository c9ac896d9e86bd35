"""Loops that are written from the parts of a run give the numbers of the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
LOOPS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def executed(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"etude": etude, "print": lambda *_: None}
    exec(code, names)
    return names


@pytest.mark.parametrize(
    ("code", "algorithm", "total", "steps"),
    [(LOOPS[0], "ppo", "10_000", 1_280), (LOOPS[1], "dqn", "3_072", 1_280)],  # as long as some updates take
)
def test_the_loops_of_the_page_are_short_and_give_the_weights_of_a_run(code, algorithm, total, steps):
    assert len(code.splitlines()) <= 25
    before, after = code.split(f"total = {total}")
    by_hand = executed(f"{before}total = {steps}{after}")["engine"].weights()
    with etude.Run(algorithm, "CartPole-v1", seed=1) as run:
        run.train(steps)
        expected = run.engine.weights()
    assert expected.keys() == by_hand.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(by_hand[name], value, err_msg=name)


def test_parts_are_made_with_workers_hyperparameters_and_an_explorer():
    explorer = etude.explore.Boltzmann(0.5)
    execution = etude.Execution(seed=3, workers=2, environments=2, explorer=explorer)
    parts = etude.assemble("dqn", "CartPole-v1", total=100, execution=execution, gamma=0.9)
    try:
        steps = parts.rollout.collect(5, 0)
        assert steps.shape == (5, 2)
        assert parts.agent.config.gamma == 0.9
        assert isinstance(parts.explorer, etude.explore.Boltzmann)
    finally:
        parts.rollout.close()


def test_algorithms_without_a_rollout_are_refused():
    with pytest.raises(ConfigError, match="BC learns from recorded data alone: there is no rollout. Use a Run."):
        etude.assemble("bc", "CartPole-v1", total=100)


def test_terms_of_a_loss_that_read_recorded_data_have_it_in_a_loop_of_ones_own():
    def cloning(agent, batch, noise):
        return -etude.ops.mean(agent.act(batch.observation).log_prob(batch.action))

    config = etude.algorithms.PPOConfig(network=etude.Mlp((4,)), rollout_length=16, minibatch_size=16, epochs=1)
    agent = etude.Auxiliary(etude.algorithms.PPO(config), cloning, etude.record("CartPole-v1", 2), name="cloning")
    parts = etude.assemble(agent, "CartPole-v1", total=16, execution=etude.Execution(environments=1))
    try:
        parts.learner.take(parts.rollout.collect(16, 0))
        assert "cloning" in parts.learner.learn_if_due().metrics
    finally:
        parts.rollout.close()
