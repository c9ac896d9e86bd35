"""`python -m benchmarks [--peers PATH_TO_PYTHON] [--repeats N]`: all measurements of speed and memory.

The learning table takes hours and is apart: `python benchmarks/learning.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = ("start_up", "acting", "replay", "rollouts", "pools", "learn_step", "whole_run", "solo_speed")

if __name__ == "__main__":
    failed = []
    for name in SCRIPTS:
        print(f"== {name} ==", flush=True)
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *sys.argv[1:]]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    sys.exit(f"Failed: {', '.join(failed)}" if failed else None)
