"""What a run explores with, the explorer that an agent's config describes, or the one that was given; and what rewrites
the steps that it collects."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from etude.adapt.rules import exploration_rules
from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, scaled
from etude.base.seeding import generator
from etude.base.spaces import Box, Spaces
from etude.checkpoint.config_json import from_saved, to_json
from etude.explore import (
    AdjustedExplorer,
    Boltzmann,
    BoltzmannGumbel,
    ByEnvironment,
    CorrelatedSample,
    Each,
    EpsilonGreedy,
    EpsilonZGreedy,
    GaussianNoise,
    Greedy,
    PerActorEpsilonGreedy,
    PerActorGaussianNoise,
    Sample,
    StateDependentSample,
)
from etude.protocols import Engine, Explorer
from etude.rewrite import SPECS, RewriterContext, Rewriters, RewriterSpec
from etude.training.kinds import TrainingContext, kind_of
from etude.training.kinds.kind import EXPLORED_BY, check_rewriting
from etude.training.sources import numbered

FITTING: dict[str, tuple[Any, ...]] = {
    "values": (Boltzmann, BoltzmannGumbel, EpsilonGreedy, EpsilonZGreedy, Greedy, PerActorEpsilonGreedy),
    "actions": (GaussianNoise, Greedy, PerActorGaussianNoise),
    "distribution": (GaussianNoise, Greedy, Sample, CorrelatedSample, StateDependentSample),
}
"""Etude's own explorers, by what an agent acts by. They are data: a checkpoint holds them."""
OWN: tuple[Any, ...] = tuple({each for fitting in FITTING.values() for each in fitting})


def explorer_for(agent: Agent, spaces: Spaces, given: Explorer | None, total: int, count: int) -> Explorer:
    """What explores in a run of `total` environment steps of `count` environments."""
    if given is not None:
        return stretched(given, total)
    make = functools.partial(_explorer_of_config, agent, spaces, total, count)
    return AdjustedExplorer(make) if exploration_rules(agent.config) else make({})


def _explorer_of_config(agent: Agent, spaces: Spaces, total: int, count: int, factors: Mapping[str, float]) -> Explorer:
    """The explorer that an agent's config describes, with these factors on hyperparameters."""
    kind, given = kind_of(agent), agent
    if factors:
        changed = {name: scaled(getattr(agent.config, name), factor) for name, factor in factors.items()}
        agent = copy.copy(given)
        agent.config = dataclasses.replace(given.config, **changed)
    return kind.explorer(agent, spaces, total, count)


def explorer_outside(agent: Agent, spaces: Spaces, given: Explorer | None, total: int, count: int) -> Explorer:
    """What explores in `count` environments outside of a run of `total` steps; ConfigError if nothing does."""
    if given is None and not kind_of(agent).steps_environments:
        raise ConfigError(f"explore = True: {agent} learns from recorded data and explores nothing.")
    explorer = explorer_for(agent, spaces, given, total, count).of(np.arange(count))
    return explorer.inner if isinstance(explorer, ByEnvironment) else explorer  # its actor knows no environments


def stretched(explorer: Any, total: int) -> Any:
    """With its schedules over `total` environment steps, unless it names a total of its own."""
    if isinstance(explorer, Each):
        return Each(tuple(stretched(each, total) for each in explorer.explorers))
    if isinstance(explorer, OWN) and vars(explorer).get("total") == 0:
        return dataclasses.replace(explorer, total=total)
    return explorer


def check(agent: Agent, given: Any, spaces: Spaces) -> None:
    """Raise ConfigError where an explorer does not suit an agent, or none is given and its config describes none."""
    # Raise ConfigError where rules change hyperparameters that nothing explores with.
    kind, read = kind_of(agent), EXPLORED_BY.get(agent.acts_by, [])
    for name in exploration_rules(agent.config):
        if given is not None or not kind.steps_environments or name not in read:
            with_what = "nothing explores with it" if given is None else f"the run explores with {given!r}"
            raise ConfigError(
                f"{type(agent.config).__name__}: adapt changes {name}, but {with_what}. Leave the rule out, or let the "
                "config describe the exploration of a run."
            )
    if given is None:
        if kind_of(agent).steps_environments:
            kind_of(agent).explorer(agent, spaces, total=1, count=1)
        return
    if spaces.agents is not None:
        raise ConfigError("explorer= is for environments of one agent; several are explored as the config says.")
    explorers: tuple[Any, ...] = given.explorers if isinstance(given, Each) else (given,)
    for explorer in explorers:
        if isinstance(explorer, type):
            raise ConfigError(f"explorer = {explorer.__name__} is a class; make one: {explorer.__name__}(...).")
        if isinstance(explorer, OWN):
            _check_fit(agent, explorer, spaces)
        elif not callable(getattr(explorer, "draw", None)):
            raise ConfigError(
                f"explorer = {explorer!r}; expected one of etude.explore, such as EpsilonGreedy(0.1), or an object "
                "with the methods of protocols.Explorer."
            )


