"""Call the code that a run's job names only where this user made the run on this host, or trusts it."""

from __future__ import annotations

from pathlib import Path

from profiler.errors import ConfigError
from profiler.job.config import Config
from profiler.machine import host_and_user
from profiler.results.run_folder import RunFolder


def without_foreign_code(config: Config, folder: Path, option: str, trusted: bool) -> Config:
    """Drop the folders of code from the job of a run that is another one's and not `trusted`.

    Raises ConfigError where such a job names functions or libraries. `option` is what was asked for.
    """
    if trusted or host_and_user().items() <= RunFolder(folder).read_environment().items():
        return config
    factories = [f"{entry.factory} (of {entry.name})" for entry in config.models if entry.factory]
    libraries = [f"{name} (of {entry.label})" for entry in config.engines for name in entry.code]
    if named := ", ".join(factories + libraries):
        places = ", ".join(map(str, config.import_from))
        raise ConfigError(
            f"{option}: another host or user made this run, which calls {named} from {places}; read that code, then "
            "add --trust-code"
        )
    return config.model_copy(update={"import_from": []})
