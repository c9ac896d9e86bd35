"""The files of a new algorithm, with what is left to fill in: `make new-algorithm NAME=my_algorithm [CLASS=MyClass]`.

Writes the algorithm, its page, its preset and its test, and the lines that name it. What is written trains nothing yet:
the test lists each place that says FILL IN, and the loss raises NotImplementedError.
"""

from __future__ import annotations

import argparse
import bisect
import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "FILL" + " IN"  # in two parts, so that this file holds none
ACRONYM = 4  # letters at most of a name that is one

ALGORITHM = '''"""MARK: what it learns, in one sentence.

MARK: authors, year, title, and a doi or arXiv number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude.agent import ActsBy, Agent, Losses
from etude.base.data import Batch
from etude.base.spaces import Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target


@dataclass(frozen=True)
class CLASSConfig(OffPolicyConfig):
    """Hyperparameters of TITLE, besides those of every off-policy algorithm."""

    # MARK: fields that the algorithm adds, and defaults that it changes, each with a comment that says what it is;
    # __post_init__ checks them (etude.base.checks). Another kind of learning: another base from etude/config.py.
    network: Spec = Mlp((128, 128))
    target_update_every: int = 500  # gradient steps between two updates of the target network
    epsilon: float = 0.05  # probability of a random action


class CLASS(Agent):
    """MARK: what it estimates, and towards which target."""

    acts_by: ClassVar[ActsBy] = "values"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)  # MARK: the action spaces, and how it acts

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.q: Part = make.values(self.config.network, spaces.observation, int(spaces.action.n))
        self.q_target: Part = target(self.q, every="target_update_every")

    def act(self, observation: Tree) -> Any:
        return self.q(self.normaliser(observation))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        # MARK: from the functions of etude/losses/, over etude.ops: a mean over the batch, weighted by batch.weight,
        # as Losses(q=Loss(loss, td_error=...)). batch.discount is 0 where an episode terminated: mention no `done`.
        raise NotImplementedError("the loss of CLASS is not written yet: etude/algorithms/NAME.py")
'''

PAGE = """# TITLE

MARK: what it learns and when to take it, in two sentences.

MARK: authors, year, [title](https://doi.org). Code: `etude/algorithms/NAME.py`.

```console
etude train NAME CartPole-v1
```

```python
import etude

run = etude.Run("NAME", "CartPole-v1", learning_starts=100, seed=1)
run.train(300)
```

## Config

<!-- config -->
<!-- end -->

## Metrics

Besides [those that every run has](../metrics.md):

| name | meaning |
|---|---|
| `train/q` | MARK: the loss, in which units |

## What differs

MARK: each deviation from the paper.

## Presets

<!-- presets -->
<!-- end -->
"""

PRESET = """# MARK: where the figures are from, and every difference from there, for CartPole-v1.
["CartPole-v1"]
steps = 50_000
environments = 1
learning_rate = 0.001
"""

TEST = '''"""What TITLE computes."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("etude/algorithms/NAME.py", "etude/presets/NAME.toml", "docs/algorithms/NAME.md")


def test_nothing_is_left_to_fill_in():
    lines = [(file, i, text) for file in FILES for i, text in enumerate((ROOT / file).read_text().splitlines(), 1)]
    left = [f"{file}:{i}: {text.strip()}" for file, i, text in lines if "FILL" + " IN" in text]
    assert not left, "left to fill in:\\n" + "\\n".join(left)


def test_the_loss_of_a_table_worked_by_hand():
    pytest.fail("write the numbers of two or three transitions here: tests/losses shows how")
'''

LEFT = """
Written. `python -m pytest tests/algorithms/test_NAME.py` lists what is left to fill in. Then:

  etude/losses/                 its equations, if they are new, each with a test in tests/losses
  tests/engines/cases.py        its cases, which the contract and parity tests run on every engine
  tests/engines/run_cases.py    a small run of it
  tests/engines/agents/         `NAME` in a file of slow_losses/: its losses once more, as the paper says them
  benchmarks/learning.py        a row of the learning table, with a goal
  python docs/generate.py       the tables of its page and of README
"""


def write(root: Path, name: str, agent: str = "") -> None:
    """Write the files of an algorithm into a checkout. SystemExit where the name cannot be one, or is taken.

    agent: the name of its class; by default a single short word is an acronym, and others are joined as MyAlgorithm.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        sys.exit(f"NAME={name}: expected a name such as my_algorithm: small letters, digits and underscores.")
    if (root / f"etude/algorithms/{name}.py").exists():
        sys.exit(f"NAME={name}: etude/algorithms/{name}.py exists. Take another name.")
    title, joined = name.replace("_", " ").upper(), "".join(part.capitalize() for part in name.split("_"))
    agent = agent or (name.upper() if name.isalnum() and len(name) <= ACRONYM else joined)
    if not agent.isidentifier():
        sys.exit(f"CLASS={agent}: expected the name of a class, such as MyAlgorithm.")
    config = f"{agent}Config"
    words = {"CLASS": agent, "TITLE": title, "NAME": name, "MARK": MARK}
    for path, text in {
        f"etude/algorithms/{name}.py": ALGORITHM,
        f"etude/presets/{name}.toml": PRESET,
        f"docs/algorithms/{name}.md": PAGE,
        f"tests/algorithms/test_{name}.py": TEST,
    }.items():
        (root / path).write_text(re.sub("CLASS|TITLE|NAME|MARK", lambda word: words[word[0]], text))
    names, imported = root / "etude/algorithms/__init__.py", f"from etude.algorithms.{name} import {agent}, {config}"
    _insert(names, r"^from etude\.algorithms\.(\w+) import", imported, name)
    _insert(names, r'^    "(\w+)": \(', f'    "{name}": ({agent}, {config}),', name)
    _insert(names, r'^    "(\w+)",', f'    "{agent}", "{config}",', agent)
    _insert(root / "mkdocs.yml", r"^      - (.+): algorithms/\w+\.md$", f"      - {title}: algorithms/{name}.md", title)


def _insert(path: Path, pattern: str, line: str, key: str) -> None:
    """Put a line among those that match, in the order of what the pattern takes from them."""
    lines = path.read_text().splitlines()
    found = [(match[1].lower(), i) for i, each in enumerate(lines) if (match := re.match(pattern, each))]
    at = bisect.bisect([name for name, _ in found], key.lower())
    lines.insert(found[at][1] if at < len(found) else found[-1][1] + 1, line)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("agent", metavar="CLASS", nargs="?", default="")
    given = parser.parse_args()
    write(ROOT, given.name, given.agent)
    sys.stdout.write(LEFT.replace("NAME", given.name))
