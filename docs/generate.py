"""Writes what in these pages follows from the code and from measurements: `python docs/generate.py`.

can_i_use.md      from the algorithms and the list that the engines' contract tests run through
benchmarks.md     from benchmarks/*.json, where there are some
algorithms/*.md   the configs and presets, from the code, and the results, from benchmarks/learning.json and
                  benchmarks/offline.json
curves/*.png      from benchmarks/curves/*.csv
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"
sys.path.insert(0, str(HERE.parent / "tests" / "engines"))

import cases  # noqa: E402
import numpy as np  # noqa: E402

from etude import Conv, Mlp, Recurrent  # noqa: E402
from etude.algorithms import ALGORITHMS, check_spaces, check_team, for_several  # noqa: E402
from etude.engines import ENGINES  # noqa: E402
from etude.engines.numpy import NumpyEngine  # noqa: E402
from etude.errors import ConfigError, NetworkError, SpaceError  # noqa: E402
from etude.joint import joined_spaces  # noqa: E402
from etude.networks.encoding import split  # noqa: E402
from etude.presets import PRESETS  # noqa: E402
from etude.report.plots import Series, draw_runs  # noqa: E402
from etude.schedules import Linear  # noqa: E402
from etude.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple, is_image  # noqa: E402

NOTE = "<!-- Written by docs/generate.py. Change that, not this. -->\n"
NOT_MEASURED = "Not measured yet.\n"

VECTOR, IMAGE = Box(-1.0, 1.0, (4,), np.float32), Box(0, 255, (12, 12, 2), np.uint8)
ACTIONS = {"Box": Box(-1.0, 1.0, (2,), np.float32), "Discrete": Discrete(3), "MultiDiscrete": MultiDiscrete([2, 3]),
           "MultiBinary": MultiBinary(3)}  # fmt: skip
OBSERVATIONS = {
    "vector": VECTOR,
    "image": IMAGE,
    "Discrete": Discrete(3),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(3),
    "Dict, Tuple": Dict({"a": Tuple([Discrete(3), VECTOR])}),
    "with an image": Dict({"camera": IMAGE, "speed": VECTOR}),
}
MASKED = Dict({"observation": VECTOR, "action_mask": MultiBinary(3)})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# -- Can I use? --------------------------------------------------------------------------------------------------------


def can_i_use() -> str:
    """The page."""
    alone = [name for name, (kind, _) in ALGORITHMS.items() if not for_several(kind)]
    actions = [[_link(name), *(_action(name, space) for space in ACTIONS.values()), _mask(name)] for name in alone]
    seen = [[_link(name), *(_observation(name, space) for space in OBSERVATIONS.values())] for name in alone]
    tested = [
        [case.name, case.algorithm, _kind(case.spaces.action), _network(case), *("yes" for _ in ENGINES)]
        for case in cases.CASES
    ]
    return f"""# Can I use?

{NOTE}
**tested**: on every engine the contract tests act and learn with this pair. **yes**: it is made of the same parts.

## Actions

{table(["", *ACTIONS, "action mask"], actions)}
Actions of a Box are a flat vector.

## Observations

{table(["", *OBSERVATIONS], seen)}
Images are uint8 with three dimensions and need a `Conv` network, or one of your own. Dict and Tuple may be nested.

## Several agents

Every algorithm above also learns for [several agents](several-agents.md), each for itself or with shared policies, with
the observations and actions that it takes for one. These are for several agents only:

{table(["", "Box", "Discrete", "MultiDiscrete", "action mask", "in turns", "shared policies"], _several())}
## Rollouts

{_rollouts()}
## Networks of your own

| | `torch.nn.Module` | `keras.Model` |
|---|---|---|
| engine | torch | jax, tensorflow |
| DQN, REINFORCE without a baseline | yes | yes |
| those with a policy and a critic of states | where both have as many outputs: one function makes them | the same |
| ES | no | no |
| SAC | the parts that are one network; its critics are computed together and need a spec | the same |

## What the contract tests run through

