"""The weights of a run by name, as a file of safetensors with what the run is as metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.base.files import replacing
from etude.checkpoint.tensors import encode


def write(run: Any, path: Path) -> None:
    """Write the file."""
    with replacing(path) as file:
        for piece in encode(run.engine.weights(), {"etude": json.dumps(run.description())}):
            file.write(piece)
