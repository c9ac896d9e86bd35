"""A run in one of several processes: `launched_run.py ENGINE WHAT FOLDER`. It writes its last weights to FOLDER.

WHAT: "whole", or "late": process 1 has more to do, or "killed" or "stopped": process 1 gets the signal, or "endless":
until it is interrupted.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import etude
from etude.base.errors import EtudeError

TARGET = {"whole": 160, "late": 160, "killed": 640, "stopped": 640, "endless": 10_000_000}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
ENDED = 3  # the exit status after a clear error


class Ends(etude.Callback):
    def __init__(self, signal):
        self.signal = signal

    def on_update(self, run, event):
        if run.group.rank == 1 and event.step >= 320:
            os.kill(os.getpid(), self.signal)


def main(engine, what, folder):
    folder = Path(folder)
    run = etude.Run(
        "ppo", "CartPole-v1", engine=engine, environments=4, seed=3, devices="all", run_dir=folder / "run",
        network=etude.Mlp((16,)), rollout_length=8, minibatch_size=16, epochs=2,
    )  # fmt: skip
    (folder / f"{0 if run.group is None else run.group.rank}.pid").write_text(str(os.getpid()))
    callbacks = [Ends(SIGNALS[what])] if what in SIGNALS else []
    try:
        finished = run.train(TARGET[what], callbacks)
    except EtudeError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(ENDED)
    rank = 0 if run.group is None else run.group.rank
    if what == "late" and rank == 1:
        time.sleep(3)
    np.savez(folder / f"{rank}.npz", step=finished.step, **run.engine.weights())


if __name__ == "__main__":
    main(*sys.argv[1:])
