"""Processes that hold what calls share: what is forked from them, and what becomes of their calls without them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.processes.holders import Holders
from profiler.processes.process import Call, run_one

pytestmark = pytest.mark.slow

FUNCTIONS = """
import ctypes
import os
import threading

from profiler.processes import process
from profiler.processes.process import serve

HELD = []

def holds(argument, report):
    HELD.append(argument)
    serve(report, os.getpid(), 1)

def has_a_thread(argument, report):
    threading.Thread(target=threading.Event().wait, daemon=True, name="waits").start()
    serve(report, None, 1)
    return "made all the same"

def uses(argument, report):
    HELD.append(argument)
    return HELD, os.getppid()

def places(argument, report):
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.argtypes, sbrk.restype = [ctypes.c_long], ctypes.c_void_p
    return sbrk(0) // 2**12, len(process._PLACED[-1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:
    folder = tmp_path_factory.mktemp("holders")
    (folder / "held_things.py").write_text(FUNCTIONS)
    return folder


def call(folder: Path, function: str, argument: str = "", origin: str | None = None) -> Call:
    return Call(f"held_things:{function}", argument, folder / f"{function}.log", path=(str(folder),), origin=origin)


def test_calls_are_forked_from_what_was_made_once_and_share_nothing_else(folder):
    with Holders() as holders:
        made = holders.start({"model": call(folder, "holds", "weights")}, 1)["model"]
        assert made.status == "ok", made.reason
        assert holders.start({"model": call(folder, "holds", "others")}, 1)["model"] is made, "it is there"
        for argument in ("first", "second"):
            outcome = run_one(call(folder, "uses", argument, origin="model"))
            assert outcome.value == (["weights", argument], made.value), outcome.reason
        os.kill(made.value, signal.SIGKILL)
        lost = run_one(call(folder, "uses", "third", origin="model"))
        assert (lost.status, lost.value[0]) == ("ok", ["third"]), "the forkserver forks it then"
    assert run_one(call(folder, "uses", "last", origin="model")).value[0] == ["last"]


def test_a_model_that_the_deadline_stopped_is_made_once_there_is_time(folder):
    with Holders() as holders:
        late = replace(call(folder, "holds", "weights"), deadline=0.0)
        assert holders.start({"model": late}, 1)["model"].status == "timeout"
        assert holders.start({"model": call(folder, "holds", "weights")}, 1)["model"].status == "ok"
        hung = replace(call(folder, "holds", "weights"), timeout=0.0, build_timeout=0.0)
        stopped = holders.start({"hung": hung}, 1)["hung"]
        assert stopped.status == "timeout"
        assert holders.start({"hung": call(folder, "holds")}, 1)["hung"] is stopped, "it would hang again"


def test_a_process_with_other_threads_forks_nothing_and_says_which(folder):
    with Holders() as holders:
        made = holders.start({"busy": call(folder, "has_a_thread")}, 1)["busy"]
        assert (made.status, made.value) == ("ok", "made all the same")
        assert "other threads: waits" in (folder / "has_a_thread.log").read_text()
        assert run_one(call(folder, "uses", "own", origin="busy")).value[0] == ["own"]


def test_heap_and_mappings_are_moved_by_other_numbers_of_pages_in_each_process_of_one_origin(folder):
    with Holders() as holders:
        holders.start({"model": call(folder, "holds", "weights")}, 1)
        found = [run_one(call(folder, "places", origin="model")).value for _ in range(4)]
    ends_of_heaps, mapped = zip(*found, strict=True)
    assert len(set(ends_of_heaps)) > 1
    assert len(set(mapped)) > 1
