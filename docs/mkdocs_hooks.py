"""Hooks of MkDocs: the pages at the root of the repository become pages of the site, and their links follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
AT_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LICENCE = "LICENSE"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    for source, page in AT_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked_from_root(text)))
    files.append(File.generated(config, LICENCE, abs_src_path=str(ROOT / LICENCE)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to the pages above, and give code blocks that need one engine its name as their title."""
    for source, target in AT_ROOT.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{source}", rf"](\1{target}", markdown)
    return re.sub(r"^```(\w+) (\w+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def linked_from_root(text: str) -> str:
    """A page of the root with its links as they are from within docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, target in AT_ROOT.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text
