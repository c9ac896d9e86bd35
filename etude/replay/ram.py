"""How much RAM is available, so that a replay buffer that does not fit is refused before a run starts."""

from __future__ import annotations

from pathlib import Path

from etude.base.errors import ConfigError

UNLIMITED = 1 << 60  # control groups without a limit report 'max' or a number near 2**63


def available(root: Path = Path("/")) -> tuple[int, str] | None:
    """Bytes that this process may still take, and what sets the limit; None where the system does not report it.

    The smaller of MemAvailable and of what is left in the control groups (version 2, then 1) of the process.
    """
    limits = [limit for limit in (_machine(root), *_groups(root)) if limit is not None]
    return min(limits) if limits else None


def require(needed: int, what: str, advice: str) -> None:
    """Raise ConfigError if `needed` bytes exceed the available RAM."""
    limit = available()
    if limit is not None:
        refuse(needed, limit, what, advice)


def refuse(needed: int, limit: tuple[int, str], what: str, advice: str) -> None:
    """Raise ConfigError if `needed` bytes exceed a limit (bytes, what sets it)."""
    if needed > limit[0]:
        raise ConfigError(f"{what} takes {_size(needed)}, but only {_size(limit[0])} is free ({limit[1]}). {advice}")


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"


def _machine(root: Path) -> tuple[int, str] | None:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024, "free memory of this machine"
    except (OSError, ValueError):
        pass
    return None


def _groups(root: Path) -> list[tuple[int, str] | None]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the host: then only the mount point itself exists.
        group = Path(path.lstrip("/"))
        found += [_group(base / parent, names) for parent in (group, *group.parents)]
    return found


def _group(folder: Path, names: tuple[str, str, str]) -> tuple[int, str] | None:
    try:
        limit, used = int((folder / names[0]).read_text()), int((folder / names[1]).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        reclaimable = int(statistics.get(names[2], 0))
    except (OSError, ValueError):
        return None
    return None if limit >= UNLIMITED else (max(0, limit - used + reclaimable), "memory limit of this container")
