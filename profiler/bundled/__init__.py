"""Find the project's files: the default job, the suites, the published figures.

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
    """Return the path of a file or folder such as "suites", which may be missing."""
    carried = _FOLDER / name
    return carried if carried.exists() else _FOLDER.parents[1] / name


def suites() -> dict[str, Path]:
    """Return the published benchmarks' jobs by name."""
    return {path.stem: path for path in sorted(bundled("suites").glob("*.yaml"))}


def job_file(word: str) -> Path | None:
    """Return the job's file, or the default job for `bench`; None for a model. Raises ConfigError for other words."""
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
        raise ConfigError(
            f"{word} is a folder; give hf:{word} for its Transformers model, or --resume {word} for a run"
        )
    if word and (path.suffix in _YAML or named_files.exists(path)):
        return path
    files = [str(file) for file in path.parent.glob("*") if file.suffix in (*_YAML, ".onnx")]
    hint = nearest(word, [*files, *COMMANDS, *CATALOG], f"your function is module:function; see {PROGRAM} --help")
    if word in suites():
        hint = f": {PROGRAM} suites run {word}"
    raise ConfigError(f"'{word}' is neither a file nor a model nor a command{hint}")


def is_model(word: str) -> bool:
    """Return whether a word is a canonical network or has the form of a source, such as timm:NAME."""
    suffix = Path(word).suffix
    return word in CATALOG or suffix == ".onnx" or (":" in word and "://" not in word and suffix not in _YAML)
