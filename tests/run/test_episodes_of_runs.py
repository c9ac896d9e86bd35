"""What reaches the replay of a run, step by step: from every rollout."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from run_worlds import Labelled, label_of, labels, length_of, reward_of

from etude import Mlp, Run
from etude.algorithms import DQNConfig, PPOConfig, SACConfig
from etude.base.events import Collected
from etude.replay import NStep, OneStep

GAMMA, SEED, ENVIRONMENTS = 0.5, 5, 4
TINY = {"network": Mlp((4,)), "learning_rate": 1e-4}


def own_network():
    import torch

    return torch.nn.Linear(3, 2)


LATE = {"buffer_size": 4_000, "learning_starts": 200, "batch_size": 8}
CONFIGS = {
    "dqn": DQNConfig(**TINY, **LATE, train_every=8),
    "sac": SACConfig(**TINY, **LATE, train_every=20),
    "ppo": PPOConfig(**TINY, rollout_length=100, minibatch_size=40, epochs=1),
    "dqn-own": DQNConfig(network=own_network, **LATE, train_every=40),
}
ROLLOUTS = {"in process": {}, "two workers": {"workers": 2}, "workers ahead": {"workers": 2, "overlap": True}}


def checked_rows(run, view, n):
    """Check every transition that the view makes of every stored row; returns the (environment, episode, time)s."""
    ring, known = run.learner.replay.ring, labels(SEED, ENVIRONMENTS, 300)
    rows = ring.locate(np.arange(len(ring)))[None]
    batch = view(ring, rows, np.ones(rows.shape, np.float32))
    found, cut = [], set()
    for i in range(rows.shape[1]):
        seed, time = label_of(batch.observation[0, i])
        steps = min(n, length_of(seed) - time)
        after, later = label_of(batch.next_observation[0, i])
        assert after == seed, "a transition joins two episodes"
        assert 1 <= later - time <= steps
        if later - time < steps:
            cut.add((*known[seed], later - 1))
        reward = sum(GAMMA**k * reward_of(seed, time + 1 + k) for k in range(later - time))
        assert batch.reward[0, i] == pytest.approx(reward, rel=1e-5)
        ended = later == length_of(seed) and seed % 2 == 1
        assert batch.discount[0, i] == pytest.approx(0.0 if ended else GAMMA ** (later - time))
        found.append((*known[seed], time))
    assert cut <= {max(row for row in found if row[0] == environment) for environment in range(ENVIRONMENTS)}
    return found


# Where a module of one's own acts, workers cannot collect ahead: `test_overlap_is_refused_where_workers_cannot_act`.
COMBINATIONS = [(a, r) for a in CONFIGS for r in ROLLOUTS if (a, r) != ("dqn-own", "workers ahead")]


@pytest.mark.parametrize(("algorithm", "rollout"), COMBINATIONS)
def test_every_stored_transition_is_one_that_the_environment_made(algorithm, rollout):
    config = CONFIGS[algorithm]
    env = partial(Labelled, algorithm == "sac")
    settings = {"environments": ENVIRONMENTS, "seed": SEED, "engine": "torch", **ROLLOUTS[rollout]}
    total = 400 if algorithm == "ppo" else 403  # one rollout, or what three environments take a step more of
    with Run(algorithm.split("-")[0], env, config=config, **settings) as run:
        if algorithm == "ppo":
            run.learner.update_schedule.forgets = False  # keeps what was learned from
        events = list(run.steps(total))
        assert run.step == total == len(run.learner.replay)
        found = checked_rows(run, OneStep(GAMMA), 1)
        checked_rows(run, NStep(GAMMA, 3), 3)
    assert len(set(found)) == total
    for environment in range(ENVIRONMENTS):  # nothing is left out, and the first three took the odd steps
        own = sorted((episode, time) for column, episode, time in found if column == environment)
        lengths = {episode: time + 1 for episode, time in own}
        assert own == [(episode, time) for episode in sorted(lengths) for time in range(lengths[episode])]
        assert len(own) == 100 + (environment < total - 400)
    known = {pair: seed for seed, pair in labels(SEED, ENVIRONMENTS, 300).items()}
    ends = [end for event in events if isinstance(event, Collected) for end in event.episodes]
    assert len(ends) == run.learner.progress.episodes > 50
    for end in ends:
        seed = known[end.environment, end.episode]
        length = length_of(seed)
        assert (end.length, end.truncated) == (length, seed % 2 == 0)
        assert end.total == pytest.approx(sum(reward_of(seed, time) for time in range(1, length + 1)))
