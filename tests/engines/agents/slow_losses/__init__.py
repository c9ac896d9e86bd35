"""Every algorithm's losses and metrics for one batch, in float64, one step after the other, as the papers say them.

Nothing of etude is imported. `Numbers` holds what is given: weights by name, noise, spaces and hyperparameters; a `Row`
is one step of a batch. Each function below returns (losses by name, metrics by name, errors of each row for priorities,
or None).
"""

from slow_losses.actor_critics import *  # noqa: F403
from slow_losses.given import *  # noqa: F403
from slow_losses.imitation import *  # noqa: F403
from slow_losses.models import *  # noqa: F403
from slow_losses.offline import *  # noqa: F403
from slow_losses.policies import *  # noqa: F403
from slow_losses.several import *  # noqa: F403
from slow_losses.values import *  # noqa: F403
