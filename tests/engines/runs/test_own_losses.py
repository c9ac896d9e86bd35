"""A loss of one's own that does not return `Losses`."""

from __future__ import annotations

import pytest

import etude
from etude import Loss, Losses, Mlp, Run, ops
from etude.algorithms import DQNConfig
from etude.base.errors import ConfigError


class Bare(etude.algorithms.DQN):
    """Returns what it minimises, as it is."""

    def loss(self, batch, noise):
        return ops.mean(ops.square(self.q(batch.observation)))


class Unnamed(Bare):
    def loss(self, batch, noise):
        return Losses(q=super().loss(batch, noise))


class Unwrapped(Bare):
    def loss(self, batch, noise):
        return Loss(super().loss(batch, noise))


class OfEachExample(Bare):
    def loss(self, batch, noise):
        return Losses(q=Loss(ops.mean(self.q(batch.observation), -1)))


def test_a_loss_that_is_no_scalar_is_told_with_its_shape(engine_name):
    config = DQNConfig(network=Mlp((4,)), learning_starts=8, batch_size=4)
    said = r"OfEachExample.loss returned 'q' with shape \[4\]; expected a scalar"
    with Run(OfEachExample(config), "CartPole-v1", engine=engine_name) as run, pytest.raises(ConfigError, match=said):
        run.train(16)


@pytest.mark.parametrize(
    ("agent", "expected"), [(Bare, "where a Losses is"), (Unnamed, "where a Loss is"), (Unwrapped, "where a Losses is")]
)
def test_what_a_loss_returns_is_told_with_what_is_expected(engine_name, agent, expected):
    config = DQNConfig(network=Mlp((4,)), learning_starts=8, batch_size=4)
    said = rf"{agent.__name__}.loss returned a \w+ {expected}.*q=Loss\(value\)"
    with Run(agent(config), "CartPole-v1", engine=engine_name) as run, pytest.raises(ConfigError, match=said):
        run.train(16)
