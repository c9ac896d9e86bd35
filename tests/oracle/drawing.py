"""What hypothesis draws: scripts of episodes, and how many whole runs a test is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scripted_worlds import TERMINATED, TRUNCATED, Presence, Script

REWARDS = st.integers(-8, 8).map(lambda x: x / 4)  # sums of them are exact in float32


def drawn(few: int, many: int, **strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """Let hypothesis draw the arguments of a test: `few` examples, the same ones each time (0: none), and `many` with
    --whole, where what fails is made small. `folder` is one for files, the same for all examples."""

    def decorate(test: Callable[..., None]) -> Any:
        def run(examples: int, tmp_path: Path) -> None:
            slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
            options = settings(
                max_examples=examples,
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=slow,
                phases=[Phase.generate, Phase.shrink] if examples == many else [Phase.generate],
            )
            folder = {"folder": st.just(tmp_path)} if "folder" in inspect.signature(test).parameters else {}
            options(given(**strategies, **folder)(test))()

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        amounts = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.long)]
        return pytest.mark.parametrize("examples", amounts if few else amounts[1:])(run)

    return decorate


def scripts(masks: int = 0, most: int = 7) -> st.SearchStrategy[tuple[Script, ...]]:
    """Episodes of one agent, of up to `most` steps. masks: of how many actions; 0: no masks."""
    one = st.builds(
        Script,
        length=lengths(most),
        how=st.sampled_from([TERMINATED, TRUNCATED, "both"]),
        rewards=st.lists(REWARDS, min_size=1, max_size=5).map(tuple),
        masks=mask_lists(masks),
    )
    return st.lists(one, min_size=1, max_size=4).map(tuple)


def shown_early(scripts: tuple[Script, ...]) -> tuple[Script, ...]:
    """The same, where masks that only some of the episodes show are shown by all: random play before a run finds them
    in its first episode."""
    masks = [mask for script in scripts for mask in script.masks if mask is not None]

    def shows(script: Script) -> bool:
        return any(
            script.mask(time, agent) is not None
            for time in range(script.length) for agent in range(max(1, len(script.presence)))
            if not script.presence or script.acts(time, agent)
        )  # fmt: skip

    def turns_show(script: Script) -> bool:
        return any(script.mask(t, script.order[t % len(script.order)]) is not None for t in range(script.length))

    return tuple(
        script if not masks or (turns_show if script.order else shows)(script) else replace(script, masks=(masks[0],))
        for script in scripts
    )


def lengths(most: int) -> st.SearchStrategy[int]:
    """Of episodes; the first example is not the shortest."""
    return st.sampled_from([min(4, most), *range(1, most + 1)])


def mask_lists(actions: int) -> st.SearchStrategy[tuple]:
    """Masks of so many actions at each time, with at least one legal action; None where no mask is shown."""
    if not actions:
        return st.just((None,))
    mask = st.lists(st.booleans(), min_size=actions, max_size=actions).filter(any).map(tuple)
    return st.lists(st.none() | mask, min_size=1, max_size=5).map(tuple)


@st.composite
def scripts_of_agents(draw: Any, agents: int, masks: int = 0, most: int = 7) -> tuple[Script, ...]:
    """Episodes of agents that act at once: one of them stays until the end; others come late, leave early, in both
    ways, stay, or never come."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(lengths(most))
        joins = st.integers(0, length - 1)
        staying, stays = draw(st.integers(0, agents - 1)), Presence()
        leaving = joins.flatmap(
            lambda at, length=length: st.builds(
                Presence,
                joins=st.just(at),
                leaves=st.integers(at + 1, length),
                how=st.sampled_from([TRUNCATED, TERMINATED]),
            )
        )
        # The first example has agents that are truncated before the others.
        others = leaving | st.just(Presence(joins=None)) | st.builds(Presence, joins=joins)
        presence = tuple(stays if i == staying else draw(others) for i in range(agents))
        found.append(
            Script(
                length=length,
                how=draw(st.sampled_from([TERMINATED, TRUNCATED])),
                rewards=draw(st.lists(REWARDS, min_size=1, max_size=5).map(tuple)),
                masks=draw(mask_lists(masks)),
                presence=presence,
            )
        )
    return tuple(found)


@st.composite
def scripts_of_turns(draw: Any, agents: int, masks: int = 0, most: int = 9) -> tuple[Script, ...]:
    """Episodes of agents that take turns, in any order; some have several turns in a row, some none."""
    one = st.builds(
        Script,
        length=lengths(most),
        how=st.sampled_from([TERMINATED, TRUNCATED]),
        rewards=st.lists(REWARDS, min_size=1, max_size=5).map(tuple),
        masks=mask_lists(masks),
        order=st.just(tuple(range(agents))) | st.lists(st.integers(0, agents - 1), min_size=1, max_size=6).map(tuple),
    )
    return draw(st.lists(one, min_size=1, max_size=3).map(tuple))


def pieces(total: int, most: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    """The lengths of up to `most` calls of `train` that take `total` steps together."""
    cuts = st.sets(st.integers(1, total - 1), max_size=most - 1) if total > 1 else st.just(set())
    return cuts.map(lambda at: tuple(b - a for a, b in zip([0, *sorted(at)], [*sorted(at), total], strict=True)))
