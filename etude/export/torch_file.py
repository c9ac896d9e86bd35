"""Policies as an ExportedProgram of torch (.pt2), which `torch.export.load` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import needing
from etude.base.files import replacing
from etude.export.policy import exported


def write(run: Any, path: Path) -> None:
    """Write the file, or one for each agent into a folder."""
    with needing("torch", "torch"):
        from etude.engines.torch_program import save
    for place, policy in exported(run, path, ".pt2").items():
        with replacing(place) as file:
            save(policy.trace(), policy.examples(2, np.random.default_rng(0)), file)
