"""Real processes that return, raise, print, crash, hang, fork and run out of memory, and what becomes of each."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from profiler.processes import process
from profiler.processes.forkserver import own_folder, sweep
from profiler.processes.messages import Entered, Outcome, Progress, Serves
from profiler.processes.process import Call, Child, explain, run_all, run_one

pytestmark = pytest.mark.slow
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


def wait_for(path):
    end = time.monotonic() + 600  # A partner that never comes must not hang the test.
    while not Path(path).exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)

def returns(argument, report):
    return argument

def raises(message, report):
    raise ValueError(message)

def model_error(message, report):
    raise ModelError(message)

def unsupported(message, report):
    raise Unsupported(message)

def lacks_a_kernel(bits, report):
    import torch
    torch.nn.functional.avg_pool3d(torch.zeros(1, 1, 5, 2, 2, dtype=getattr(torch, bits)), (5, 1, 1))

def fails_after_a_refusal(_, report):
    try:
        lacks_a_kernel("bfloat16", report)
    except RuntimeError:
        raise ValueError("label 7 is out of range")

def prints(_, report):
    print("python-stdout")
    print("python-stderr", file=sys.stderr)
    os.write(1, b"descriptor-1\\n")
    os.write(2, b"descriptor-2\\n")
    ctypes.CDLL(None).puts(b"libc-stdout")

def gets_signal(number, report):
    report(Entered("warm-up"))
    os.kill(os.getpid(), number)

HALF = b"\\0\\0\\0\\xff of which there is no more"

def forges(message, report):
    report(message)
    time.sleep(600)

def ends_in_mid_message(_, report):
    report(Salvage("kept"))
    os.write(report.__self__.fileno(), HALF)
    os._exit(3)

def leaves_a_copy_with_the_pipe(_, report):
    report(Salvage("kept"))
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os.write(report.__self__.fileno(), HALF)
    os._exit(5)

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

def ends_in_an_exit_handler(how, report):
    """Neither Python's exit handlers may run nor C's, among which the destructors of static objects are."""
    atexit.register(end_by, how)
    KEPT.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: end_by(how)))
    ctypes.CDLL(None).__cxa_atexit(KEPT[0], None, None)  # Which is how C++ registers destructors.
    KEPT.append(EndsWhenFreed(how))  # Freed with the interpreter's modules.
    multiprocessing.util.Finalize(None, end_by, (how,), exitpriority=1)
    return "measured"

def raises_with_what_ends_when_freed(how, report):
    held = EndsWhenFreed(how)
    raise Unsupported("not on this machine")

def closes_by(how, report):
    report(Salvage("kept"))
    report(Entered("end"))
    end_by(how)

def leaves_files(how, report):
    KEPT.append(tempfile.NamedTemporaryFile())
    Path(tempfile.mkdtemp(), "left").touch()
    subprocess.run(["mktemp"], check=True)  # As compilers and C++ libraries do: by the environment.
    report(Salvage(tempfile.gettempdir()))
    if how == "hang":
        hang(report)
    if how != "return":
        end_by(how)

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
        "preloaded": PRELOADED, "pid": os.getpid(), "group": os.getpgid(0), "session": os.getsid(0),
        "variable": os.environ.get("GIVEN_TO_THE_CHILD"), "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
    }

def meets(argument, report):
    """Returns once its partner is there too: only where both run at the same time."""
    mine, theirs = argument
    Path(mine).touch()
    wait_for(theirs)
    return mine

def alone(path, report):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # Raises where another one is at it.
    os.unlink(path)

def writes_pid_and_hangs(path, report):
    Path(path + ".new").write_text(str(os.getpid()))
    os.replace(path + ".new", path)
    time.sleep(600)

def gets_signals(given, report):
    path, numbers = given
    with open(path, "a+") as file:
        file.seek(0)
        started = len(file.readlines())
        print("started", file=file)
    if started < len(numbers):
        os.kill(os.getpid(), numbers[started])
    return started

def becomes_a_daemon(how, report):
    """By two forks; the second one starts others, and so does the call, in sessions of their own."""
    read, write = os.pipe()
    own = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            other = subprocess.Popen(["sleep", "600"], start_new_session=True)
            os.write(write, f"{os.getpid()} {other.pid}".encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    report(Salvage([own.pid, *map(int, os.read(read, 100).split())]))
    if how == "hang":
        hang(report)
    if how != "return":
        end_by(how)

def ends_the_forkserver(environment, report):
    other = subprocess.Popen(["sleep", "600"], start_new_session=True, env=environment)
    report(Salvage([other.pid]))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
'''

ENDS = ("SIGSEGV", "hang")


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "child_functions.py").write_text(FUNCTIONS)
    # The first process waits until everything is imported; no timeout below should have that in it.
    outcome = run_one(Call("profiler.worker.preload:probe", None, folder / "probe.log"))
    assert outcome.status == "ok", outcome.reason
    return folder


@pytest.fixture
def call(functions: Path, tmp_path: Path) -> Callable[..., Call]:
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
        """Look at a child, and put the clock forward once that says that it hangs."""

        def look(child: Child) -> None:
            self.now += seconds * (child.progress == "hangs")

        return look


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def ends(pid: int, within: float = 600) -> bool:
    """Tell whether the process is gone, or is so within some seconds; one that is not is killed: no test leaves it."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if not select.select([descriptor], [], [], within)[0]:
                os.kill(pid, signal.SIGKILL)
                return False
        finally:
            os.close(descriptor)
    return True


