"""Real processes that return, raise, print, crash, hang and run out of memory, and what their parent makes of each."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.processes import process
from profiler.processes.process import Call, Child, explain, run_all, run_one

ROOT = Path(__file__).resolve().parents[3]

FUNCTIONS = '''
import sys

PRELOADED = {name: name in sys.modules for name in ("torch", "onnxruntime", "profiler.worker.measure_case")}

import atexit
import ctypes
import multiprocessing.util
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from engines.base import Unsupported
from exporters.source import ModelError
from profiler.processes.messages import Entered, Progress, Salvage

DEADLINE = 600  # A partner that never comes must not hang the test.


def wait_for(path):
    end = time.monotonic() + DEADLINE
    while not Path(path).exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def returns(argument, report):
    return {"got": argument}

def preloaded(_, report):
    return PRELOADED

def raises(message, report):
    raise ValueError(message)

def model_error(message, report):
    raise ModelError(message)

def unsupported(message, report):
    raise Unsupported(message)

def prints(_, report):
    print("python-stdout")
    print("python-stderr", file=sys.stderr)
    os.write(1, b"descriptor-1\\n")
    os.write(2, b"descriptor-2\\n")
    return "done"

def prints_by_libc(_, report):
    ctypes.CDLL(None).puts(b"libc-stdout")

def gets_signal(number, report):
    report(Entered("warm-up"))
    os.kill(os.getpid(), number)

def hang(report):
    report(Progress("hangs"))
    time.sleep(600)

def hangs_in(phase, report):
    report(Entered(phase))
    report(Salvage({"host": [1.0]}))
    report(Salvage({"host": [1.0, 2.0]}))
    hang(report)

def tells_progress(there, report):
    report(Entered("build"))
    report(Progress("building 45 %"))
    wait_for(there)
    report(Entered("load"))
    wait_for(there + "-too")

def end_by(how):
    if how == "hang":
        time.sleep(600)
    os.kill(os.getpid(), getattr(signal, how))

class EndsWhenFreed:
    def __init__(self, how):
        self.how = how

    def __del__(self):
        end_by(self.how)

KEPT = []

def ends_in_an_exit_handler(argument, report):
    """Neither Python's exit handlers may run nor C's, among which the destructors of static objects are."""
    kind, how, told = argument

    def end():
        Path(told).touch()
        end_by(how)

    if kind == "atexit":
        atexit.register(end)
    elif kind == "static":
        KEPT.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: end()))
        ctypes.CDLL(None).__cxa_atexit(KEPT[0], None, None)  # Which is how C++ registers destructors.
    else:
        KEPT.append(EndsWhenFreed(how))  # Freed with the interpreter's modules.
        multiprocessing.util.Finalize(None, end, exitpriority=1)
    return "measured"

def raises_with_what_ends_when_freed(argument, report):
    error, how = argument
    held = EndsWhenFreed(how)
    raise Unsupported(error)

def closes_by(how, report):
    report(Salvage("measured"))
    report(Entered("end"))
    end_by(how)

def leaves_files(how, report):
    folder = tempfile.mkdtemp()
    Path(folder, "left").touch()
    KEPT.append(tempfile.NamedTemporaryFile())
    KEPT.append(tempfile.TemporaryDirectory())
    KEPT.append(multiprocessing.util.get_temp_dir())
    subprocess.run(["mktemp"], check=True)  # As compilers and C++ libraries do: by the environment.
    report(Salvage(tempfile.gettempdir()))
    if how == "hang":
        hang(report)
    if how != "return":
        end_by(how)

def compilers_headers(_, report):
    from torch._inductor.codecache import _HEADER_DIR
    return _HEADER_DIR, os.path.dirname(os.environ["PROFILER_FORKSERVER_LOG"])

def memory_error(_, report):
    raise MemoryError

def huge_tensor(_, report):
    import torch
    return torch.empty(1 << 50)

def breaks_off(_, report):
    try:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")

def model_without_memory(_, report):
    try:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
    except RuntimeError as error:
        raise ModelError("the factory raised RuntimeError: can't allocate memory") from error

def who(_, report):
    return {
        "pid": os.getpid(), "group": os.getpgid(0), "session": os.getsid(0), "parent": os.getppid(),
        "variable": os.environ.get("GIVEN_TO_THE_CHILD"), "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
    }

def meets(argument, report):
    """Returns once its partner is there too: only where both run at the same time."""
    index, mine, theirs = argument
    Path(mine).touch()
    wait_for(theirs)
    return index

def waits_for_file(argument, report):
    index, path = argument
    wait_for(path)
    return index

def makes_file(argument, report):
    index, path = argument
    Path(path).touch()
    return index

def writes_pid_and_hangs(path, report):
    Path(path + ".new").write_text(str(os.getpid()))
    os.replace(path + ".new", path)
    time.sleep(600)

def alone(path, report):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # Raises where another one is at it.
    os.unlink(path)

def gets_signals(given, report):
    path, numbers = given
    with open(path, "a+") as file:
        file.seek(0)
        started = len(file.readlines())
        print("started", file=file)
    if started < len(numbers):
        os.kill(os.getpid(), numbers[started])
    return started
'''

Calls = Callable[..., Call]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "child_functions.py").write_text(FUNCTIONS)
    # The first process waits until everything is imported; no timeout below should have that in it.
    outcome = run_one(Call("profiler.worker.preload:probe", None, folder / "probe.log"))
    assert outcome.status == "ok", outcome.reason
    return folder


@pytest.fixture
def call(functions: Path, tmp_path: Path) -> Calls:
    def make(function: str, argument: Any = None, **limits: Any) -> Call:
        log = tmp_path / f"{function}.log"
        return Call(f"child_functions:{function}", argument, log, path=(str(functions),), **limits)

    return make


class Clock:
    """Stands still until a test puts it forward, so that no limit ends what a busy machine has not yet begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=time.sleep))

    def once_it_hangs(self, seconds: float) -> Callable[[Child], None]:
        """What looks at a child and puts the clock forward once that says that it hangs."""

        def look(child: Child) -> None:
            self.now += seconds * (child.progress == "hangs")

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ends(pid: int, within: float = 600) -> bool:
    """Whether the process is gone, or is so within some seconds; one that is not is killed: no test leaves it."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if not select.select([descriptor], [], [], within)[0]:
                os.kill(pid, signal.SIGKILL)
                return False
        finally:
            os.close(descriptor)
    return True


def test_value_comes_back(call: Calls) -> None:
    outcome = run_one(call("returns", {"shape": (2, 3)}))
    assert (outcome.status, outcome.reason, outcome.value) == ("ok", None, {"got": {"shape": (2, 3)}})
    assert {"fork", "open"} <= outcome.seconds.keys()


def test_exception_is_a_reason_and_its_traceback_stands_in_the_log(call: Calls) -> None:
    outcome = run_one(made := call("raises", "no\nluck"))
    place = f"{made.path[0]}/child_functions.py:37 (`raise ValueError(message)`)"
    assert (outcome.status, outcome.reason) == ("failed", f"ValueError: no luck at {place}")
    log = made.log.read_text()
    assert "Traceback" in log
    assert "in raises" in log


@pytest.mark.parametrize(("function", "status"), [("model_error", "failed"), ("unsupported", "unsupported")])
def test_expected_errors_give_their_message_alone(call: Calls, function: str, status: str) -> None:
    outcome = run_one(made := call(function, "what is wrong"))
    assert (outcome.status, outcome.reason) == (status, "what is wrong")
    assert made.log.read_text() == ""


def test_output_goes_to_the_log(call: Calls, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_one(made := call("prints")).value == "done"
    assert sorted(made.log.read_text().split()) == ["descriptor-1", "descriptor-2", "python-stderr", "python-stdout"]
    assert capfd.readouterr() == ("", "")


def test_what_c_libraries_have_buffered_is_in_the_log(call: Calls) -> None:
    run_one(made := call("prints_by_libc"))
    assert made.log.read_text() == "libc-stdout\n"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_signal_is_a_crash_with_its_name(call: Calls, name: str) -> None:
    outcome = run_one(call("gets_signal", int(signal.Signals[name])))
    assert outcome.status == "crashed"
    assert name in (outcome.reason or "")
    assert "while warming up" in (outcome.reason or "")


def test_hang_ends_at_the_timeout_and_keeps_what_was_reported(call: Calls, clock: Clock) -> None:
    outcome = run_one(call("hangs_in", "measure", timeout=2, build_timeout=600), clock.once_it_hangs(2.1))
    assert outcome.status == "timeout"
    assert "while measuring" in (outcome.reason or "")
    assert "2 s" in (outcome.reason or "")
    assert (outcome.salvage, outcome.phase) == ({"host": [1.0, 2.0]}, "measure")
    assert "measure" in outcome.seconds


def test_hang_while_building_ends_at_the_build_timeout(call: Calls, clock: Clock) -> None:
    outcome = run_one(call("hangs_in", "build", timeout=600, build_timeout=1), clock.once_it_hangs(1.1))
    assert outcome.status == "timeout"
    assert "while building" in (outcome.reason or "")


def test_progress_is_told_until_the_phase_ends_and_a_build_is_not_in_the_timeout(
    call: Calls, clock: Clock, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    seen: list[tuple[str, str]] = []

    def look(child: Child) -> None:
        if (child.phase, child.progress) not in seen:
            seen.append((child.phase, child.progress))
        if seen[-1] == ("build", "building 45 %"):
            assert child.doing == "building 45 %"
            clock.now += 3
            there.touch()
        if seen[-1][0] == "load":
            assert child.doing == "load"
            there.with_name("there-too").touch()

    outcome = run_one(call("tells_progress", str(there), timeout=2, build_timeout=600), look)
    assert outcome.status == "ok", outcome.reason
    assert ("build", "building 45 %") in seen
    assert ("load", "") in seen
    assert outcome.salvage is None


@pytest.mark.parametrize("function", ["memory_error", "huge_tensor", "model_without_memory", "breaks_off"])
def test_want_of_memory_is_oom(call: Calls, function: str) -> None:
    outcome = run_one(made := call(function))
    assert outcome.status == "oom", outcome.reason
    assert outcome.reason
    assert "Traceback" in made.log.read_text()


def test_a_reason_says_how_onnx_runtime_failed_and_not_in_which_template() -> None:
    where = (
        "Error in execution: /onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<"
        "THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, "
        "SUCCTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; bool THRW = true; SUCCTYPE = cudaError; "
        "std::conditional_t<THRW, void, common::Status> = void] "
    )
    how = "CUDA failure 901: operation failed due to a previous error during capture ; GPU=0 ; expr=cudaStreamEnd"
    outcome = explain(RuntimeError(where + how))
    assert (outcome.status, outcome.reason) == ("failed", f"RuntimeError: Error in execution: {how}")
    assert explain(RuntimeError(where + "CUDA failure 2: out of memory ; GPU=0")).status == "oom"


ENDS = ("SIGABRT", "SIGSEGV", "hang")


@pytest.mark.parametrize("kind", ["atexit", "static", "interpreter"])
@pytest.mark.parametrize("how", ENDS)
def test_a_child_runs_no_exit_handlers_or_destructors(call: Calls, tmp_path: Path, kind: str, how: str) -> None:
    child = Child(call("ends_in_an_exit_handler", (kind, how, str(tmp_path / "told"))))
    while (outcome := child.poll(1)) is None:
        pass
    assert (outcome.status, outcome.value) == ("ok", "measured"), outcome.reason
    assert child.process.exitcode == 0
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize("how", ENDS)
def test_an_error_is_told_before_what_its_frames_hold_is_freed(call: Calls, how: str) -> None:
    outcome = run_one(call("raises_with_what_ends_when_freed", ("not on this machine", how)))
    assert (outcome.status, outcome.reason) == ("unsupported", "not on this machine")


@pytest.mark.parametrize("how", ENDS)
def test_closing_has_a_limit_of_its_own_and_is_told_by_its_phase(
    call: Calls, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "hang":
        monkeypatch.setattr(process, "_CLOSE_SECONDS", 1.0)
    outcome = run_one(call("closes_by", how))
    reason = "closing the session took more than 1 s" if how == "hang" else f"ended by {how} while closing the session"
    assert (outcome.phase, outcome.reason) == ("end", reason)
    assert outcome.salvage == "measured"


@pytest.mark.parametrize("how", ["return", *ENDS])
def test_nothing_stays_in_the_temporary_folder(
    call: Calls, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    made = call("leaves_files", how, timeout=2)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    outcome = run_one(made, clock.once_it_hangs(3))
    assert outcome.salvage.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_what_imports_choose_in_the_temporary_folder_goes_with_the_forkserver(call: Calls) -> None:
    headers, folder = run_one(call("compilers_headers")).value
    assert headers.startswith(folder)


def test_child_leads_a_session_of_its_own(call: Calls) -> None:
    ids = run_one(call("who", environment={"GIVEN_TO_THE_CHILD": "yes"})).value
    assert ids["pid"] == ids["group"] == ids["session"] != os.getpid()
    assert ids["parent"] not in (os.getpid(), 1)  # The forkserver.
    assert ids["variable"] == "yes"
    assert ids["oom_score_adj"].strip() == "1000"


def test_every_call_has_a_process_of_its_own(call: Calls) -> None:
    assert len({outcome.value["pid"] for outcome in run_all([call("who") for _ in range(3)], 3)}) == 3


def test_libraries_are_there_before_the_child_imports_anything(call: Calls) -> None:
    assert run_one(call("preloaded")).value == {
        "torch": True,
        "onnxruntime": True,
        "profiler.worker.measure_case": True,
    }


def test_as_many_run_side_by_side_as_there_are_slots(call: Calls, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in "abcd"]
    pairs = [(0, files[0], files[1]), (1, files[1], files[0]), (2, files[2], files[3]), (3, files[3], files[2])]
    ticks: list[int] = []
    outcomes = run_all([call("meets", pair) for pair in pairs], 2, ticks.append)
    assert [outcome.value for outcome in outcomes] == [0, 1, 2, 3]
    assert ticks == sorted(ticks)
    assert ticks[-1] == 4


@pytest.mark.parametrize(
    ("numbers", "status", "value"),
    [([signal.SIGKILL], "ok", 1), ([signal.SIGSEGV], "ok", 1), ([signal.SIGTERM] * 2, "crashed", None)],
)
def test_what_crashes_runs_once_more(
    call: Calls, tmp_path: Path, numbers: list[int], status: str, value: int | None
) -> None:
    (outcome,) = run_all([call("gets_signals", (str(tmp_path / "starts"), [int(each) for each in numbers]))], 1)
    assert (outcome.status, outcome.value) == (status, value), outcome


def test_no_more_run_than_there_are_slots(call: Calls, tmp_path: Path) -> None:
    outcomes = run_all([call("alone", str(tmp_path / "lock")) for _ in range(4)], 1)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4, outcomes


def test_outcomes_keep_the_order_of_the_calls(call: Calls, tmp_path: Path) -> None:
    path = str(tmp_path / "made-by-the-second")
    outcomes = run_all([call("waits_for_file", (0, path)), call("makes_file", (1, path)), call("raises", "x")], 2)
    assert [outcome.value for outcome in outcomes] == [0, 1, None]
    assert outcomes[2].status == "failed"


def test_interrupt_leaves_no_child(call: Calls, tmp_path: Path) -> None:
    files = [tmp_path / "first.pid", tmp_path / "second.pid"]

    def interrupt(done: int) -> None:
        if all(file.exists() for file in files):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([call("writes_pid_and_hangs", str(file)) for file in files], 2, interrupt)
    assert all(ends(int(file.read_text())) for file in files)


@pytest.mark.slow
def test_a_call_is_known_while_it_ends() -> None:
    """A zombie, as what is about to become one, has no environment that could be read."""
    script = f"echo {process._FIRST_TO_GO} > /proc/self/oom_score_adj"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process._is_of_a_call(child.pid)
    with subprocess.Popen(["true"], start_new_session=True) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process._is_of_a_call(child.pid), "somebody else's"


PARENT = """
import os, signal, sys
from pathlib import Path
from profiler.processes import process
from profiler.processes.process import Call, Child, start_forkserver

folder = Path(sys.argv[1])
process._CONTEXT.set_forkserver_preload = lambda names: None  # It need not import torch to outlive its parent.
start_forkserver(folder / "parent-forkserver.log")
child = Child(Call("child_functions:hangs_in", "measure", folder / "parent-child.log", path=(str(folder),)))
while child.phase != "measure":
    assert child.poll(1) is None
print(child.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_parent_leaves_no_worker(functions: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # A file, since a pipe would be held open by whatever outlives the parent.
    with (tmp_path / "said").open("w+") as said:
        done = subprocess.run(
            [sys.executable, "-c", PARENT, str(functions)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said.seek(0)
        text = said.read()
    assert done.returncode == -signal.SIGKILL, text
    assert ends(int(text))
