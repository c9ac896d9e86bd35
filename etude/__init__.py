"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude import algorithms, multi_agent, offline, optimizers, report, tuning
    from etude import base as base
    from etude import checkpoint as checkpoint
    from etude import envs as envs
    from etude import estimation as estimation
    from etude import explore as explore
    from etude import networks as networks
    from etude import ray as ray
    from etude import run as run
    from etude.agent import Agent, Loss, Losses
    from etude.algorithms.variants import Auxiliary, variant
    from etude.base.schedules import Linear
    from etude.estimation import estimate
    from etude.multi_agent.policies import Policies
    from etude.networks import ActorCritic, ByEmbedding, Conv, Mlp, Recurrent, Transformer, target
    from etude.report.plots import plot
    from etude.run import Run, load, resume
    from etude.solo.agent import RL, RL_pytorch
    from etude.training.assembly.parts import assemble
    from etude.training.callbacks import Callback
    from etude.training.description import Environment, Execution
    from etude.training.description import config_for as config
    from etude.training.recording import record, replayed
    from etude.training.schedule import Schedule
    from etude.tuning.evolution import Mutations, Tournament, evolve
    from etude.tuning.study import Study
    from etude.tuning.sweep import sweep
else:
    import_module("etude.base.forks")  # which notices the frameworks that run before a fork
    import_module("etude.config")  # which binds the name that the function takes

    def config(algorithm, environment=None, /, **changes):
        """The preset config of an algorithm for an environment id, or its default config, with these fields changed."""
        from etude.training.description import config_for

        return config_for(algorithm, environment, **changes)


__version__ = "0.1.0"

__all__ = [
    "ActorCritic", "Agent", "Auxiliary", "ByEmbedding", "Callback", "Conv", "Environment", "Execution", "Linear",
    "Loss", "Losses", "Mlp", "Mutations", "Policies", "RL", "RL_pytorch", "Recurrent", "Run", "Schedule", "Study",
    "Tournament", "Transformer", "algorithms", "assemble", "config", "estimate", "evolve", "load", "multi_agent",
    "offline", "optimizers", "plot", "record", "replayed", "report", "resume", "sweep", "target", "tuning", "variant",
]  # fmt: skip

_EXPORTS = {
    "etude.algorithms": "",
    "etude.multi_agent": "",
    "etude.offline": "",
    "etude.optimizers": "",
    "etude.report": "",
    "etude.tuning": "",
    "etude.agent": "Agent Loss Losses",
    "etude.algorithms.variants": "Auxiliary variant",
    "etude.base.schedules": "Linear",
    "etude.estimation": "estimate",
    "etude.multi_agent.policies": "Policies",
    "etude.networks": "ActorCritic ByEmbedding Conv Mlp Recurrent Transformer target",
    "etude.report.plots": "plot",
    "etude.run": "Run load resume",
    "etude.solo.agent": "RL RL_pytorch",
    "etude.training.assembly.parts": "assemble",
    "etude.training.callbacks": "Callback",
    "etude.training.description": "Environment Execution",
    "etude.training.recording": "record replayed",
    "etude.training.schedule": "Schedule",
    "etude.tuning.evolution": "Mutations Tournament evolve",
    "etude.tuning.study": "Study",
    "etude.tuning.sweep": "sweep",
}
_MODULES = {
    name: module for module, names in _EXPORTS.items() for name in names.split() or [module.removeprefix("etude.")]
}


if not TYPE_CHECKING:  # type checkers know what is not there

    def __getattr__(name: str) -> Any:
        """Import the module of a name when a program first uses it, and all of etude for what has none. Worker
        processes use none, and start in half the time."""
        if name == "ray":  # which imports Ray
            return import_module("etude.ray")
        if name == "Setup":
            warnings.warn("etude.Setup is etude.Execution now.", DeprecationWarning, stacklevel=2)
            name = "Execution"
        if name in _MODULES:
            exporting = import_module(_MODULES[name])
            globals()[name] = getattr(exporting, name) if _EXPORTS[exporting.__name__] else exporting
        elif not name.startswith("__"):
            for module in _EXPORTS:
                import_module(module)
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
