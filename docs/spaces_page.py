"""The page of spaces and values, spaces.md: from the cases that tests/run/test_space_cases.py and
tests/run/test_actions_of_every_shape.py run, and from what each algorithm says of an action space."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for folder in ("tests/envs", "tests/offline"):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from markdown_table import NOTE, table, title  # noqa: E402
from recordings import SPACES  # noqa: E402
from space_cases import ACTIONS, COMMON, OBSERVATIONS, OTHERS, Case, Demanding  # noqa: E402

from etude.algorithms import ALGORITHMS, for_several  # noqa: E402
from etude.base.errors import SpaceError  # noqa: E402
from etude.base.spaces import Spaces, describe  # noqa: E402
from etude.envs.actions import Actions  # noqa: E402
from etude.training.assembly.agents import check_spaces  # noqa: E402

FAMILIES = {
    "ppo": "PPO and its kin",
    "es": "ES, ARS, BC, MARWIL",
    "dqn": "DQN, GRPO and their kin",
    "sac": "SAC and its kin",
    "iql": "IQL, CQL",
}


def spaces_and_data() -> str:
    """The page."""
    families = _families()
    rows = [
        [case.kind, f"`{describe(Actions(case.space).space)}`", *_verdicts(case.space, families)]
        for case in [*COMMON, *ACTIONS]
    ]
    legend = [[name, ", ".join(title(member) for member in members)] for name, members in families.items()]
    recorded = ", ".join(f"`{describe(spaces.action)}`" for spaces in SPACES.values())
    return f"""# Spaces and data that etude takes

{NOTE}
What happens with each kind of space and value: every row is a test. [Environments](environments.md) says how values are
converted, [Which algorithm?](which-algorithm.md) lists every algorithm.

## Actions

Agents choose one array, the environment gets its own shape, dtype and structure.

{table(["the environment's actions", "an agent's", *families], rows)}
{table(["family", "algorithms"], legend)}
## Observations

{_told(OBSERVATIONS)}
## Rewards, flags and infos

{_told(OTHERS)}
## Recorded data

HDF5, Parquet, JSON lines and Minari's layout hold observations of these spaces, and of
`{describe(SPACES["several"].observation)}`, and actions of {recorded}, as the environment has them. Texts are recorded
as their codes.
"""


def _told(cases: Sequence[Case]) -> str:
    return table(["kind", "what happens"], [[case.kind, case.happens] for case in cases])


def _families() -> dict[str, list[str]]:
    """The algorithms that take the same kinds of actions, by the names of families."""
    kinds: dict[Any, list[str]] = {}
    for name, (kind, _) in ALGORITHMS.items():
        if not for_several(kind):
            kinds.setdefault((frozenset(kind.actions), kind.bounded_actions), []).append(name)
    return {next(title for name, title in FAMILIES.items() if name in members): members for members in kinds.values()}


def _verdicts(space: Any, families: dict[str, list[str]]) -> list[str]:
    seen = Spaces(Demanding.observation_space, Actions(space).space)
    found = []
    for members in families.values():
        kind, config = ALGORITHMS[members[0]]
        try:
            check_spaces(kind(config()), seen)
            found.append("yes")
        except SpaceError:
            found.append("refused")
    return found
