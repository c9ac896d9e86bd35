"""Runs on Hugging Face's hub, as `etude export --to hub` writes them: `hub:OWNER/NAME` in the place of a path."""

from __future__ import annotations

import re
from pathlib import Path

from etude.base.errors import CheckpointError, ConfigError, MissingExtra

BEGINNING = "hub:"
_NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
FILES = ["config.json", "checkpoints/*.etude"]


def from_hub(path: Path) -> Path:
    """The run directory that `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION` stands for, in the cache of huggingface_hub;
    other paths as they are. Raises CheckpointError where it cannot be had."""
    given = path.as_posix()
    if not given.startswith(BEGINNING) or path.exists():
        return path
    found = _NAME.fullmatch(given)
    if found is None:
        raise ConfigError(f"{given!r} names nothing on the hub; expected hub:OWNER/NAME, or hub:OWNER/NAME@REVISION.")
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra(f"Loading {given}", "hub") from None
    try:
        return Path(huggingface_hub.snapshot_download(found[1], revision=found[2], allow_patterns=FILES))
    except Exception as problem:  # of whatever class: of HTTP, of the system, of names
        reason = str(problem).strip().split("\n")[0] or type(problem).__name__
        raise CheckpointError(f"{given} cannot be had from the hub: {reason[:300]}") from problem
