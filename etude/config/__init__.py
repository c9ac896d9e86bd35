"""What the configs of algorithms have in common: the fields that a run itself reads.

The name `etude.config` is a function, `assembly.config_for`; classes come from here by `from etude.config import ...`.
"""

from etude.config.bases import (
    Config,
    EpisodesConfig,
    GradientsConfig,
    OfflineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    OnPolicySequenceConfig,
    SampledConfig,
    SequenceConfig,
    UnrollsConfig,
)

__all__ = [
    "Config", "EpisodesConfig", "GradientsConfig", "OffPolicyConfig", "OfflineConfig", "OnPolicyConfig",
    "OnPolicySequenceConfig", "SampledConfig", "SequenceConfig", "UnrollsConfig",
]  # fmt: skip