RAISED = r"ValueError: no luck at .*/child_functions.py:\d+ \(`raise ValueError\(message\)`\)"
FORGED: list[Any] = [*(Entered("warm-up", at="soon"), Entered(3), Progress(None), Serves(3, None))]
FORGED += [Outcome("fine"), Outcome("ok", []), "", 7, {}]
REFUSED = "sent an invalid message: .*"
OUTCOMES: list[tuple[str, Any, str, str, str]] = [
    *[("forges", message, "crashed", REFUSED, "") for message in FORGED],
    ("returns", {"shape": (2, 3)}, "ok", "", ""),
    ("raises", "no\nluck", "failed", RAISED, "in raises"),
    ("model_error", "what is wrong", "failed", "what is wrong", ""),
    ("unsupported", "what is wrong", "unsupported", "what is wrong", ""),
    ("lacks_a_kernel", "bfloat16", "unsupported", "torch: \"\\w+\" not implemented for 'BFloat16'", "Traceback"),
    ("fails_after_a_refusal", None, "failed", "ValueError: label 7 .*", "Traceback"),
    ("lacks_a_kernel", "bool", "failed", "NotImplementedError: .* not implemented for 'Bool'.*", "Traceback"),
    ("prints", None, "ok", "", "descriptor-1"),
    ("gets_signal", signal.SIGKILL, "crashed", "ended by SIGKILL in phase warm-up", ""),
    ("gets_signal", signal.SIGSEGV, "crashed", "ended by SIGSEGV in phase warm-up", "in gets_signal"),
    ("closes_by", "SIGABRT", "crashed", "ended by SIGABRT in phase end", "in end_by"),
    ("ends_in_mid_message", None, "crashed", "exited with code 3", ""),
    ("leaves_a_copy_with_the_pipe", None, "crashed", "exited with code 5", ""),
    *[(name, None, "oom", ".+", "Traceback") for name in ("memory_error", "huge_tensor", "breaks_off")],
    ("model_without_memory", None, "oom", "the factory raised RuntimeError: can't allocate memory", "Traceback"),
    *[("raises_with_what_ends_when_freed", how, "unsupported", "not on this machine", "") for how in ENDS],
    *[("ends_in_an_exit_handler", how, "ok", "", "") for how in ENDS],
]
"""Function, argument, status, pattern of the reason, and what the log holds."""
VALUES = {"returns": {"shape": (2, 3)}, "ends_in_an_exit_handler": "measured"}
PRINTED = ["descriptor-1", "descriptor-2", "libc-stdout", "python-stderr", "python-stdout"]


