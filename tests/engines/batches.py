"""Random batches for the cases, and acting on random observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case

from etude.base import trees
from etude.base.data import Batch
from etude.base.spaces import Dict, Discrete, Hybrid, MultiBinary, MultiDiscrete, Spaces, Tuple
from etude.engines.numpy import NumpyEngine

LENGTH = 6  # of sequences
GAMES = ("token_sequences", "token_pairs", "token_games")
IN_A_ROW = ("sequences", "return_sequences", "advantage_sequences", "unrolls")  # [B, LENGTH]; of two, weights are [B]


def random_values(space: Any, rng: np.random.Generator, *shape: int) -> Any:
    """Random members of a space, [*shape, ...]; a mask always allows the first action."""
    if isinstance(space, Dict):
        found = {key: random_values(part, rng, *shape) for key, part in space.spaces.items()}
        if "action_mask" in found:
            found["action_mask"][..., 0] = 1
        return found
    if isinstance(space, Tuple):
        return tuple(random_values(part, rng, *shape) for part in space.spaces)
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, shape)
    if isinstance(space, MultiDiscrete):
        return rng.integers(0, space.nvec, (*shape, *space.nvec.shape))
    if isinstance(space, MultiBinary):
        return rng.integers(0, 2, (*shape, space.n)).astype(np.int8)
    if isinstance(space, Hybrid):
        each = [random_values(part, rng, *shape) for part in (space.numbers, space.choices)]
        return np.concatenate(each, -1).astype(np.float32)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (*shape, *space.shape)).astype(np.uint8)
    return rng.uniform(-0.9, 0.9, (*shape, *space.shape)).astype(np.float32)


def random_batches(case: Case, k: int, n: int, seed: int = 0) -> Batch:
    """k random batches of n transitions, or sequences or unrolls of them, that fit the case."""
    rng = np.random.default_rng(seed)
    spaces, agent = case.spaces, case.agent()
    if agent.learns_from in GAMES:
        return random_games(spaces, rng, k, n)
    shape: tuple[int, ...] = (k, n, LENGTH) if agent.learns_from in IN_A_ROW else (k, n)
    observation = random_values(spaces.observation, rng, *shape)
    following = random_values(spaces.observation, rng, *shape)
    action = random_values(spaces.action, rng, *shape)
    if spaces.masked:
        allowed = np.take_along_axis(observation["action_mask"], action[..., None], -1)[..., 0] == 1
        action = np.where(allowed, action, 0)
    shape = shape if spaces.agents is None else (k, n, len(spaces.agents))
    normal = lambda: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    ends = 1.0 if agent.learns_from == "returns" else 0.2  # whole returns need little bootstrapping
    extras = {"log_prob": -1.5 + 0.1 * normal(), "advantage": normal(), "return": normal(), "value": normal()}
    on_policy = dict.fromkeys(("advantages", "advantage_sequences", "demonstrations", "gradients"), tuple(extras))
    returns = dict.fromkeys(("episodes", "transitions_and_returns"), ("return",))
    wanted = (on_policy | returns | {"unrolls": ("log_prob",), "lambda_returns": ("return", "value")}).get(
        agent.learns_from, ()
    )
    bootstraps = agent.learns_from not in (
        "advantages",
        "advantage_sequences",
        "lambda_returns",
        "episodes",
        "gradients",
    )
    if spaces.agents is not None:
        extras["active"] = (rng.random(shape) < 0.8).astype(np.float32)
        wanted = (*wanted, "active")
    batch = Batch(
        observation=observation,
        action=action,
        reward=normal(),
        discount=np.where(rng.random(shape) < ends, 0.0, 0.9).astype(np.float32),
        next_observation=following if bootstraps else None,
        weight=rng.uniform(0.5, 1.0, shape if agent.learns_from in IN_A_ROW[2:] else (k, n)).astype(np.float32),
        index=np.zeros((k, n), np.int64),
        extras={name: extras[name] for name in wanted},
    )
    if agent.learns_from == "demonstrations":
        batch.extras["expert"] = random_demonstrations(spaces, rng, k, n)
    if agent.learns_from == "transitions_and_next_actions":
        batch.extras["next_action"] = random_values(spaces.action, rng, k, n)
        batch.extras["next_recorded"] = (rng.random((k, n)) < 0.8).astype(np.float32)
    if agent.learns_from == "unrolls":
        batch.extras["goes_on"] = np.tile(np.float32([1, 0, 1, 1, 1, 1]), (k, n, 1))
    if agent.learns_from == "advantage_sequences":
        batch.extras["first"] = np.tile(np.float32([0, 0, 1, 0, 0, 1]), (k, n, 1))
        batch.extras["recurrent_state"] = random_memories(case, rng, k, n)
    if agent.learns_from == "return_sequences":
        time, stop = rng.integers(0, 4, (k, n, 1)) + np.arange(LENGTH), rng.integers(1, LENGTH + 1, (k, n, 1))
        batch.extras["mask"] = np.float32(np.arange(LENGTH) < stop)
        batch.extras.update({"return": normal(), "time": time.astype(np.int32), "best_return": normal()[..., 0]})
    if agent.learns_from == "sequences":
        batch.extras.update(random_extras_of_sequences(case, rng, k, n))
    return batch


def random_games(spaces: Spaces, rng: np.random.Generator, k: int, n: int) -> Batch:
    """Games of LENGTH tokens and fewer, of which every second one is the agent's."""
    shape, tokens = (k, n, LENGTH), rng.integers(1, spaces.action.n, (k, n, LENGTH)).astype(np.int32)
    count, place = rng.integers(2, LENGTH + 1, (k, n, 1)), np.arange(LENGTH)
    tokens = np.where(place < count, tokens, 0)
    mine = (place < count) & (place % 2 == 0)
    allowed = np.where(mine[..., None], rng.integers(0, 2, (*shape, spaces.action.n)), 1).astype(np.int8)
    np.put_along_axis(allowed, tokens[..., None], 1, -1)
    ends = (place + 2 >= count) & (rng.random((k, n, 1)) < 0.5)
    return Batch(
        observation={"observation": tokens, "action_mask": allowed},
        action=tokens,
        reward=(mine * rng.standard_normal(shape)).astype(np.float32),
        discount=(0.9 * (mine & ~ends)).astype(np.float32),
        next_observation=None,
        weight=rng.uniform(0.5, 1.0, (k, n)).astype(np.float32),
        index=np.zeros((k, n), np.int64),
        extras={
            "mine": mine.astype(np.float32),
            "next_place": (mine * np.minimum(place + 2, count)).astype(np.int32),
            "log_prob": (mine * rng.uniform(-2.0, 0.0, shape)).astype(np.float32),
            "advantage": rng.standard_normal((k, n)).astype(np.float32),
        },
    )


