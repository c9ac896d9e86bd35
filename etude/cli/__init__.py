"""The command line: `etude COMMAND ...`. Each command's module is imported when it is called, so that help is quick."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import shlex
import sys
import textwrap
import threading
import time
import traceback

from etude import __version__
from etude.base.errors import EtudeError, UntrustedError
from etude.cli.output import complain, leave_what_is_gone, say

COMMANDS = {
    "train": ("etude.cli.train:train", "Train an algorithm on an environment."),
    "resume": ("etude.cli.resume:main", "Continue a run from its newest checkpoint."),
    "sweep": ("etude.cli.tune:sweep", "Train one config with many seeds, in as few programs as there are cores."),
    "tune": ("etude.cli.tune:tune", "Search hyperparameters of an algorithm in trials."),
    "evolve": ("etude.cli.evolve:main", "Evolve hyperparameters and networks of a population."),
    "find": ("etude.cli.tune:find", "Suggest a learning rate or an optimizer, by short training."),
    "import": ("etude.cli.import_model:main", "Make a run of a model of Stable-Baselines3 or CleanRL."),
    "evaluate": ("etude.cli.runs:evaluate", "Report the mean return of a trained agent over whole episodes."),
    "estimate": ("etude.cli.runs:estimate", "Estimate what a trained agent would earn, from recorded episodes."),
    "watch": ("etude.cli.runs:watch", "Show a trained agent in a window, or record a video."),
    "board": ("etude.cli.board:main", "Show runs as a web page, live: a table, curves, videos."),
    "serve": ("etude.cli.runs:serve", "Answer observations over HTTP with a trained policy."),
    "export": ("etude.cli.runs:export", "Write a trained policy as files that need no etude."),
    "plot": ("etude.cli.runs:plot", "Draw the learning curves of runs, aggregated over seeds, as a PNG."),
    "data": ("etude.cli.looking:data", "Describe recorded data: spaces, episodes, returns, damage."),
    "stacks": ("etude.cli.looking:stacks", "Print the Python stacks of a run that seems stuck, and of its workers."),
    "list": ("etude.cli.looking:list_algorithms", "Algorithms with the spaces they accept, and tuned presets."),
    "check-env": ("etude.cli.looking:check_env", "Find the mistakes in an environment of your own."),
    "doctor": ("etude.cli.looking:doctor", "Versions, engines and devices on this machine."),
}
HELP = f"""\
usage: etude COMMAND ... [--debug]

Reinforcement learning: write an agent in Keras or PyTorch, train it anywhere.

commands:
{textwrap.indent(chr(10).join(f"{name:<11} {about}" for name, (_, about) in COMMANDS.items()), "  ")}

`etude COMMAND --help` lists the options of a command, `etude train ALGORITHM ENV --help` also the hyperparameters.
`--debug` shows the whole traceback of an error.

  etude train dqn CartPole-v1
  etude train ppo CartPole-v1 --steps 100000 --seed 1 --set.learning-rate 0.001:0
  etude train sac my_package.tasks:Reacher --workers 2 --envs 8
"""
USAGE_ERROR = 2
INTERRUPTED = 130
PATIENCE = 2.0  # seconds that threads may take to end with the program


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 found wanting, 2 an error explained, 130 interrupted.

    arguments: those of the command line where None; the program then ends here if threads would keep it.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # of what TensorFlow logs when it is loaded, errors alone
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as a daemon's: the next file that is opened would take its place
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        if arguments is None:
            _end_threads(code)
        return code
    finally:
        leave_what_is_gone()


def _run(given: list[str]) -> int:
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    if not given or given[0] in ("--help", "-h", "help"):
        say(HELP.rstrip("\n"))
        return 0
    if given[0] == "--version":
        say(f"etude {__version__}")
        return 0
    if given[0] not in COMMANDS:
        near = difflib.get_close_matches(given[0], COMMANDS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        complain(f"etude: there is no command {given[0]!r}.{meant} There are {', '.join(COMMANDS)}.")
        return USAGE_ERROR
    try:
        module, _, function = COMMANDS[given[0]][0].partition(":")
        return getattr(importlib.import_module(module), function)(given[1:])
    except EtudeError as error:
        if debug:
            traceback.print_exc()
        text = error.with_options
        if isinstance(error, UntrustedError):  # what was refused, with the command that goes on
            options = [shlex.join([f"--{name.replace('_', '-')}", value]) for name, value in error.again.items()]
            again = f" Or give it yourself: {' '.join(options)}" if options else ""
            text = f"{error.reason} If you trust it: {shlex.join(['etude', *given, '--trust'])}{again}"
        complain(f"etude: {text}")
        return USAGE_ERROR
    except OSError as error:
        few = error.errno in (errno.EMFILE, errno.ENFILE)
        if debug or not (few or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)):
            raise
        complain(f"etude: {_too_few_descriptors() if few else f'{error.strerror}: {error.filename or os.getcwd()}'}")
        return USAGE_ERROR
    except KeyboardInterrupt:
        complain("etude: interrupted.")
        return INTERRUPTED


def _too_few_descriptors() -> str:
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"There are too few file descriptors: this process may have {allowed} open, and needs more (about 64, and 16 "
        f"for each worker). Allow them: ulimit -n {max(1024, allowed)}"
        + (f" (the hard limit here is {most})" if most < 1024 else "")
    )


def _end_threads(code: int) -> None:
    """End the program where threads that an environment started would keep it from ending."""
    until = time.monotonic() + PATIENCE
    others = [each for each in threading.enumerate() if not each.daemon and each is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread.name for thread in others if thread.is_alive()]
    if left:
        complain(
            f"etude: ended with threads still running: {', '.join(left)}. An environment has to stop its threads in "
            "close(), or start them with daemon=True."
        )
        leave_what_is_gone()
        os._exit(code)