{table(["case", "algorithm", "actions", "network", *ENGINES], tested)}"""


def _link(name: str) -> str:
    return f"[{ALGORITHMS[name][1].__name__.removesuffix('Config')}](algorithms/{name}.md)"


def _kind(space: Space) -> str:
    return type(space).__name__


def _network(case: Any) -> str:
    network = case.config.network
    before = f" after {type(network.before).__name__}" if isinstance(network, Recurrent) else ""
    return type(network).__name__ + before


def _builds(name: str, spaces: Spaces) -> bool:
    kind, config = ALGORITHMS[name]
    network = cases.SMALL_CONV if split(spaces.observation)[1] else Mlp((8,))
    if isinstance(config().network, Recurrent):
        network = Recurrent(network, 8)
    agent = kind(config(network=network))
    try:
        check_spaces(agent, spaces)
        NumpyEngine(agent, spaces)
    except (SpaceError, NetworkError):
        return False
    return True


def _verdict(name: str, spaces: Spaces, tested: bool) -> str:
    if not _builds(name, spaces):
        return "no"
    return "tested" if tested else "yes"


def _action(name: str, space: Space) -> str:
    tested = any(case.algorithm == name and _kind(case.spaces.action) == _kind(space) for case in cases.CASES)
    return _verdict(name, Spaces(VECTOR, space), tested)


def _mask(name: str) -> str:
    tested = any(case.algorithm == name and case.spaces.masked for case in cases.CASES)
    return _verdict(name, Spaces(MASKED, Discrete(3)), tested)


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
    """What the algorithms for several agents take, each told by trying."""
    rows = []
    for name, (kind, config) in ALGORITHMS.items():
        if for_several(kind):
            spaces = [Spaces(VECTOR, ACTIONS[action]) for action in ("Box", "Discrete", "MultiDiscrete")]
            masked = Spaces(MASKED, Discrete(3))
            tries = [joined_spaces({"a": own, "b": own}) for own in (*spaces, masked)]
            tries.append(joined_spaces({"a": masked, "b": masked}, turns=True))
            verdicts = [_acts(kind(config()), each) for each in tries]
            rows.append([f"[{name}](algorithms/{name}.md)", *verdicts, _acts(kind(config()), tries[1], "shared")])
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
        portable = NumpyEngine(kind(config(network=network)), Spaces(space, Discrete(2))).structure.portable
        rows.append([name, "yes", "workers act by themselves" if portable else _LOCKSTEP, _OVERLAP[portable]])
    rows.append(["a module of your own", "yes", _LOCKSTEP, _OVERLAP[False]])
    return table(["network", "in process", "`workers=2`", "`overlap=True`"], rows)


_OVERLAP = {True: "yes", False: "refused"}
_LOCKSTEP = "workers step, the engine acts for all of them at once"


# -- configs -----------------------------------------------------------------------------------------------------------


def config(algorithm: str) -> str:
    """The fields of an algorithm's config: its own first, then those that it shares with others."""
    kind = ALGORITHMS[algorithm][1]
    meaning = told_in_code(kind)
    own = list(kind.__annotations__)
    shared = [field.name for field in dataclasses.fields(kind) if field.name not in own]
    default = kind()
    rows = [[f"`{name}`", f"`{_literal(getattr(default, name))}`", meaning[name]] for name in (*own, *shared)]
    return table(["field", "default", "meaning"], rows)


