"""Off-policy estimation: what a policy would earn, from episodes that another one played.

`etude.estimate` is the front door. Estimators are functions of arrays, in `importance`, `doubly_robust` and `direct`.
"""

from etude.estimation.estimator import EstimateRequest, Estimates, Estimator, ScheduledEstimates, estimate
from etude.estimation.estimators import METHODS
from etude.estimation.fqe import FQE, FQEConfig

__all__ = ["FQE", "METHODS", "EstimateRequest", "Estimates", "Estimator", "FQEConfig", "ScheduledEstimates", "estimate"]
