"""The arguments of `RL.distributed_training`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from etude.base.errors import ConfigError
from etude.solo.settings import Settings

_IN_ORDER = ("global_batch_size", "optimizer", "strategy", "episodes")


@dataclass(frozen=True)
class StrategyArguments:
    """What `distributed_training` is given beside the options of `train`.

    global_batch_size: examples in a minibatch, over all replicas; None: `batch` of `set`.
    """

    strategy: Any
    optimizer: Any = None
    episodes: int | None = None
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        size = self.global_batch_size
        if self.strategy is None:
            raise ConfigError(
                "distributed_training needs a strategy of tf.distribute, such as tf.distribute.MirroredStrategy(): "
                "distributed_training(optimizer, strategy, episodes). To train without one, call train."
            )
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ConfigError(f"global_batch_size = {size!r}; expected a whole number of at least 1.")

    def applied(self, settings: Settings) -> Settings:
        """The settings with the global batch size."""
        size = self.global_batch_size
        return settings if size is None else dataclasses.replace(settings, batch=size)


def strategy_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[StrategyArguments, dict[str, Any]]:
    """Positional and named arguments of `distributed_training`, in which the batch size may be missing, as (its own,
    the options of `train`); ConfigError for too many, and for one that is given twice."""
    names = _IN_ORDER if arguments and isinstance(arguments[0], int) else _IN_ORDER[1:]
    named = dict(named)
    if len(arguments) > len(names):
        raise ConfigError(
            f"distributed_training got {len(arguments)} arguments without a name; expected at most {', '.join(names)}. "
            "Name the others."
        )
    own = dict(zip(names, arguments, strict=False))
    if named.get("num_episodes") is not None:
        named["episodes"] = named["num_episodes"]
    named.pop("num_episodes", None)
    for name in set(_IN_ORDER) & named.keys():
        if name in own:
            raise ConfigError(f"distributed_training got {name} twice. Give it once.")
        own[name] = named.pop(name)
    return StrategyArguments(**{"strategy": None, **own}), named