def told_in_code(kind: type) -> dict[str, str]:
    """What the comments say of each field; a field that is only given another default means what it meant before."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        lines = re.findall(r"^    (\w+): .*?(?:  # (.*))?$", inspect.getsource(base), re.MULTILINE)
        told |= {name: comment for name, comment in lines if comment}
    return told


def _literal(value: Any) -> str:
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


# -- presets -----------------------------------------------------------------------------------------------------------


def presets(algorithm: str) -> str:
    """The presets of an algorithm, each with its source."""
    text = ""
    for environment, preset in PRESETS.get(algorithm, {}).items():
        fields = ", ".join(f"`{name}` {_value(value)}" for name, value in preset.config.items())
        parallel = "1 environment" if preset.environments == 1 else f"{preset.environments} environments"
        text += f"**{environment}**: {preset.steps:,} steps, {parallel}; {fields}. "
        text += f"Source: {preset.source.rstrip('.')}.\n\n"
    return text or "None yet.\n"


def _value(value: Any) -> str:
    if isinstance(value, Linear):
        over = "" if value.fraction == 1 else f" in {value.fraction:g} of the run"
        return f"{value.start:g} to {value.end:g}{over}"
    if isinstance(value, Mlp | Conv):
        head = (", dueling" if value.dueling else "") + (f", noisy {value.noisy:g}" if value.noisy else "")
        return " x ".join(map(str, value.widths)) + f" {value.activation}{head}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- measurements ------------------------------------------------------------------------------------------------------


def read(name: str) -> dict[str, Any]:
    """The results of one measurement; {} where it was not made, or is being written."""
    try:
        return json.loads((BENCHMARKS / f"{name}.json").read_text())
    except (OSError, ValueError):
        return {}


def learning(algorithm: str | None = None) -> str:
    """The learning table, of one algorithm or of all, with the return of every seed."""
    held = read("learning")
    rows = []
    for name, found in held.get("summary", {}).items():
        kind, environment, engine = name.split("/")
        if algorithm in (None, kind):
            cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
            returns = ", ".join(f"{cells[seed]['return']:g}" for seed in sorted(cells))
            steps = f"{next(iter(cells.values()))['steps']:,}"
            bar = "" if found["bar"] is None else f"{found['bar']:g} {'reached' if found['reached'] else '**missed**'}"
            rows.append([kind, environment, engine, steps, f"{found['mean']:g}", returns, bar])
    if not rows:
        return NOT_MEASURED
    head = ["", "environment", "engine", "steps", "mean return", "each seed", "goal"]
    text = table(head if algorithm is None else head[1:], rows if algorithm is None else [row[1:] for row in rows])
    return f"{text}\nThe mean return of 20 episodes after the last step, on environments of their own.\n"


def offline(algorithm: str | None = None) -> str:
    """What was learned from recorded data, by one algorithm or by all, beside the returns in the data."""
    held = read("offline")
    rows = []
    for name, found in held.get("summary", {}).items():
        kind, environment, data = name.split("/")
        if algorithm in (None, kind):
            cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
            returns = ", ".join(f"{cells[seed]['return']:g}" for seed in sorted(cells))
            bar = f"{found['bar']:g} {'reached' if found['reached'] else '**missed**'}" if "bar" in found else ""
            steps, own = next(iter(cells.values()))["steps"], held["behaviour"][f"{environment}/{data}"]
            rows.append([kind, environment, data, f"{own:g}", f"{steps:,}", f"{found['mean']:g}", returns, bar])
    if not rows:
        return NOT_MEASURED
    head = ["", "environment", "data", "its mean return", "gradient steps", "mean return", "each seed", "goal"]
    text = table(head if algorithm is None else head[1:], rows if algorithm is None else [row[1:] for row in rows])
    goal = "With mediocre data, CQL and IQL are to beat it and BC."
    return f"{text}\nThe mean return of 20 episodes after the last step. {goal}\n"


def curves(algorithm: str) -> dict[Path, list[Series]]:
    """The training of every seed, by the picture of an environment."""
    found: dict[Path, list[Series]] = {}
    for path in sorted((BENCHMARKS / "curves").glob(f"{algorithm}_*_jax.csv")):
        environment = path.stem.removeprefix(f"{algorithm}_").removesuffix("_jax")
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        found[HERE / "curves" / f"{path.stem.removesuffix('_jax')}.png"] = [
            Series(algorithm, environment, f"{seed:g}", *table[table[:, 0] == seed].T[1:], np.zeros(0), ())
            for seed in np.unique(table[:, 0])
        ]
    return found


def pictures(algorithm: str) -> str:
    """The curves of an algorithm, for its page."""
    found = curves(algorithm).items()
    shown = [f"![Return of training on {runs[0].environment}](../curves/{path.name})\n" for path, runs in found]
    return "\n" + "\n".join(shown) if shown else ""


def learning_of_own_agents() -> str:
    """The table of the example agents, with the score of every seed."""
    held = read("solo_learning")
    rows = []
    for name, found in held.get("summary", {}).items():
        agent, variant, engine = name.split("/")
        cells = {int(key.split("/")[3]): cell for key, cell in held["cells"].items() if key.startswith(f"{name}/")}
        told = [f"{cells[seed]['score']:g} ({cells[seed]['steps']:,})" for seed in sorted(cells)]
        rows.append(
            [agent, variant, engine, ", ".join(told), f"{found['bar']:g}", f"{found['reached']} of {len(cells)}"]
        )
    if not rows:
        return NOT_MEASURED
    return table(["", "", "engine", "score of each seed (after so many steps)", "goal", "reached"], rows)


def _at_random() -> str:
    """What actions at random earn where MADDPG was judged, and what AgileRL's MADDPG does, where that was measured."""
    own = [cell["at_random"] for cell in read("solo_learning").get("cells", {}).values() if "at_random" in cell]
    other = [cell["score"] for cell in read("peers_maddpg").values() if "score" in cell]
    text = f"; actions at random earn {min(own):g} to {max(own):g}" if own else ""
    return text + (f", AgileRL's MADDPG {', '.join(f'{score:g}' for score in other)} on as many steps" if other else "")


def speed(name: str) -> str:
    """The figures of one file, whatever it holds: every value under the names that lead to it."""
    held = {key: value for key, value in read(name).items() if key != "about"}
    rows = [[" - ".join(path), *cells] for path, *cells in _figures(held, (), None)]
    return table(["", "median", "lowest to highest", "goal"], rows) if rows else NOT_MEASURED


