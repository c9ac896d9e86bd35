"""Several agents in one environment: which policy each of them has, and what learns of them together."""

from etude.multi_agent.by_policy import Alternate, Frozen, League
from etude.multi_agent.policies import MultiAgent, Policies

__all__ = ["Alternate", "Frozen", "League", "MultiAgent", "Policies"]
