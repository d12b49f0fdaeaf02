"""Run `python -m profiler`, unless the folder in which it is called has a package of one of our names."""

import sys
from importlib.util import find_spec
from pathlib import Path

OURS = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    for name in ("engines", "exporters"):
        spec = find_spec(name)
        if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(OURS):
            print(f"{spec.origin} has the name of a package of the profiler: call cnn-profiler here", file=sys.stderr)
            sys.exit(2)
    from profiler.cli import main

    main()
