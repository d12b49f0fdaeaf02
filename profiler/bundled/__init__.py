"""Find the files that come with the project: the default job, the suites, the published figures.

In a checkout they lie at its root; a wheel carries them in this folder (pyproject.toml, force-include).
"""

from __future__ import annotations

from pathlib import Path

from exporters import named_files
from exporters.catalog import CATALOG
from profiler.errors import PROGRAM, ConfigError, nearest
from profiler.options import COMMANDS

_YAML = (".yaml", ".yml")
_FOLDER = Path(__file__).resolve().parent


def bundled(name: str) -> Path:
    """Return the path of a file or folder such as "suites", whether or not it exists."""
    carried = _FOLDER / name
    return carried if carried.exists() else _FOLDER.parents[1] / name


def suites() -> dict[str, Path]:
    """Return the published benchmarks' jobs by name."""
    return {path.stem: path for path in sorted(bundled("suites").glob("*.yaml"))}


def job_file(word: str) -> Path | None:
    """Return the file that is given, or the default job for `bench`; None for a model's name.

    Raises ConfigError for what is none of these, such as a misspelt command.
    """
    path = Path(word)
    if path.suffix == ".py":
        module = path.stem if path.is_absolute() else ".".join(path.with_suffix("").parts)
        raise ConfigError(f"{word} is Python: name its function, such as {module}:make")
    if named_files.is_file(path):
        return None if path.suffix == ".onnx" else path
    if word == "bench":
        return bundled("bench.yaml")
    if is_model(word):
        return None
    if word and path.is_dir():
        raise ConfigError(f"{word} is a folder; give hf:{word} for its Transformers model, or --resume {word} for a run")
    if word and (path.suffix in _YAML or named_files.exists(path)):
        return path
    files = [str(each) for each in path.parent.glob("*") if each.suffix in (*_YAML, ".onnx")]
    hint = nearest(word, [*files, *COMMANDS, *CATALOG], f"{PROGRAM} --help says what can be given")
    if word in suites():
        hint = f": {PROGRAM} suites run {word}"
    raise ConfigError(f"'{word}' is neither a file nor a model nor a command{hint}")


def is_model(word: str) -> bool:
    """Return True if a word that names no file is a canonical network or has the form of a source."""
    suffix = Path(word).suffix
    return word in CATALOG or suffix == ".onnx" or (":" in word and "://" not in word and suffix not in _YAML)
