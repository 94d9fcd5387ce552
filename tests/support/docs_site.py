"""Builds the pages as a searchable site in site/: python -m tests.support.docs_site.

It copies the pages, and the files that they link to, into build/docs in the same order of folders,
so that mkdocs checks every link and anchor.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAGE: Final = ROOT / "build" / "docs"
_PAGES: Final = ("*.md", "docs/*.md", "benchmarks/*.md")
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)\s]*\)")


def stage(folder: Path) -> int:
    """Copies pages and what they link to; returns how many pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = [page for pattern in _PAGES for page in ROOT.glob(pattern) if page.name != "AGENTS.md"]
    files = set(pages)
    for page in pages:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / link).resolve()
            if linked.is_file():
                files.add(linked)
    for file in files:
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return len(pages)


def main() -> None:
    """Stages the pages and has mkdocs build them."""
    stage(STAGE)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "mkdocs.yml"]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
