"""Start the program, called `python -m profiler` or `cnn-profiler`; what takes long to import comes once it has begun.

The environment variable PROFILER_ENCODING is its own, from one start to the next.
"""

import os
import signal
import sys
from typing import NoReturn

_ENCODING = "PROFILER_ENCODING"


def start() -> NoReturn:
    """Prepare the process for a command, and run the one that the arguments name."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command begins there is nothing to put away, and imports would answer with a traceback.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _restart_in_utf8()
    from profiler.tables.standard_streams import keep_writing

    keep_writing(os.environ.pop(_ENCODING, None))
    _check_names()
    from profiler.cli import main

    main()


def _restart_in_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding, which files would be written in.

    Workers inherit the mode. The terminal goes on in the locale's encoding.
    """
    import codecs
    import locale

    encoding = locale.getencoding()
    if sys.flags.utf8_mode or codecs.lookup(encoding).name == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    os.environ |= {"PYTHONUTF8": "1", _ENCODING: encoding}
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _check_names() -> None:
    """End where the folder in which we are called has a package of one of our names."""
    from importlib.util import find_spec
    from pathlib import Path

    ours = Path(__file__).resolve().parent.parent
    for name in ("engines", "exporters"):
        spec = find_spec(name)
        if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(ours):
            print(f"{spec.origin} has the name of a package of the profiler: call cnn-profiler here", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    start()