def random_demonstrations(spaces: Spaces, rng: np.random.Generator, k: int, n: int) -> dict[str, Any]:
    """Steps of an expert that always takes the first action."""
    action = random_values(spaces.action, rng, k, n)
    return {
        "observation": random_values(spaces.observation, rng, k, n),
        "action": np.zeros_like(action),
        "next_observation": random_values(spaces.observation, rng, k, n),
        "discount": np.where(rng.random((k, n)) < 0.2, 0.0, 0.9).astype(np.float32),
    }


def random_extras_of_sequences(case: Case, rng: np.random.Generator, k: int, n: int) -> dict[str, np.ndarray]:
    """Sequences of which up to 2 steps burn in, and up to 3 of the others are filled up."""
    time = np.arange(LENGTH)
    before, stop = rng.integers(0, 3, (k, n, 1)), rng.integers(LENGTH - 3, LENGTH + 1, (k, n, 1))
    extras = {"mask": np.float32((time >= before) & (time < stop)), "first": np.zeros((k, n, LENGTH), np.float32)}
    extras["first"][..., 0] = before[..., 0] == 0
    if case.config.stored_state:
        extras["recurrent_state"] = random_memories(case, rng, k, n)
    return extras


def random_memories(case: Case, rng: np.random.Generator, *shape: int) -> np.ndarray:
    """[*shape, M]."""
    size = NumpyEngine(case.agent(), case.spaces).state_size
    return rng.uniform(-0.5, 0.5, (*shape, size)).astype(np.float32)


def acted(actor: Any, observation: Any) -> Any:
    """What an engine's `act` returns; with random memories where it keeps them."""
    return actor.act(*_inputs(actor, observation))


def valued(actor: Any, observation: Any) -> Any:
    """What an engine's `value` returns; with random memories where it keeps them."""
    return actor.value(*_inputs(actor, observation))


def _inputs(actor: Any, observation: Any) -> tuple:
    if not actor.state_size:
        return (observation,)
    n = len(trees.leaves(observation)[0])
    return observation, np.random.default_rng(9).uniform(-0.5, 0.5, (n, actor.state_size)).astype(np.float32)


def pick(batches: Batch, i: int) -> Batch:
    """Batch number i of stacked ones."""
    following = None if batches.next_observation is None else trees.rows(batches.next_observation, i)
    return Batch(
        trees.rows(batches.observation, i),
        batches.action[i],
        batches.reward[i],
        batches.discount[i],
        following,
        batches.weight[i],
        batches.index[i],
        {name: trees.rows(value, i) for name, value in batches.extras.items()},
    )
