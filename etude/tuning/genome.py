"""What a trial learns with, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.config_json import from_json
from etude.training.assembly.described import plain_config


@dataclass(frozen=True)
class Genome:
    """What a trial learns with: all that a study, or evolution, may change.

    algorithm: a name from `etude list`, or that of an agent of one's own. config: its config, which holds the
    hyperparameters, the network specs and the optimizer. seed: of the run.
    """

    algorithm: str
    config: Any
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `genome_from_json` makes it again. Functions in the config are named, not stored."""
        config, functions = plain_config(self.config)
        return {"algorithm": self.algorithm, "config": config, "functions": functions, "seed": self.seed}


def genome_from_json(data: Any, base: Any) -> Genome:
    """The genome that `to_json` described. CheckpointError where the data is damaged.

    base: a config of the same class. Fields that are equal in it are taken from it: functions are not stored, and a
        default network gives way to convolutions over images only where it is the default itself.
    """
    try:
        algorithm, plain, seed = data["algorithm"], dict(data["config"]), data["seed"]
        own = {place.partition(".")[0] for place in data["functions"]}
        config = from_json(type(base), {name: value for name, value in plain.items() if name not in own})
    except (ConfigError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"The genome of a trial cannot be read: {error} The journal was changed.") from error
    fields = [field.name for field in dataclasses.fields(base) if field.init and field.name not in own]
    changed = {name: getattr(config, name) for name in fields if getattr(config, name) != getattr(base, name)}
    return Genome(str(algorithm), dataclasses.replace(base, **changed), int(seed))
