"""Files of PyTorch, read as tensors and nothing else."""

from __future__ import annotations

import re
from typing import IO, Any

from etude.base.errors import CheckpointError, ConfigError, MissingExtra

SAFE = (2, 6)  # before, `weights_only` let files execute code: CVE-2025-32434


def read_torch_file(file: IO[bytes], where: str) -> Any:
    """What `torch.save` wrote: tensors as arrays, in dicts and lists; anything else as it is. No code in the file is
    executed. where: the file, for errors. Raises CheckpointError for a damaged file, and one that holds objects."""
    try:
        import torch
    except ImportError:
        raise MissingExtra(f"Reading {where}", "torch") from None
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < SAFE:
        raise ConfigError(f"{where}: PyTorch {torch.__version__} may execute code in files; expected 2.6 or newer.")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as problem:  # of whatever class: files are damaged in many ways
        reason = str(problem).split("\n")[0].split(". ")[0]
        raise CheckpointError(
            f"{where} was not read: {reason[:200]}. Expected what torch.save writes of tensors alone; nothing in it "
            "was executed."
        ) from problem
    return _as_arrays(found, torch.Tensor)


def _as_arrays(value: Any, kind: type) -> Any:
    if isinstance(value, kind):
        tensor = value.detach()  # type: ignore[attr-defined]
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(value, dict):
        return {str(name): _as_arrays(part, kind) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_arrays(part, kind) for part in value]
    return value
