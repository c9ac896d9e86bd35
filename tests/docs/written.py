"""What the pages hold: code blocks, links, headings, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST, EPISODES = 600, 20  # environment steps, and episodes, that an example trains for here
FEW = 40  # without --whole: gradient steps on recorded data, and steps on pages of algorithms, which may be of those
AFTER = 100  # steps after the first that are learned from, where a block says which, without --whole
LOOP = 1_280  # steps of a loop that a page writes by hand, without --whole: five phases of learning


class Block(NamedTuple):
    """A code block: ```LANGUAGE MARK."""

    page: Path
    line: int
    language: str
    mark: str  # the engine that it needs, or ""
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+) ?(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Block(page, text.count("\n", 0, found.start()) + 1, *found.groups())


def run(block: Block, namespace: dict, whole: bool) -> None:
    """Run a Python block as a script, with fewer steps of training than it says."""
    most = MOST if whole else fewest(block)
    budget = r"(\.(?:train|steps)\(\s*)(\d[\d_]*)"
    fewer = re.sub(budget, lambda call: f"{call[1]}{min(int(call[2]), most)}", block.text)
    if not whole:
        fewer = re.sub(r"^(total = )(\d[\d_]*)", lambda loop: f"{loop[1]}{min(int(loop[2]), LOOP)}", fewer, flags=re.M)
    fewer = re.sub(r"(\bepisodes=)(\d+)", lambda call: f"{call[1]}{min(int(call[2]), EPISODES)}", fewer)
    # Blank lines in front, so that a traceback names the line of the page.
    code = compile("\n" * block.line + fewer, name_of(block.page), "exec", dont_inherit=True)
    namespace.setdefault("__name__", "__main__")
    exec(code, namespace)


def fewest(block: Block) -> int:
    """The steps that a block trains for without --whole: as many as show that it learns."""
    starts = re.search(r"\blearning_starts\W{1,3}(\d+)", block.text)
    on_data = "data=" in block.text and not starts and "sampler" not in block.text  # alone: all are gradient steps
    few = FEW if on_data or block.page.parent.name == "algorithms" else MOST
    return min(few, int(starts[1]) + AFTER if starts else MOST)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def code_spans(page: Path) -> list[str]:
    """What a page writes as code: spans in prose, on one line again, and the lines of blocks of commands."""
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]
    commands = [block.text.replace("\\\n", "") for block in blocks(page) if block.language in ("bash", "console")]
    lines = [line for text in commands for line in text.splitlines()]
    return [span for span in (*spans, *(line.split("  #")[0].strip() for line in lines)) if span]


def links(page: Path) -> list[str]:
    """The targets of links that lead to files."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in found if not target.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(page: Path, heading: str) -> str:
    """The text under a heading of the second order."""
    return page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """The rows of the first table in a text, without its head."""
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows is not None, "there is no table"
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[0].splitlines()[2:]]


def quoted(cell: str) -> list[str]:
    """The names in a cell that are written as code."""
    return re.findall(r"`([^`]+)`", cell)
