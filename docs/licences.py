"""licences.md: the packages that etude installs, each with the licence that it declares."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

from markdown_table import NOTE, table
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

COPYLEFT = re.compile(r"\b(A|L)?GPL|General Public Licen[sc]e|Mozilla|MPL|EUPL|CDDL", re.IGNORECASE)


def licences() -> str:
    """The table, without extras: what `pip install etude` brings."""
    rows = [[name, licence(name)] for name in core()]
    return (
        f"# Licences\n\n{NOTE}\n"
        "What `pip install etude` brings, and the licence of each package as it declares it. A test refuses copyleft. "
        "Extras add more: `video` brings pygame, which is under the LGPL and shows environments in 2D, and a "
        "binary of ffmpeg, which is under the GPL version 3 and writes mp4s. The page of `etude board` holds uPlot, "
        "which is under the MIT License, `etude/board/static/uPlot.LICENSE`.\n\n" + table(["package", "licence"], rows)
    )


def core() -> list[str]:
    """etude's dependencies, and theirs."""
    found: set[str] = set()
    wanted = [Requirement(text) for text in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]
    while wanted:
        each = wanted.pop()
        found.add(metadata(each.name)["Name"])
        for needed in map(Requirement, metadata(each.name).get_all("Requires-Dist") or ()):
            extras = ({"extra": extra} for extra in each.extras or ("",))
            if needed.marker is None or any(map(needed.marker.evaluate, extras)):
                wanted.append(needed)
    return sorted(found, key=str.lower)


def licence(name: str) -> str:
    """The expression that a package declares, or what its classifiers say, or the first line of its text."""
    about = metadata(name)
    named = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each.startswith("License ::")]
    text = about["License-Expression"] or ", ".join(named) or (about["License"] or "").strip().split("\n")[0]
    return text or "not declared"