@pytest.mark.parametrize(("function", "argument", "status", "reason", "logged"), OUTCOMES)
def test_what_happens_to_a_process_is_data(call, capfd, monkeypatch, function, argument, status, reason, logged):
    if function == "forges":  # It does not end by itself.
        monkeypatch.setattr(process, "_EXIT_SECONDS", 0.1)
    outcome = run_one(made := call(function, argument))
    log = made.log.read_text()
    assert outcome.status == status, outcome.reason
    assert re.fullmatch(reason, outcome.reason or "")
    assert outcome.value == VALUES.get(function)
    assert outcome.salvage == ("kept" if re.search("exited|phase end", reason) else None)
    assert logged in log
    assert bool(log) == bool(logged)
    assert function != "prints" or sorted(log.split()) == PRINTED
    assert {"fork", "open"} <= outcome.seconds.keys()
    assert capfd.readouterr() == ("", "")


def test_what_a_call_does_not_return_is_a_crash(call):
    outcome = run_one(call("returns", 3, returns=Path))
    assert (outcome.status, outcome.reason, outcome.value) == ("crashed", "returned int, not Path", None)
    assert explain(RuntimeError("cuda_call.cc:154 CUDA failure 2: out of memory ; GPU=0")).status == "oom"


@pytest.mark.parametrize(
    ("phase", "limits", "reason"),
    [
        ("measure", {"timeout": 2, "build_timeout": 600}, "ended after 2 s in phase measure; raise budget.timeout"),
        ("build", {"timeout": 600, "build_timeout": 1}, "ended after 1 s in phase build"),
    ],
)
def test_a_hang_ends_at_its_limit_and_keeps_what_was_reported(call, clock, phase, limits, reason):
    outcome = run_one(call("hangs_in", phase, **limits), clock.once_it_hangs(2.1))
    assert (outcome.status, outcome.salvage) == ("timeout", {"host": [1.0, 2.0]})
    assert (outcome.reason or "").startswith(reason)
    assert phase in outcome.seconds


def test_a_call_that_no_time_was_left_for_names_no_phase(call):
    outcome = run_one(call("returns", 3, deadline=time.monotonic() - 1))
    assert (outcome.status, outcome.reason) == ("timeout", "stopped: --within expired")


def test_progress_is_told_until_the_phase_ends_and_a_build_is_not_in_the_timeout(call, clock, tmp_path):
    there, seen = tmp_path / "there", []

    def look(child: Child) -> None:
        seen.append((child.phase, child.progress or child.phase))
        if seen[-1] == ("build", "building 45 %"):
            clock.now += 3
            there.touch()
        if seen[-1][0] == "load":
            there.with_name("there-too").touch()

    outcome = run_one(call("tells_progress", str(there), timeout=2, build_timeout=600), look)
    assert outcome.status == "ok", outcome.reason
    assert {("build", "building 45 %"), ("load", "load")} <= set(seen)


@pytest.mark.parametrize("how", ["return", *ENDS])
def test_nothing_stays_of_a_call(call, clock, how):
    files, daemon = (
        run_one(call(name, how, timeout=2), clock.once_it_hangs(3)) for name in ("leaves_files", "becomes_a_daemon")
    )
    assert files.status == daemon.status == {"return": "ok", "hang": "timeout"}.get(how, "crashed")
    assert not Path(files.salvage).exists()
    assert len(daemon.salvage) == 3
    assert all(map(ends, daemon.salvage))


