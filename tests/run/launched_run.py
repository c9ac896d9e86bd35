"""A run in one of several processes: `launched_run.py ENGINE WHAT FOLDER [RANK]`. It writes its last weights to FOLDER.

WHAT: "whole", or "late": process 1 has more to do, or "endless": until it is interrupted, or what process RANK (1)
fails by: "connecting" (it ends before all have connected), "killed", "stopped" or "terminated" by the signal, or what
`fail` knows.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import gymnasium
import numpy as np

import etude
from etude.base.errors import EtudeError

TARGET = {"whole": 160, "late": 160, "endless": 10_000_000}
LATER = 320  # the step at which a process fails
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "terminated": signal.SIGTERM}
ENDED = 3  # the exit status after a clear error


class Fails(etude.Callback):
    """Raises from the step `LATER` on, in the process that fails, wherever it is called from."""

    def __init__(self, run, signal=None):
        self.run, self.signal = run, signal

    def __call__(self, *_, **__):
        if self.run.step < LATER:
            return 0.0
        if self.signal is not None:
            os.kill(os.getpid(), self.signal)
        if self.signal == signal.SIGTERM:  # which a run handles
            return 0.0
        raise ValueError("no ink")

    def on_update(self, run, event):
        self()

    def rewrite(self, steps):
        if self.run is not None:
            self()
        return steps


class Breaks(gymnasium.Wrapper):
    run = None

    def step(self, action):
        if Breaks.run is not None and Breaks.run.step >= LATER:
            raise ValueError("no ink")
        return super().step(action)


def breaks():
    return Breaks(gymnasium.make("CartPole-v1"))


def fail(what, run, rewriter):
    """Let this process fail by this; returns the arguments of `train`."""
    fails = Fails(run, SIGNALS.get(what))
    if what == "rewriter":
        rewriter.run = run
    elif what == "environment":
        Breaks.run = run
    elif what == "metric":
        run.metric("ink", fails)
    elif what == "save":
        save = run.directory.save
        run.directory.save = lambda *given: fails() or save(*given)
    elif what == "evaluation":
        return {"evaluate": fails}
    else:
        return {"callbacks": fails}
    return {}


def never(run):
    return 0.0


def train(run, what, arguments):
    """Train, or fail in a loop of one's own, which closes its run."""
    if what != "loop":
        return run.train(TARGET.get(what, 640), **arguments)
    try:
        for _ in run.steps(640, save_every=64):
            if "callbacks" in arguments:
                arguments["callbacks"]()
    finally:
        run.close()


def end_while_connecting(engine, rank):
    """Let this process end before all have connected, and others wait for it for some seconds only."""
    if engine == "torch":
        from torch import distributed

        from etude.engines import torch_group

        torch_group.CONNECTING = timedelta(seconds=5)
        if os.environ["RANK"] == rank:
            distributed.new_group = lambda **_: os._exit(1)  # the second of two
    else:
        from etude.engines import jax_replicas

        jax_replicas.CONNECTING = 5
        if os.environ["RANK"] == rank:
            os._exit(1)


def main(engine, what, folder, rank="1"):
    folder, rewriter = Path(folder), Fails(None)
    if what == "connecting":
        end_while_connecting(engine, rank)
    run = etude.Run(
        "ppo",
        breaks if what == "environment" else "CartPole-v1",
        engine=engine,
        environments=4,
        seed=3,
        run_dir=folder / "run",
        network=etude.Mlp((16,)),
        rollout_length=8,
        minibatch_size=16,
        epochs=2,
        execution=etude.Execution(devices="all", rewrite=rewriter.rewrite if what == "rewriter" else None),
    )
    own = 0 if run.group is None else run.group.rank
    (folder / f"{own}.pid").write_text(str(os.getpid()))
    fails = what not in TARGET and own == int(rank)
    arguments = {} if what in TARGET or what in SIGNALS else {"save_every": 64}
    arguments |= {"evaluate_every": 64, "evaluate": never} if what == "evaluation" else {}
    arguments |= fail(what, run, rewriter) if fails else {}
    try:
        finished = train(run, what, arguments)
    except (EtudeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), flush=True)
        sys.exit(ENDED)
    if what == "late" and own == 1:
        time.sleep(3)
    np.savez(folder / f"{own}.npz", step=finished.step, **run.engine.weights())


if __name__ == "__main__":
    main(*sys.argv[1:])
