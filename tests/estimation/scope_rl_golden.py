"""Values of SCOPE-RL 0.2.1 for `test_golden.py`, printed as JSON:

    python -m venv oracle
    oracle/bin/pip install scikit-learn scipy
    oracle/bin/pip install --no-deps scope-rl==0.2.1
    oracle/bin/python tests/estimation/scope_rl_golden.py > tests/estimation/scope_rl.json

What its estimators do not use (gym, d3rlpy, torch) is replaced by empty modules. Episodes are of equal length, as its
estimators take no others.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

EPISODES, STEPS, ACTIONS = 7, 5, 3


def estimators():
    """The file of its estimators, without the package around it, which needs gym 0.26 and d3rlpy."""
    for name in ("gym", "d3rlpy", "d3rlpy.preprocessing"):
        sys.modules[name] = MagicMock()
    root = Path(importlib.util.find_spec("scope_rl").submodule_search_locations[0])
    for name, folder in (("scope_rl.ope", "ope"), ("scope_rl.ope.discrete", "ope/discrete")):
        package = types.ModuleType(name)
        package.__path__ = [str(root / folder)]
        sys.modules[name] = package
    import scope_rl.ope.discrete.basic_estimators as found

    return found


def case(seed, gamma):
    """Random episodes, and SCOPE-RL's estimates of them."""
    rng, rows = np.random.default_rng(seed), EPISODES * STEPS
    behaviour, target = (rng.dirichlet(np.ones(ACTIONS), rows) for _ in range(2))
    action = rng.integers(0, ACTIONS, rows)
    reward, q = rng.normal(size=rows).round(6), rng.normal(size=(rows, ACTIONS)).round(6)
    known = {
        "step_per_trajectory": STEPS,
        "action": action,
        "reward": reward,
        "pscore": behaviour[np.arange(rows), action],
        "evaluation_policy_action_dist": target,
        "state_action_value_prediction": q,
        "gamma": gamma,
    }
    v = (q * target).sum(1)
    module, found = estimators(), {}
    for name, kind in (
        ("is", module.TrajectoryWiseImportanceSampling),
        ("pdis", module.PerDecisionImportanceSampling),
        ("trajectory_wis", module.SelfNormalizedTIS),
        ("wis", module.SelfNormalizedPDIS),
        ("dr", module.DoublyRobust),
        ("wdr", module.SelfNormalizedDR),
    ):
        taken = {key: value for key, value in known.items() if "value" not in key or name in ("dr", "wdr")}
        found[name] = float(kind()._estimate_trajectory_value(**taken).mean())
    taken = {key: known[key] for key in known if "value" in key or key == "step_per_trajectory" or "dist" in key}
    found["dm"] = float(module.DirectMethod()._estimate_trajectory_value(**taken).mean())
    log_ratio = np.log(target[np.arange(rows), action] / behaviour[np.arange(rows), action])
    tables = {"reward": reward, "log_ratio": log_ratio, "q": q[np.arange(rows), action], "v": v}
    shaped = {name: values.reshape(EPISODES, STEPS).tolist() for name, values in tables.items()}
    return {"gamma": gamma, **shaped, "expected": found}


if __name__ == "__main__":
    print(json.dumps([case(0, 1.0), case(1, 0.9), case(2, 0.5)], indent=1))