def test_a_child_leads_a_session_and_has_all_imports(call):
    outcomes = run_all([call("who", environment={"GIVEN_TO_THE_CHILD": "yes"}) for _ in range(3)], 3)
    assert len({outcome.value["pid"] for outcome in outcomes}) == 3
    for ids in (outcome.value for outcome in outcomes):
        assert ids["pid"] == ids["group"] == ids["session"] != os.getpid()
        assert (ids["variable"], ids["oom_score_adj"].strip()) == ("yes", "1000")
        assert all(ids["preloaded"].values()), ids["preloaded"]


def test_as_many_run_side_by_side_as_there_are_slots(call, tmp_path):
    files = [str(tmp_path / name) for name in "abcd"]
    ticks: list[int] = []
    pairs = [(files[0], files[1]), (files[1], files[0]), (files[2], files[3]), (files[3], files[2])]
    outcomes = run_all([call("meets", pair) for pair in pairs], 2, ticks.append)
    assert [outcome.value for outcome in outcomes] == files
    assert ticks == sorted(ticks)
    assert ticks[-1] == 4
    alone = run_all([call("alone", str(tmp_path / "lock")) for _ in range(4)], 1)
    assert [outcome.status for outcome in alone] == ["ok"] * 4, alone


@pytest.mark.parametrize(
    ("numbers", "status", "value"),
    [([signal.SIGKILL], "ok", 1), ([signal.SIGSEGV], "ok", 1), ([signal.SIGTERM] * 2, "crashed", None)],
)
def test_what_crashes_runs_once_more(call, tmp_path, numbers, status, value):
    (outcome,) = run_all([call("gets_signals", (str(tmp_path / "starts"), [*map(int, numbers)]))], 1)
    assert (outcome.status, outcome.value) == (status, value), outcome


def test_side_by_side_only_a_call_that_has_ended_loses_what_it_started(call, tmp_path):
    running = Child(call("becomes_a_daemon", "hang"))
    while not running._salvage:
        assert running.poll(1) is None
    ended = run_one(call("becomes_a_daemon", "return"))
    assert all(map(ends, ended.salvage))
    assert all(Path(f"/proc/{pid}").exists() for pid in running._salvage)
    running.kill()
    assert all(map(ends, running._salvage))


def test_interrupt_leaves_no_child(call, tmp_path):
    files = [tmp_path / "first.pid", tmp_path / "second.pid"]

    def interrupt(done: int) -> None:
        if all(file.exists() for file in files):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([call("writes_pid_and_hangs", str(file)) for file in files], 2, interrupt)
    assert all(ends(int(file.read_text())) for file in files)


PARENT = """
import json, os, signal, subprocess, sys
from pathlib import Path
from profiler.processes import process
from profiler.processes.process import Call, Child, run_one, start_forkserver

folder = Path(sys.argv[1])
preload = process._CONTEXT.set_forkserver_preload
process._CONTEXT.set_forkserver_preload = lambda names: preload(["without_libraries"])
mine = subprocess.Popen(["sleep", "600"], start_new_session=True)
start_forkserver(folder / "parent-forkserver.log")
beside = subprocess.Popen(["sleep", "600"])

def call(name, argument=None):
    return Call(f"child_functions:{name}", argument, folder / "parent-child.log", path=(str(folder),))

for environment in (None, {}):
    ended, after = run_one(call("ends_the_forkserver", environment)), run_one(call("returns", "figures"))
    left = [pid for pid in ended.salvage if Path(f"/proc/{pid}/exe").exists()]
    print(json.dumps([ended.status, ended.reason, after.value, left, mine.poll(), beside.poll()]))
mine.kill(), beside.kill()
child = Child(call("becomes_a_daemon", "hang"))
while child.progress != "hangs":
    assert child.poll(1) is None
print(json.dumps([child.process.pid, *child._salvage]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
LIKE_PRELOAD = """
import atexit, os
from profiler.processes.process import adopt_orphans, end_below

