"""Randomness without global state: every generator and every episode's seed is derived from the run's seed and the
names of what it is for, so that neither the number of workers nor the order of calls changes a number."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from etude.base.checks import Stored


class MemberSeeds(NamedTuple):
    """The seeds of several runs that are stepped together, in the place of one. Environment number c of all is number
    c % environments of the run with the seed `seeds[c // environments]`: what is drawn for an environment is what the
    run would draw alone."""

    seeds: tuple[int, ...]
    environments: int

    def alone(self, environment: int) -> tuple[int, int]:
        """(the seed of the environment's run, its number in there)."""
        member, number = divmod(environment, self.environments)
        return self.seeds[member], number


class GroupSeeds(NamedTuple):
    """The seed of a run in which the episodes of `size` environments next to each other begin alike: each takes the
    seed of an episode of environment number c // size. All else is as with `seed` itself."""

    seed: int
    size: int


RunSeed = int | MemberSeeds | GroupSeeds
_FIELDS = ("state", "increment", "has_uint32", "uinteger")  # of a generator's state


def environment_name(run_seed: RunSeed, environment: int) -> int | str:
    """What messages call an environment: its number, and of several runs the seed of its run."""
    if not isinstance(run_seed, MemberSeeds):
        return environment
    seed, number = run_seed.alone(environment)
    return f"{number} of seed {seed}"


def _entropy(run_seed: RunSeed, purpose: str, *numbers: int) -> np.random.SeedSequence:
    if isinstance(run_seed, MemberSeeds):  # the first number is that of an environment
        run_seed, number = run_seed.alone(numbers[0])
        numbers = (number, *numbers[1:])
    if isinstance(run_seed, GroupSeeds):
        first = numbers[0] // run_seed.size if purpose == "episode" else numbers[0]
        run_seed, numbers = run_seed.seed, (first, *numbers[1:])
    words: list[int] | np.ndarray = [run_seed, zlib.crc32(purpose.encode()), *numbers]
    if min(words) >= 0 and max(words) < 2**32:
        words = np.array(words, np.uint32)  # the same sequence; halves the cost, which every short episode pays
    return np.random.SeedSequence(words)


def generator(run_seed: RunSeed, purpose: str, *numbers: int) -> np.random.Generator:
    """A generator that belongs to (run seed, purpose, numbers): `generator(1, "explore", environment)`."""
    return np.random.Generator(np.random.PCG64(_entropy(run_seed, purpose, *numbers)))


def episode_seed(run_seed: RunSeed, environment: int, episode: int) -> int:
    """The seed that `reset` gets for one episode of one environment; in [0, 2**31)."""
    return int(_entropy(run_seed, "episode", environment, episode).generate_state(1)[0] >> 1)


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator as plain numbers and strings, fit for JSON."""
    state = rng.bit_generator.state
    return {
        "state": str(state["state"]["state"]),
        "increment": str(state["state"]["inc"]),
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def reseeded(state: Any, run_seed: int, place: str = "") -> Any:
    """The state of a run for a copy with another seed: every generator is one of that seed, which depends on where the
    saved one was, and `noise` beside the `generator` that has drawn it is drawn anew."""
    if not isinstance(state, dict):
        return state
    if state.keys() == set(_FIELDS):
        return generator_state(generator(run_seed, f"{place} {state['state']}"))
    found = {name: reseeded(value, run_seed, f"{place}/{name}") for name, value in state.items()}
    if state.keys() == {"noise", "generator"}:
        rng = generator(run_seed, f"{place} {state['generator']}")
        found["noise"] = {name: rng.standard_normal(array.shape, np.float32) for name, array in state["noise"].items()}
    return found


def check_generator(saved: Stored) -> None:
    """Raise CheckpointError where this is not what `generator_state` returned."""
    held = saved.fields(_FIELDS)
    for name in ("state", "increment"):
        text = held[name].text()
        if not (text.isascii() and text.isdigit() and len(text) < 40 and int(text) < 2**128):
            held[name].refuse("a whole number below 2**128, as text")
    held["has_uint32"].whole(0, 1)
    held["uinteger"].whole(0, 2**32 - 1)


def restore_generator(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Put a generator where `generator_state` found it."""
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(state["state"]), "inc": int(state["increment"])},
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }
