"""The table of algorithms in README.md: which there are, and what kind each is of, from their classes."""

from __future__ import annotations

from markdown_table import table, title

from etude.agent import Agent
from etude.algorithms import ALGORITHMS, for_several
from etude.base.spaces import Box, Discrete
from etude.config import OfflineConfig, OffPolicyConfig


def algorithms() -> str:
    """The table, with a link to the page of each algorithm."""
    rows: dict[str, list[str]] = {}
    for name, (kind, config) in ALGORITHMS.items():
        rows.setdefault(_family(kind, config), []).append(f"[{title(name)}](docs/algorithms/{name}.md)")
    return table(["kind", "algorithms"], ([family, ", ".join(rows[family])] for family in FAMILIES if family in rows))


FAMILIES = (
    "off-policy, discrete actions",
    "off-policy, continuous actions",
    "off-policy, discrete or continuous actions",
    "contextual bandits",
    "on-policy",
    "evolution",
    "recorded data",
    "imitation",
    "several agents",
)


def _family(kind: type[Agent], config: type) -> str:
    if for_several(kind):
        return "several agents"
    if issubclass(config, OfflineConfig):
        return "recorded data"
    if kind.learns_from == "demonstrations":
        return "imitation"
    if kind.estimate is not Agent.estimate:
        return "evolution"
    if kind.learns_from == "new_transitions":
        return "contextual bandits"
    if issubclass(config, OffPolicyConfig):
        names = {Discrete: "discrete", Box: "continuous"}
        return f"off-policy, {' or '.join(name for space, name in names.items() if space in kind.actions)} actions"
    return "on-policy"