adopt_orphans()
PID = os.getpid()
atexit.register(lambda: end_below(PID) if os.getpid() == PID else None)
"""


def test_a_killed_forkserver_is_replaced_and_a_killed_parent_leaves_no_process(functions, tmp_path):
    (functions / "without_libraries.py").write_text(LIKE_PRELOAD)
    path = os.pathsep.join([str(ROOT), str(functions), os.environ.get("PYTHONPATH", "")])
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
    *killed, pids = map(json.loads, text.splitlines())
    for status, reason, *others in killed:
        assert (status, others) == ("crashed", ["figures", [], None, None]), text
        assert "ended with the forkserver" in reason
    assert len(pids) == 4
    assert all(map(ends, pids))


def test_a_forkserver_that_still_imports_ends_with_its_run(tmp_path):
    torch = "import os, time; os.symlink(str(os.getpid()), 'pid'); time.sleep(600)"
    (tmp_path / "torch.py").write_text(torch)
    run = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import profiler.worker.preload'])"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    parent = subprocess.Popen([sys.executable, "-c", run], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    while not (tmp_path / "pid").is_symlink():
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    assert ends(int((tmp_path / "pid").readlink().name))


def test_folders_of_processes_that_are_gone_are_swept(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = "import os; from profiler.processes.forkserver import own_folder\n"
    code += "with own_folder() as folder: print(folder, flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    left = Path(done.stdout.strip())
    sweep()
    assert left.exists(), "it is new"
    os.utime(left / "lock", (0, 0))
    unlocked = tmp_path / "profiler-scratch-without-lock"
    unlocked.mkdir()
    os.utime(unlocked, (0, 0))
    (tmp_path / "profiler-scratch-abcd1234").symlink_to(left.parent / "users")
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "lock").touch()
    with own_folder() as mine:
        os.utime(mine / "lock", (0, 0))
        sweep()
        assert mine.exists()
        assert not left.exists()
        assert not unlocked.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profiler-scratch-abcd1234", "users"]


@pytest.mark.parametrize(
    ("own", "looks", "contradicts"),
    [(10.0, range(1, 11), False), (2.0, range(1, 11), True), (60.0, range(1, 11), True), (2.0, (1, 10), False)],
    ids=["agrees", "slow", "fast", "this process was stopped"],
)
def test_a_clock_that_contradicts_this_processs_is_told(monkeypatch, own, looks, contradicts):
    times = [0.0]
    monkeypatch.setattr(process.time, "monotonic", lambda: times[-1])
    child: Any = Child.__new__(Child)
    vars(child).update(phase="measure", _phase_started=0.0, _seen=0.0, _awake=0.0, _at=100.0, _contradiction=None)
    for now in looks:
        times.append(float(now))
        child._look_at_the_clock()
    child._compare_clocks(100.0 + own)
    assert (child._contradiction is not None) == contradicts


def test_a_killed_run_leaves_one_folder_and_neither_warnings_nor_a_library_change_its_forkserver(tmp_path):
    (tmp_path / "greedy.py").write_text("import torch; torch.set_num_threads(37)")
    (tmp_path / "temporary").mkdir()
    code = """import os
from profiler.processes.forkserver import libraries
with libraries(["greedy"]) as facts:
    print(facts["torch_threads"], flush=True)
    os.kill(os.getpid(), 9)"""
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    more = {"PYTHONPATH": path, "PYTHONWARNINGS": "error", "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **more}, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip().isdigit(), done.stderr
    assert int(done.stdout) != 37
    assert [path.name[:17] for path in (tmp_path / "temporary").iterdir()] == ["profiler-scratch-"]


def test_what_one_look_for_processes_misses_the_next_finds(monkeypatch):
    sleeping = subprocess.Popen(["sleep", "600"], start_new_session=True)
    looks = iter([[], [psutil.Process(sleeping.pid)]])
    monkeypatch.setattr(process, "_children", lambda of, recursive=False: next(looks, []) if of == 1 else [])
    process.end_below(1)
    assert sleeping.wait(300) in (0, -signal.SIGKILL), "0 where another wait has taken its code"
