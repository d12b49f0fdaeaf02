"""Find the files that come with the project: the default job, the suites, the published figures, the tested versions.

In a checkout they lie at its root; a wheel carries them in this folder (pyproject.toml, force-include).
"""

from __future__ import annotations

from pathlib import Path

from profiler.errors import ConfigError, nearest
from profiler.options import COMMANDS

_FOLDER = Path(__file__).resolve().parent


def bundled(name: str) -> Path:
    """The path of a file or folder such as "suites", whether or not it exists."""
    carried = _FOLDER / name
    return carried if carried.exists() else _FOLDER.parents[1] / name


def jobs() -> dict[str, Path]:
    """The jobs that can be run by a name: `bench`, and each suite."""
    paths = [bundled("bench.yaml"), *sorted(bundled("suites").glob("*.yaml"))]
    return {path.stem: path for path in paths if path.is_file()}


def job_file(word: str) -> Path:
    """The file that is given, or the job of this name. Raises ConfigError for what is neither, such as a misspelt
    command."""
    path, named = Path(word), jobs()
    if path.suffix or path.exists():
        return path
    if word not in named:
        raise ConfigError(f"'{word}' is neither a file nor a suite nor a command{nearest(word, [*COMMANDS, *named])}")
    return named[word]