def several() -> str:
    """The table of the tasks with several agents."""
    rows = []
    for name, found in sorted(read("several").get("summary", {}).items(), key=lambda row: row[0].split("/")[1]):
        algorithm, task, engine, steps = name.split("/")
        rows.append([task, algorithm, engine, f"{int(steps):,}", f"{found['mean']:g}", str(found["seeds"])])
    head = ["task", "algorithm", "engine", "steps", "mean return", "seeds"]
    about = "The mean return of 100 episodes after the last step, summed over the agents.\n"
    return table(head, rows) + "\n" + about if rows else NOT_MEASURED


def _figures(value: Any, path: tuple[str, ...], goal: Any) -> Iterator[tuple]:
    if isinstance(value, dict) and "median" in value:
        spread = f"{value['lowest']:g} to {value['highest']:g}"
        yield path, f"{value['median']:g}", spread, _number(value.get("wanted", goal))
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "wanted":
                yield from _figures(part, (*path, key), value.get("wanted") if key == "etude" else None)
    elif isinstance(value, list) and value and all(isinstance(part, int | float) for part in value):
        ordered = sorted(value)
        yield path, f"{ordered[len(ordered) // 2]:g}", f"{ordered[0]:g} to {ordered[-1]:g}", _number(goal)
    elif isinstance(value, int | float):
        yield path, f"{value:g}", "", _number(goal)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


SPEED = {
    "start_up": "Starting (seconds)",
    "acting": "One observation to an action (microseconds)",
    "learn_step": "A gradient step (microseconds), against a bare loop in the same framework",
    "replay": "Replay: adding 8 rows, sampling 256, memory",
    "rollouts": "Collecting (steps a second), and the memory of workers",
    "whole_run": "Whole runs, compilation included (steps a second)",
    "solo_speed": "Agents of one's own: collecting (steps a second), and collecting while learning (rounds a second)",
}


def about() -> str:
    """Where the figures were measured, one line for each machine and set of versions."""
    found = {}
    for name in ("learning", "offline", "solo_learning", *SPEED):
        held = read(name).get("about", {})
        if held:
            libraries = ", ".join(f"{library} {number}" for library, number in held["versions"].items())
            peers = "".join(f", {library} {number}" for library, number in held.get("peers", {}).items())
            line = f"{held['machine']['processor']}, {held['machine']['cores']} cores, {held['machine']['system']}: "
            found.setdefault(f"{line}{libraries}" + (f"; peers: {peers[2:]}" if peers else ""), []).append(name)
    return "".join(f"- {', '.join(names)}: {line}.\n" for line, names in found.items()) or NOT_MEASURED


def benchmarks() -> str:
    """The page."""
    sections = "\n".join(f"## {title}\n\n{speed(name)}" for name, title in SPEED.items())
    return f"""# Benchmarks

{NOTE}
`python benchmarks/learning.py` and `solo_learning.py` measure learning (hours), `make bench` speed and memory; all
write JSON into `benchmarks/`, from which this page is made. The machines are noisy: what is compared was measured in
turns, and a ratio is the median of the ratios of each turn. A goal is a bound that the project set itself, at most or
at least as the quantity has it.

{about()}
## Learning

Preset hyperparameters, 20 episodes of evaluation after the last step. Every seed that was run is shown.

{learning()}
## Learning from recorded data

{offline()}
## Agents of one's own: learning

The example agents, `etude/examples`. CartPole-v1 is solved when training itself, exploration included, had a mean
return of 475 over ten rounds, each an episode of every environment; training stops there. ddpg_her: the share of 100
episodes that reach the goal. maddpg: the mean return of 100 episodes, summed over the agents{_at_random()}.

{learning_of_own_agents()}
{sections}"""


# -- writing -----------------------------------------------------------------------------------------------------------


def filled(text: str, name: str, content: str) -> str:
    """A page with what stands between its marks `<!-- name -->` and `<!-- end -->` replaced."""
    mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return mark.sub(lambda match: f"{match[1]}\n{content.rstrip()}\n\n{match[2]}", text)


def pages(measured: bool = True) -> dict[Path, str]:
    """Every page that is written, or partly written, here. measured: with what follows from measurements."""
    found = {HERE / "can_i_use.md": can_i_use()}
    if measured:
        found[HERE / "benchmarks.md"] = benchmarks()
    for name in ALGORITHMS:
        path = HERE / "algorithms" / f"{name}.md"
        text = filled(path.read_text(encoding="utf-8"), "config", config(name))
        text = filled(text, "presets", presets(name))
        if measured:
            text = filled(filled(text, "results", learning(name) + pictures(name)), "several", several())
            text = filled(text, "offline", offline(name))
        found[path] = text
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    (HERE / "curves").mkdir(exist_ok=True)
    for name in ALGORITHMS:
        for path, runs in curves(name).items():
            draw_runs(runs, path, "range")
