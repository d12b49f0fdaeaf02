"""Print the size of the project: lines and files of product, lines of tests, words of docs."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lines(paths: list[Path]) -> int:
    """Count the lines of the files."""
    return sum(path.read_text().count("\n") for path in paths)


def main() -> None:
    """Print one line."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\n") if name and (ROOT / name).exists()]
    python = [name for name in names if name.endswith(".py")]
    product = [ROOT / name for name in python if name.startswith(("exporters/", "engines/", "profiler/"))]
    tests = [ROOT / name for name in python if name.startswith("tests/")]
    docs = [ROOT / name for name in names if name.endswith(".md") and not name.startswith(("docs/results/", "tests/"))]
    words = sum(len(path.read_text().split()) for path in docs)
    counts = (
        f"{lines(product):,} lines in {len(product)} files",
        f"{lines(tests):,} lines of tests",
        f"{words:,} words of docs",
    )
    print("size:", ", ".join(counts))


if __name__ == "__main__":
    main()
