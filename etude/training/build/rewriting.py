"""The rewriters of a run: from what the user gave, and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.seeding import generator
from etude.checkpoint.config_json import from_saved, to_json
from etude.protocols import Engine
from etude.rewrite import SPECS, RewriterContext, Rewriters, RewriterSpec
from etude.training.kinds import TrainingContext, kind_of


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
    kind_of(context.agent).check_rewriting(context)
    spaces, names, found = context.engine.spaces, _names(given), {}
    for number, (name, each) in enumerate(zip(names, given, strict=True)):
        if isinstance(each, RewriterSpec):
            seed = int(generator(context.setup.seed, "rewriter", number).integers(2**31))
            each = each.build(RewriterContext(name, spaces, context.count, seed, make_engine))
        found[name] = each
    return Rewriters(found, spaces)


def described(given: tuple[Any, ...]) -> list[Any]:
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
    return tuple(_spec_from(each) for each in plain)


def _spec_from(saved: Stored) -> Any:
    found = from_saved(Any, saved, (*SPECS, Linear))
    if not isinstance(found, RewriterSpec):
        saved.refuse("a rewriter")
    return found


def _names(given: Iterable[Any]) -> list[str]:
    """A name for each rewriter; several of one name are numbered."""
    names: list[str] = []
    for each in given:
        base = name = each.name if isinstance(each, RewriterSpec) else getattr(each, "__name__", type(each).__name__)
        number = 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return names
