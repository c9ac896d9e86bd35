"""Recordings of RLlib's JSON writer: lines of JSON, each a batch of steps (`SampleBatch`), read only.

Moritz et al. 2018, "RLlib", ICML; the columns of ray 0.8 to 2: `obs`, `new_obs`, `actions`, `rewards`, `dones` or
`terminateds` and `truncateds`, `eps_id`, `action_logp` or `action_prob`. Columns that RLlib has compressed are pickles,
which could run code when they are read: refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.errors import DataError
from etude.offline.json_lines import EXPANSION, LONGEST
from etude.offline.layout import NEXT, OBSERVATIONS, Arrays, require_memory, require_regular

COLUMNS = {OBSERVATIONS: "obs", "actions": "actions", "rewards": "rewards"}


def about(path: Path) -> str | None:
    """None: these files do not describe themselves."""
    require_regular(path)
    return None


def stream(path: Path) -> Iterator[Arrays]:
    """The columns of each episode as it ends; of batches without `eps_id`, those of each batch. An episode may go on in
    later batches, among steps of others; one that does not end is cut off after its last step. Raises DataError."""
    open_: dict[Any, list[Arrays]] = {}  # by `eps_id`, the parts so far
    require_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
            require_memory(path, EXPANSION * len(line))
            if not line.strip():
                continue
            arrays, episode = _batch(line, f"{path}, line {number}")
            if episode is None:
                yield arrays
                continue
            ended = arrays["terminals"] | arrays["timeouts"]
            stops = np.flatnonzero(np.append(ended[:-1] | (episode[1:] != episode[:-1]), True)) + 1
            for start, stop in pairwise([0, *stops.tolist()]):
                part, own = {name: values[start:stop].copy() for name, values in arrays.items()}, episode[start].item()
                parts = open_.setdefault(own, [])
                parts.append(part)
                if part.keys() != parts[0].keys():
                    raise DataError(
                        f"{path}, line {number}: episode {own} goes on with the columns {sorted(part)}; expected "
                        f"{sorted(parts[0])}, as it began. Write all batches with the same columns."
                    )
                if ended[stop - 1]:
                    yield trees.concatenate(open_.pop(own))
    for parts in open_.values():
        parts[-1]["timeouts"][-1] = True
        yield trees.concatenate(parts)


def _batch(line: bytes, where: str) -> tuple[Arrays, np.ndarray | None]:
    """(columns, the episode of each row or None)."""
    try:
        held = json.loads(line)
        if held.get("type") == "MultiAgentBatch":
            raise ValueError("it has several policies. Write the batch of one policy in a file of its own")
        columns = {name: _array(held, own) for name, own in COLUMNS.items()}
        rows = len(columns["rewards"])
        if "new_obs" in held:
            columns[NEXT] = _array(held, "new_obs")
        episode = _array(held, "eps_id") if "eps_id" in held else None
        # Where episodes end. RLlib's `dones` do not say why: taken for terminated
        terminals = _array(held, "terminateds" if "terminateds" in held else "dones").astype(bool)
        timeouts = _array(held, "truncateds").astype(bool) if "truncateds" in held else np.zeros(rows, bool)
        columns |= {"terminals": terminals, "timeouts": timeouts & ~terminals}
        if "action_logp" in held:
            columns["log_prob"] = _array(held, "action_logp").astype(np.float32)
        elif "action_prob" in held:
            with np.errstate(divide="ignore", invalid="ignore"):
                columns["log_prob"] = np.log(_array(held, "action_prob")).astype(np.float32)
        if any(len(values) != rows for values in [*columns.values(), *([] if episode is None else [episode])]):
            raise ValueError(f"its columns have { ({name: len(values) for name, values in columns.items()}) } rows")
        return columns, episode
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        text = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{where}: it is no batch that etude reads: {text[:400]}.") from None


def _array(held: dict[str, Any], name: str) -> np.ndarray:
    value = held[name]
    if isinstance(value, str):
        raise ValueError(
            f"column {name!r} is compressed, which is a pickle and could run code. Write it again in RLlib with "
            'config["output_compress_columns"] = []'
        )
    found = np.array(value)
    if found.ndim == 0 or found.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} holds no numbers, or not as many in each row")
    return found
