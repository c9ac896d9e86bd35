"""What the batches of a run are drawn from: recorded data, what the run collects, or both in fixed shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.offline.loading import CheckpointedData, RecordedData

SAMPLER = "sampler"
"""The name of what the run collects, among the sources."""

LEAST = 1e-9  # share
TOTALS = ("transitions", "episodes", "dropped")  # numbers in the summary of recorded data that add up


@dataclass(frozen=True)
class Sources:
    """Recorded data by name, and the share that each has in a batch.

    online: the share of what the run collects; 0: the run learns from recorded data alone, and steps no environment.
        It and the shares sum to 1.
    """

    recorded: Mapping[str, RecordedData]
    shares: Mapping[str, float]
    online: float = 0.0

    @property
    def single(self) -> RecordedData | None:
        """The data of a run on one source alone; None for others."""
        return next(iter(self.recorded.values())) if len(self.recorded) == 1 and not self.online else None

    def summary(self) -> dict[str, Any]:
        """The data in plain numbers, from which `sources_from` makes checkpointed sources."""
        if self.single is not None:
            return self.single.summary()
        each = [{"name": name, "share": self.shares[name], **data.summary()} for name, data in self.recorded.items()]
        totals = {name: sum(source[name] for source in each) for name in TOTALS}
        return {**totals, "sources": each, "online": self.online}


def sources_for(data: Any, load: Callable[[Any], RecordedData]) -> Sources:
    """The sources that the argument `data` of a run stands for.

    data: recorded data as `load` takes it; or several, and `"sampler"` for what the run collects, with their shares: a
        dict from path to share, or pairs of data and share. Shares are positive and are divided by their sum.
    Raises ConfigError for other shares, and where there is no recorded data.
    """
    if isinstance(data, Sources):
        return data
    pairs = _pairs(data)
    if pairs is None:
        return Sources({"recorded": load(data)}, {"recorded": 1.0})
    for source, share in pairs:
        if isinstance(share, bool) or not isinstance(share, int | float) or not (math.isfinite(share) and share > 0):
            shown = repr(source) if isinstance(source, str) else f"a {type(source).__name__}"
            raise ConfigError(
                f"data: the share of {shown} is {share!r}; expected a positive number, such as 0.5. Leave a "
                "source without a share out."
            )
    given = [str(source) if isinstance(source, str | Path) else "recorded" for source, _ in pairs]
    if given.count(SAMPLER) > 1:
        raise ConfigError(f'data names "{SAMPLER}" twice; give it one share.')
    names = numbered(given, " ")
    total = sum(share for _, share in pairs)
    shares = {name: share / total for name, (_, share) in zip(names, pairs, strict=True)}
    online = shares.pop(SAMPLER, 0.0)
    if not shares:
        raise ConfigError(
            f"data = {data!r} names no recorded data; expected at least one file or Dataset beside "
            f'"{SAMPLER}". Without recorded data, leave data out.'
        )
    recorded = {name: load(source) for name, (source, _) in zip(names, pairs, strict=True) if name != SAMPLER}
    return Sources(recorded, shares, online)


def sources_from(plain: Any) -> Sources | None:
    """The sources in a run's description, whose transitions its checkpoint holds; None where there are none."""
    if not plain:
        return None
    if "sources" not in plain:
        return Sources({"recorded": CheckpointedData(plain)}, {"recorded": 1.0})
    recorded = {
        each["name"]: CheckpointedData({key: value for key, value in each.items() if key not in ("name", "share")})
        for each in plain["sources"]
    }
    return Sources(recorded, {each["name"]: each["share"] for each in plain["sources"]}, plain["online"])


def check_sources(saved: Stored) -> None:
    """Raise CheckpointError where no sources can be made from what a description says of them."""
    held = saved.fields(("transitions",), saved.table())
    if "sources" not in held:
        held["transitions"].whole(1)
        return
    held = saved.fields(("sources", "online"), saved.table())
    online, names = held["online"].number(0, 1), []
    for each in held["sources"].items():
        source = each.fields(("name", "share", *TOTALS), each.table())
        names.append(source["name"].text())
        source["share"].number(LEAST, 1)
        source["transitions"].whole(1)
    if len(set(names)) != len(names) or SAMPLER in names or not (names or online):
        held["sources"].refuse("sources of different names")


def _pairs(data: Any) -> list[tuple[Any, Any]] | None:
    """Sources and shares; None for data without shares."""
    if isinstance(data, Mapping):
        return list(data.items())
    if isinstance(data, Sequence) and not isinstance(data, str) and data:
        pairs = [tuple(each) for each in data if isinstance(each, tuple | list) and len(each) == 2]
        return pairs if len(pairs) == len(data) else None  # type: ignore[return-value]
    return None


def numbered(names: Iterable[str], mark: str) -> list[str]:
    """The same names; those after the first of one name are numbered, behind the mark."""
    found: list[str] = []
    for base in names:
        name, number = base, 1
        while name in found:
            number += 1
            name = f"{base}{mark}{number}"
        found.append(name)
    return found