def _check_fit(agent: Agent, explorer: Any, spaces: Spaces) -> None:
    acts_by, kind = agent.acts_for(spaces.action), kind_of(agent)
    fitting = FITTING[acts_by]
    if not agent.config.gsde_features:
        fitting = tuple(each for each in fitting if each is not StateDependentSample)
    if kind.log_prob:
        fitting = tuple(each for each in fitting if each in (Sample, StateDependentSample))
    elif type(spaces.action) is not Box:
        fitting = tuple(each for each in fitting if each not in (CorrelatedSample, GaussianNoise))
    if not isinstance(explorer, fitting):
        raise ConfigError(
            f"explorer = {explorer!r} does not suit {agent}, which acts by {acts_by} and learns "
            f"from {kind.name}. Give {' or '.join(each.__name__ for each in fitting)}, or leave it out."
        )
    if kind.log_prob and not explorer.log_prob:
        raise ConfigError(
            f"explorer = {explorer!r} keeps no log probabilities, which {agent} learns from. Give "
            "Sample(log_prob=True), or leave it out."
        )


def plain_explorer(given: Any) -> Any:
    """An explorer as plain data; one that etude does not know, by its text alone."""
    if given is None:
        return None
    known = isinstance(given, Each) and all(isinstance(each, OWN) for each in given.explorers) or isinstance(given, OWN)
    return to_json(given) if known else {"given": repr(given)}


def explorer_from(plain: Any) -> Any:
    """The explorer in a run's description; ConfigError where it has to be given again."""
    if plain is None:
        return None
    if "given" in plain:
        raise ConfigError(f"This run explores with {plain['given']}: give it again, as explorer=.")
    return _object_from(Stored(plain, "description/explorer"), (*OWN, Each), "an explorer")


def _object_from(saved: Stored, kinds: tuple[Any, ...], expected: str) -> Any:
    """An object of one of these classes; its fields may hold schedules."""
    found = from_saved(Any, saved, (*kinds, Linear))
    if not isinstance(found, kinds):
        saved.refuse(expected)
    return found


def as_rewriters(given: Any) -> tuple[Any, ...]:
    """One rewriter, or an iterable of them, as a tuple. ConfigError for what is none."""
    if given is None:
        return ()
    single = callable(given) or isinstance(given, RewriterSpec)
    found = tuple(given) if isinstance(given, Iterable) and not single else (given,)
    for each in found:
        if isinstance(each, type):
            raise ConfigError(f"rewrite = {each.__name__} is a class; make one: {each.__name__}(...).")
        if not callable(each) and not isinstance(each, RewriterSpec):
            raise ConfigError(
                f"rewrite = {each!r}; expected functions of Steps that return Steps, or objects of classes derived "
                "from etude.rewrite.Rewriter, such as RND()."
            )
    return found


def rewriters_for(
    given: tuple[Any, ...], context: TrainingContext, make_engine: Callable[[Agent, int], Engine]
) -> Rewriters | None:
    """What rewrites the steps of a run; None where nothing does. ConfigError where the agent learns from other steps.

    make_engine: an engine of the run's framework for another agent and a seed.
    """
    if not given:
        return None
    check_rewriting(kind_of(context.agent), context)
    spaces, names, found = context.engine.spaces, _names(given), {}
    for number, (name, each) in enumerate(zip(names, given, strict=True)):
        if isinstance(each, RewriterSpec):
            seed = int(generator(context.execution.seed, "rewriter", number).integers(2**31))
            each = each.build(RewriterContext(name, spaces, context.count, seed, make_engine))
        found[name] = each
    return Rewriters(found, spaces)


def plain_rewriters(given: tuple[Any, ...]) -> list[Any]:
    """Rewriters as plain data; those that etude does not know, by their names alone."""
    return [
        to_json(each) if type(each) in SPECS else {"given": name}
        for name, each in zip(_names(given), given, strict=True)
    ]


def rewriters_from(described: dict[str, Any]) -> tuple[Any, ...]:
    """The rewriters in a run's description; ConfigError where they have to be given again."""
    plain = Stored(described.get("rewrite", []), "description/rewrite").items()
    if own := [each.table()["given"].text() for each in plain if "given" in each.table()]:
        raise ConfigError(
            f"This run rewrites its steps with {', '.join(own)}, which is not in its checkpoints: give rewrite=[...] "
            "again, all of it and in the same order, or rewrite=None to go on without."
        )
    return tuple(_object_from(each, SPECS, "a rewriter") for each in plain)


def _names(given: Iterable[Any]) -> list[str]:
    """A name for each rewriter; several of one name are numbered."""
    own = (
        each.name if isinstance(each, RewriterSpec) else getattr(each, "__name__", type(each).__name__)
        for each in given
    )
    return numbered(own, "_")
