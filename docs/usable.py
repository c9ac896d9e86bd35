"""The tables of which-algorithm.md: from the algorithms, and the list that the tests of engines run through."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))

import cases  # noqa: E402
import numpy as np  # noqa: E402
from markdown_table import table, title  # noqa: E402

from etude import Conv, Mlp, Recurrent, Transformer  # noqa: E402
from etude.algorithms import ALGORITHMS, for_several  # noqa: E402
from etude.base.errors import ConfigError, NetworkError, SpaceError  # noqa: E402
from etude.base.spaces import (  # noqa: E402
    Box,
    Dict,
    Discrete,
    Hybrid,
    MultiBinary,
    MultiDiscrete,
    Space,
    Spaces,
    Tokens,
    Tuple,
    is_image,
)
from etude.engines.numpy import NumpyEngine  # noqa: E402
from etude.multi_agent.joint import joined_spaces  # noqa: E402
from etude.networks.encoding import split  # noqa: E402
from etude.training.assembly.agents import check_spaces, check_team

VECTOR, IMAGE = Box(-1.0, 1.0, (4,), np.float32), Box(0, 255, (12, 12, 2), np.uint8)
ACTIONS = {"Box": Box(-1.0, 1.0, (2,), np.float32), "Discrete": Discrete(3), "MultiDiscrete": MultiDiscrete([2, 3]),
           "MultiBinary": MultiBinary(3),
           "numbers and choices": Hybrid(Box(-1.0, 1.0, (2,), np.float32), MultiDiscrete([2, 3]))}  # fmt: skip
OBSERVATIONS = {
    "vector": VECTOR,
    "image": IMAGE,
    "Discrete": Discrete(3),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(3),
    "Dict, Tuple": Dict({"a": Tuple([Discrete(3), VECTOR])}),
    "with an image": Dict({"camera": IMAGE, "speed": VECTOR}),
    "tokens": Tokens(tuple("_>abcd"), 9),
}


def usable() -> str:
    """What each algorithm takes."""
    alone = [name for name, (kind, _) in ALGORITHMS.items() if not for_several(kind)]
    actions = [[_link(name), *(_action(name, space) for space in ACTIONS.values()), _mask(name)] for name in alone]
    seen = [[_link(name), *(_observation(name, space) for space in OBSERVATIONS.values())] for name in alone]
    return f"""## Actions

**tested**: tests act and learn with this pair on every engine. **yes**: it has the same parts.

{table(["algorithm", *ACTIONS, "action mask"], actions)}
Actions of any axes are flattened into one vector, and those of a Dict or Tuple joined: numbers, choices, or both.

## Observations

{table(["algorithm", *OBSERVATIONS], seen)}
Images are uint8 (see [environments](environments.md)) and are read by `Conv` networks; an `Mlp` flattens them. Dict and
Tuple may be nested.

## Several agents

Every algorithm above but the contextual bandits also trains [several agents](multi-agent.md), with independent or
shared policies, over the observations and actions in the tables. These algorithms are for several agents only:

{table(["algorithm", "Box", "Discrete", "MultiDiscrete", "action mask", "in turns", "shared policies"], _several())}
## Rollouts

{_rollouts()}
[Networks](own-networks.md) lists what a `torch.nn.Module` or a `keras.Model` has to return for each algorithm.
"""


def _link(name: str) -> str:
    return f"[{title(name)}](algorithms/{name}.md)"


def _kind(space: Space) -> str:
    return type(space).__name__


def _builds(name: str, spaces: Spaces) -> bool:
    kind, config = ALGORITHMS[name]
    network = cases.SMALL_CONV if split(spaces.observation)[1] else Mlp((8,))
    if isinstance(config().network, Recurrent):
        network = Recurrent(network, 8)
    if _reads_tokens(name) or kind.reads_tokens and isinstance(spaces.observation, Tokens):
        network = cases.READING
    agent = kind(config(network=network))
    try:
        check_spaces(agent, spaces)
        NumpyEngine(agent, spaces)
    except (SpaceError, NetworkError):
        return False
    return True


def _reads_tokens(name: str) -> bool:
    """Whether an algorithm reads tokens and nothing else."""
    return isinstance(ALGORITHMS[name][1]().network, Transformer)


def _seen(name: str) -> Space:
    return OBSERVATIONS["tokens" if _reads_tokens(name) else "vector"]


def _verdict(name: str, spaces: Spaces, tested: bool) -> str:
    if not _builds(name, spaces):
        return "no"
    return "tested" if tested else "yes"


def _action(name: str, space: Space) -> str:
    tested = any(case.algorithm == name and _kind(case.spaces.action) == _kind(space) for case in cases.CASES)
    return _verdict(name, Spaces(_seen(name), space), tested)


def _mask(name: str) -> str:
    tested = any(case.algorithm == name and case.spaces.masked for case in cases.CASES)
    masked = Dict({"observation": _seen(name), "action_mask": MultiBinary(3)})
    return _verdict(name, Spaces(masked, Discrete(3)), tested)


def _observation(name: str, space: Space) -> str:
    action = next(action for action in ACTIONS.values() if isinstance(action, ALGORITHMS[name][0].actions))
    seen = [case.spaces.observation for case in cases.CASES if case.algorithm == name]
    return _verdict(name, Spaces(space, action), any(_alike(space, other) for other in seen))


def _alike(space: Space, other: Space) -> bool:
    """Whether two observation spaces are of one column of the table."""
    if isinstance(space, Dict):
        return isinstance(other, Dict) and len(split(space)[1]) == len(split(other)[1])
    leaves = [part for _, part in split(other)[0]] if isinstance(other, Dict) else [other]
    return any(_kind(part) == _kind(space) and is_image(part) == is_image(space) for part in leaves)


def _several() -> list[list[str]]:
    """What the algorithms for several agents take, found by trying each."""
    rows = []
    for name, (kind, config) in ALGORITHMS.items():
        if for_several(kind):
            spaces = [Spaces(VECTOR, ACTIONS[action]) for action in ("Box", "Discrete", "MultiDiscrete")]
            masked = Spaces(Dict({"observation": VECTOR, "action_mask": MultiBinary(3)}), Discrete(3))
            tries = [joined_spaces({"a": own, "b": own}) for own in (*spaces, masked)]
            tries.append(joined_spaces({"a": masked, "b": masked}, turns=True))
            verdicts = [_acts(kind(config()), each) for each in tries]
            rows.append([_link(name), *verdicts, _acts(kind(config()), tries[1], "shared")])
    return rows


def _acts(agent: Any, spaces: Spaces, policies: str = "each") -> str:
    try:
        check_team(agent.with_policies(policies), spaces)
    except (SpaceError, ConfigError):
        return "no"
    return "yes"


def _rollouts() -> str:
    rows = []
    for network, name in ((Mlp((8,)), "`Mlp`"), (cases.SMALL_CONV, "`Conv`")):
        space = IMAGE if isinstance(network, Conv) else VECTOR
        kind, config = ALGORITHMS["dqn"]
        portable = NumpyEngine(kind(config(network=network)), Spaces(space, Discrete(2))).layout.portable
        rows.append([name, "yes", "workers act in NumPy" if portable else _LOCKSTEP, _OVERLAP[portable]])
    rows.append(["a module of your own", "yes", _LOCKSTEP, _OVERLAP[False]])
    return table(["network", "in process", "`workers=2`", "`overlap=True`"], rows)


_OVERLAP = {True: "yes", False: "refused"}
_LOCKSTEP = "workers step, the engine acts for all of them in one batch"
