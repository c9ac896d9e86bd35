"""A folder as Hugging Face's hub takes it: a model card, the weights, the config, a video, and a checkpoint that acts.

The card's metadata: https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude import __version__
from etude.base.errors import ConfigError, EtudeError
from etude.checkpoint.run_directory import RunDirectory
from etude.export import weights_file
from etude.training.assembly.described import config_from, members_from

EPISODES, VIDEO_STEPS = 20, 2_000  # that are evaluated, and of the video
VIDEO = "replay.mp4"  # a name that the hub shows beside the card

CARD = """\
---
library_name: etude
tags:
- reinforcement-learning
- deep-reinforcement-learning
- {algorithm}
- {environment}
model-index:
- name: {name}
  results:
  - task:
      type: reinforcement-learning
      name: reinforcement-learning
    dataset:
      name: {environment}
      type: {environment}
    metrics:
    - type: mean_reward
      value: {mean:.2f} +/- {deviation:.2f}
      name: mean_reward
      verified: false
---

# {title}

An agent that etude {version} trained by `{plain_algorithm}` for {steps:,} steps.
Mean return of {episodes} evaluation episodes, with the best actions: {mean:.2f}, standard deviation {deviation:.2f}.

```python
import etude

run = etude.load("hub:OWNER/NAME"{again})  # pip install 'etude[hub]'
run.evaluate(episodes=20)
```

{watch}Nothing in these files is executed. `model.safetensors` holds the weights
by name.

## Config

```json
{config}
```
"""


def write(run: Any, path: Path) -> None:
    """Write the folder: a run directory without what training needs, which `etude.load` reads."""
    directory, weights = RunDirectory(path, keep=1), path / "model.safetensors"
    if directory.saved() and not weights.exists():
        raise ConfigError(
            f"{path} is the directory of a run, whose checkpoints would be replaced; give another folder."
        )
    described = run.description()
    described["setup"] = {**described["setup"], "replay_folder": None}  # a path of this machine
    found = run.evaluate(episodes=EPISODES)
    directory.checkpoints.mkdir(parents=True, exist_ok=True)
    directory.write_config(described)
    directory.save(run.step, {"description": described, **run.learner.policy_state(), "rollout": None})
    weights_file.write(run, weights)
    (path / VIDEO).unlink(missing_ok=True)
    with suppress(EtudeError):  # without a renderer or ffmpeg there is none
        run.watch(path / VIDEO, max_steps=VIDEO_STEPS)
    names = {"algorithm": described["algorithm"], "environment": described["environment"]}
    held = {"env": described["environment_is_named"], "wrappers": described["wrappers_are_named"], "agent": False}
    with suppress(ConfigError):  # of what `etude.load` needs again
        held["agent"] = bool(members_from(described, None) if "learners" in described else config_from(described))
    again = "".join(f", {name}=..." for name, plain in held.items() if not plain)
    title = f"{names['algorithm']} on {names['environment']}"
    card = CARD.format(
        **{key: json.dumps(str(value)) for key, value in names.items()}, name=json.dumps(title), title=title,
        plain_algorithm=names["algorithm"], version=__version__, steps=run.step, episodes=len(found.returns),
        again=again, watch="" if again else "`etude watch hub:OWNER/NAME` plays it. ", mean=found.mean,
        deviation=found.std, config=json.dumps(described["config"], indent=2),
    )  # fmt: skip
    (path / "README.md").write_text(card, encoding="utf-8")
