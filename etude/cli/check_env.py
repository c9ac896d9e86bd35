"""`etude check-env`: the mistakes in an environment, each with its fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tyro.conf import UseAppendAction

from etude.base.errors import ConfigError
from etude.cli.options import environment_arguments, parse, split_positionals
from etude.cli.output import say


@dataclass(frozen=True)
class CheckEnv:
    """Check ENV: a Gymnasium id, `module:callable` or `file.py:callable`. The exit code is 1 if it has mistakes."""

    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of ENV's constructor


def main(arguments: Sequence[str]) -> int:
    """Print the findings."""
    names, rest = split_positionals(arguments)
    options: CheckEnv = parse(CheckEnv, rest, "check-env ENV")
    if len(names) != 1:
        raise ConfigError(f"check-env takes one environment; got {len(names)}. Usage: etude check-env module:callable")
    from etude.envs.check import check_environment
    from etude.envs.configured import configured

    environment = configured(names[0], environment_arguments(options.env_arg), None)
    findings = check_environment(environment)
    for finding in findings:
        say(f"{finding.kind}: {finding.name}: {finding.message}")
    mistakes = sum(finding.kind == "mistake" for finding in findings)
    say(f"{names[0]}: {mistakes} to mend." if mistakes else f"{names[0]}: nothing found wrong.")
    return 1 if mistakes else 0
