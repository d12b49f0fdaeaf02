"""Run calls in processes of this interpreter for a parent in another one, which has other libraries.

multiprocessing's forkserver speaks another protocol in each version of Python, so the parent cannot use one of this
interpreter. This process does: it takes calls from a pipe, runs each as the parent runs its own, and sends how it
ended. It ends with the pipe.
"""

from __future__ import annotations

import os
import select
import sys

from profiler.errors import ConfigError
from profiler.processes import trees
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Outcome, Running
from profiler.processes.pipe import Receiver, Sender
from profiler.processes.process import Call, Child, run_one


def serve(source: int, sink: int) -> None:
    """Run calls that come from a descriptor, one at a time, until nobody can send any more; answer by another one."""
    for descriptor in (source, sink):
        os.set_inheritable(descriptor, False)
    trees.take_all_along()
    calls, send = Receiver(source), Sender(sink)
    trees.end_with_parent()  # Only once the libraries are loaded it looks whether anybody is left to run calls for.
    try:
        with libraries(filter(None, os.environ.get("PROFILER_PRELOAD", "").split(","))) as facts:
            trees.end_with_parent(False)
            send(facts)  # From now on it takes calls.
            while True:
                select.select([source], [], [])
                for call in calls.messages():
                    send(_run(call, source, send))
    except ConfigError as error:
        print(error)
        why = str(error).splitlines()[-1]
        send(Outcome("failed", f"{sys.executable}: the libraries could not be loaded: {why[:300]}"))
    except (EOFError, BrokenPipeError):
        return


def _run(call: Call, source: int, send: Sender) -> Outcome:
    """Run a call, saying how far it is. Raises EOFError, with the call ended, once the parent has gone or ends it."""
    told = 0

    def tell(child: Child) -> None:
        nonlocal told
        if select.select([source], [], [], 0)[0]:  # While a call runs the parent sends nothing.
            raise EOFError
        parts = child.parts[told:]
        told += len(parts)
        send(Running(child.doing, child.phase, child.is_closing, parts))

    outcome = run_one(call, tell)
    outcome.parts = outcome.parts[told:]
    return outcome


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
