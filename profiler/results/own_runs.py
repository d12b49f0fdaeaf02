"""Know the runs that this user made: their jobs are signed, so that the code they name is called without a question.

A run's bench.yaml says which functions make its models and in which folders they are. Whoever sends a run chooses them,
so the code of another one's run is called only by --trust-code.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import re
import secrets
import shutil
import stat
from pathlib import Path

from profiler.errors import ConfigError
from profiler.job.config import Config
from profiler.results.run_files import open_run_file

_SIGNED = re.compile(rb"# signed ([0-9a-f]{64}), by the user who made this run: docs/security\.md\n\Z")
_COMPILED = "__pycache__"
_MOST = 2 << 20
_BYTES = 32


def signed(job: str, folder: Path) -> str:
    """The text of a run's bench.yaml with this user's signature; without one where no key can be kept."""
    key = _key(make=True)
    if key is None:
        return job
    return f"{job}# signed {_signature(key, job.encode(), folder)}, by the user who made this run: docs/security.md\n"


def is_own(folder: Path) -> bool:
    """Whether this user made the run, and neither its job nor code in its folder has changed since."""
    key = _key(make=False)
    try:
        with open_run_file(folder / "bench.yaml", _MOST) as file:
            text = file.read()
        found = _SIGNED.search(text)
        if key is None or found is None:
            return False
        return hmac.compare_digest(found[1].decode(), _signature(key, text[: found.start()], folder))
    except OSError:
        return False


def without_foreign_code(config: Config, folder: Path, option: str, trusted: bool) -> Config:
    """The job of the run in the folder, without the folders of code that no model of it needs.

    Raises ConfigError, which names the code, where its models are made by functions, or its engines load libraries,
    that this user has neither written into the job nor `trusted`. `option` is what was asked for.
    """
    if trusted or (is_own(folder) and _has_source_alone(folder)):
        return config
    factories = [f"{entry.factory} (of {entry.name})" for entry in config.models if entry.factory]
    libraries = [f"{name} (of {entry.label})" for entry in config.engines for name in entry.code]
    if named := factories + libraries:
        places = ", ".join(map(str, config.import_from))
        raise ConfigError(
            f"{option}: this run was made elsewhere, or its bench.yaml has been changed since, and it is measured by "
            f"code of its own: {', '.join(named)}, from {places}, or installed; read that code, and where you trust it "
            "add --trust-code"
        )
    return config.model_copy(update={"import_from": []})


def _signature(key: bytes, job: bytes, folder: Path) -> str:
    """Of the job's text and, where a live module was saved in the run's folder, of that."""
    signature = hmac.new(key, job, hashlib.sha256)
    saved = folder / "model"
    if saved.is_symlink():
        raise OSError(errno.EPERM, "it is a link, and no run saves one", str(saved))  # It may lead to a whole disk.
    for path in sorted(saved.rglob("*")):
        if _COMPILED in path.relative_to(saved).parts:
            continue
        signature.update(f"\n{path.relative_to(folder)}\n".encode())
        if not path.is_dir():
            with open_run_file(path) as file:
                signature.update(hashlib.file_digest(file, "sha256").digest())
    return signature.hexdigest()


def _has_source_alone(folder: Path) -> bool:
    """Remove what was compiled of a saved module, which Python would believe in place of the code that is signed, and
    say whether it is gone: not from a folder that may only be read."""
    for compiled in list((folder / "model").rglob(_COMPILED)):
        shutil.rmtree(compiled, ignore_errors=True)
    return not any((folder / "model").rglob(_COMPILED))


def _key(make: bool) -> bytes | None:
    """This user's key, which nobody else may read; None where there is none, and none can be made."""
    try:
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        path = root / "cnn-profiler" / "key"
        if make and not path.exists():
            _make_key(path)
        with path.open("rb") as file:
            facts, key = os.fstat(file.fileno()), file.read(_BYTES + 1)
    except (OSError, RuntimeError):  # Who has no home has no key.
        return None
    is_private = facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
    return key if is_private and len(key) == _BYTES else None


def _make_key(path: Path) -> None:
    """Put a key into place, whole; the first of several processes wins. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, secrets.token_bytes(_BYTES))
        os.fsync(file)
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.close(file)
        scratch.unlink(missing_ok=True)
