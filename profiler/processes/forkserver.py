"""Start the forkserver, and ask the libraries that it imported for their versions and devices."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from profiler.errors import ConfigError
from profiler.processes import trees
from profiler.processes.process import PRELOADED, Call, run_all, start_forkserver
from profiler.processes.temporary import own_folder, sweep

_DIED = re.compile(r"""Fatal Python error: (.+)\n(?:.*\n)*?  File "(.+)", line (\d+)""")


@contextlib.contextmanager
def libraries(modules: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Start the forkserver and ask the libraries, in a forked process, what they are; yields the answers.

    The forkserver also imports `modules`, as far as that works, so that no worker has to. Raises ConfigError where the
    process that is asked ends twice, or a library cannot be loaded.
    """
    os.environ["PROFILER_PRELOAD"] = ",".join(modules)
    sweep()
    with own_folder() as folder:
        log = folder / "forkserver.log"
        # A cache of this run's own: with the user's, build_s would tell what an earlier run had compiled already.
        given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_compile_folder(given, folder / "inductor"))
        start_forkserver(log)
        probe = Call("profiler.worker.preload:probe", None, log, timeout=300)
        (outcome,) = run_all([probe], 1)
        if outcome.status != "ok":
            text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
            if died := _DIED.search(text):  # What a library did as it was imported.
                text = died.expand(r"\1 at \2:\3")
            raise ConfigError(f"the libraries could not be loaded: {outcome.reason}\n{text}".strip())
        yield outcome.value


def _compile_folder(given: str | None, own: Path) -> Path:
    """The folder that the user names for what is compiled; else, and where that cannot be written, this run's `own`,
    with links to all that the user's has: torch locks and writes even what it only reads."""
    if not given:
        return own
    source = Path(given).absolute()
    try:
        source.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=source):
            return source
    except OSError:
        for folder, _, names in os.walk(source):
            linked = own / Path(folder).relative_to(source)
            linked.mkdir(parents=True)
            for name in names:
                if not name.endswith(".lock"):
                    (linked / name).symlink_to(Path(folder, name))
        return own


@contextlib.contextmanager
def leaving_no_trace() -> Iterator[None]:
    """Leave a user's process as it was: without the forkserver that was started, and with its own environment.

    Raises ConfigError where the user has a forkserver already: a process has one at most.
    """
    server: Any = forkserver._forkserver
    before, preload = dict(os.environ), server._preload_modules
    is_running = server._forkserver_pid is not None
    adopted = trees.adopts_orphans()
    if is_running and PRELOADED not in preload:
        raise ConfigError(
            "this process has a forkserver of multiprocessing already, and measuring needs one that has imported the "
            "runtimes: measure before the first process is started by the method 'forkserver', or in a process apart"
        )
    try:
        yield
    finally:
        if not is_running:
            server._stop()
            server.set_forkserver_preload(preload)
        trees.adopt_orphans(adopted)
        os.environ.clear()
        os.environ.update(before)
