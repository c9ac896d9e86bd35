"""ILQL's losses on games worked by hand: values at the agent's tokens, bootstrapped from its next one."""

import numpy as np
import pytest

from etude import Transformer
from etude.algorithms import ILQL, ILQLConfig
from etude.base.data import Batch
from etude.base.spaces import ACTION_MASK, Dict, Discrete, MultiBinary, Spaces, Tokens
from etude.engines.numpy import NumpyEngine

N, L, GAMMA, ALPHA, TAU = 5, 7, 0.9, 0.1, 0.8
SPACES = Spaces(Dict({"observation": Tokens("_>abc", L), ACTION_MASK: MultiBinary(N)}), Discrete(N))
MINE = np.array([[1, 1, 0, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0, 0]], np.float32)
COUNT = [6, 4]  # tokens of each game: the first was cut after a token of the world, the second terminated
REWARD = np.array([[0, -1, 0, 0, 0.5, 0, 0], [0, -2, 0, 1, 0, 0, 0]], np.float32)


def batch_and_allowed():
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, N, (2, L)).astype(np.int32) * (np.arange(L) < np.array(COUNT)[:, None])
    allowed = np.where(MINE[..., None] > 0, rng.integers(0, 2, (2, L, N)), 1)
    np.put_along_axis(allowed, tokens[..., None], 1, -1)
    discount, following = GAMMA * MINE, np.zeros((2, L), np.int32)
    discount[1, 3] = 0.0
    following[0, [0, 1, 4]], following[1, [1, 3]] = [1, 4, 6], [3, 4]
    observation = {"observation": tokens, ACTION_MASK: allowed}
    extras = {"mine": MINE, "next_place": following}
    weight = np.array([0.5, 2.0], np.float32)
    return Batch(observation, tokens, REWARD, discount.astype(np.float32), None, weight, np.zeros(2), extras), allowed


class Outputs:
    """A network whose outputs of whole sequences are given."""

    def __init__(self, seed):
        self.values = np.random.default_rng(seed).normal(size=(2, L + 1, 1 + 2 * N)).astype(np.float32)

    def whole(self, tokens):
        return self.values


@pytest.mark.parametrize("monte_carlo", [False, True])
def test_the_loss_is_that_of_each_token_of_the_agent(monte_carlo):
    config = ILQLConfig(
        network=Transformer(1, 8, 2, 8, 8), expectile=TAU, cql_alpha=ALPHA, gamma=GAMMA, monte_carlo=monte_carlo
    )
    agent = NumpyEngine(ILQL(config), SPACES)._bound
    agent.critic, agent.critic_target = Outputs(1), Outputs(2)
    batch, allowed = batch_and_allowed()
    online, lagging, total, gaps = agent.critic.values, agent.critic_target.values, 0.0, 0.0
    for b in range(2):
        places = [int(i) for i in np.flatnonzero(MINE[b])]
        after = [*places[1:], COUNT[b]]
        returns, rest = {}, online[b, COUNT[b], 0] * (b == 0)  # the game that was cut goes on
        for i in reversed(places):
            returns[i] = rest = REWARD[b, i] + GAMMA * rest
        for i, j in zip(places, after, strict=True):
            token, ended = batch.action[b, i], b == 1 and j == COUNT[b]
            target = REWARD[b, i] + (0.0 if ended else GAMMA * online[b, j, 0])
            target = returns[i] if monte_carlo else target
            best = min(lagging[b, i, 1 + token], lagging[b, i, 1 + N + token])
            error = best - online[b, i, 0]
            loss, gap = (TAU if error >= 0 else 1 - TAU) * error**2 / 2, 0.0
            for q in (online[b, i, 1 : 1 + N], online[b, i, 1 + N :]):
                loss += (target - q[token]) ** 2 / 2
                gap += np.log(np.exp(q[allowed[b, i] > 0]).sum()) - q[token]
            total, gaps = total + batch.weight[b] * (loss + ALPHA * gap) / 5, gaps + batch.weight[b] * gap / 5
    found = agent.critic_loss(batch)
    assert float(found.value) == pytest.approx(total, rel=1e-5)
    assert float(found.metrics["cql_gap"]) == pytest.approx(gaps, rel=1e-5)


def test_values_move_the_cloned_policy():
    config = ILQLConfig(network=Transformer(1, 8, 2, 8, 8), beta=3.0)
    engine = NumpyEngine(ILQL(config), SPACES)
    rng = np.random.default_rng(0)
    engine.load(
        {name: value + rng.normal(0, 0.3, value.shape).astype(np.float32) for name, value in engine.weights().items()}
    )
    window = np.array([[2, 3, 4, 0, 0, 0, 0, 3]], np.uint8)
    seen = {"observation": window, ACTION_MASK: np.array([[0, 1, 1, 0, 1]], np.int8)}
    found, state = engine.act(seen, np.zeros((1, engine.state_size), np.float32))
    agent, tokens = engine._bound, window[:, :3].astype(np.int32)
    logits, values = agent.actor["policy"].whole(tokens)[0, -1], agent.critic_target.whole(tokens)[0, -1]
    moved = logits + 3.0 * np.minimum(values[1 : 1 + N], values[1 + N :])
    expected = np.exp(moved) * [0, 1, 1, 0, 1]
    np.testing.assert_allclose(found.probabilities()[0], expected / expected.sum(), rtol=1e-4, atol=1e-6)
    assert state.shape == (1, engine.state_size) and not agent.state_recorded


def test_a_policy_that_is_not_cloned_stays_as_it_was_started():
    spec = Transformer(1, 8, 2, 8, 8)
    layout = NumpyEngine(ILQL(ILQLConfig(network=spec, clone=False)), SPACES).layout
    assert not any(name.startswith("actor.") for name in layout.trainable)
    assert any(name.startswith("actor.") for name in layout.initial)
