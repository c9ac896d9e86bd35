"""etude: reinforcement learning. Write an agent in Keras or PyTorch, train it anywhere."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude import algorithms, offline, report, tuning
    from etude.agent import Agent, Loss, Losses
    from etude.algorithms.auxiliary import Auxiliary
    from etude.algorithms.variants import variant
    from etude.base import optimizers
    from etude.base.schedules import Linear
    from etude.config import (
        EpisodesConfig,
        OfflineConfig,
        OffPolicyConfig,
        OnPolicyConfig,
    )
    from etude.estimation import estimate
    from etude.multi_agent.by_policy import Alternate, Frozen, League
    from etude.multi_agent.policies import Policies
    from etude.networks import ActorCritic, ByEmbedding, Conv, Mlp, Recurrent, target
    from etude.run import Run, load
    from etude.solo.agent import RL, RL_pytorch
    from etude.training.build import config_for as config
    from etude.training.build.assemble import assemble
    from etude.training.callbacks import Callback
    from etude.training.recording import record, replayed
    from etude.training.setup import Setup
    from etude.tuning.evolution import Mutations, Tournament, evolve
    from etude.tuning.study import Study
else:
    import_module("etude.config")  # which binds the name that the function takes

    def config(algorithm, environment=None, /, **changes):
        """The preset config of an algorithm for an environment id, or its default config, with these fields changed."""
        from etude.training.build import config_for

        return config_for(algorithm, environment, **changes)


__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "Agent",
    "ByEmbedding",
    "Callback",
    "Auxiliary",
    "Alternate",
    "Conv",
    "EpisodesConfig",
    "Frozen",
    "League",
    "Linear",
    "Loss",
    "Losses",
    "Mlp",
    "Mutations",
    "OffPolicyConfig",
    "OfflineConfig",
    "OnPolicyConfig",
    "Policies",
    "RL",
    "RL_pytorch",
    "Recurrent",
    "Run",
    "Setup",
    "Study",
    "Tournament",
    "algorithms",
    "assemble",
    "config",
    "estimate",
    "evolve",
    "load",
    "offline",
    "optimizers",
    "record",
    "replayed",
    "report",
    "target",
    "tuning",
    "variant",
]

_EXPORTS = {
    "etude.algorithms": "",
    "etude.offline": "",
    "etude.report": "",
    "etude.tuning": "",
    "etude.agent": "Agent Loss Losses",
    "etude.algorithms.auxiliary": "Auxiliary",
    "etude.algorithms.variants": "variant",
    "etude.base": "optimizers",
    "etude.base.schedules": "Linear",
    "etude.config": "EpisodesConfig OfflineConfig OffPolicyConfig OnPolicyConfig",
    "etude.estimation": "estimate",
    "etude.multi_agent.by_policy": "Alternate Frozen League",
    "etude.multi_agent.policies": "Policies",
    "etude.networks": "ActorCritic ByEmbedding Conv Mlp Recurrent target",
    "etude.run": "Run load",
    "etude.solo.agent": "RL RL_pytorch",
    "etude.training.build.assemble": "assemble",
    "etude.training.callbacks": "Callback",
    "etude.training.recording": "record replayed",
    "etude.training.setup": "Setup",
    "etude.tuning.evolution": "Mutations Tournament evolve",
    "etude.tuning.study": "Study",
}


def __getattr__(name: str) -> Any:
    """Import all of etude when a program first uses it. Worker processes do not, and start in half the time."""
    if name == "ray":  # which imports Ray
        return import_module("etude.ray")
    if not name.startswith("__"):
        for module, names in _EXPORTS.items():
            exporting = import_module(module)
            globals().update({each: getattr(exporting, each) for each in names.split()})
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
