"""Models that attack the process they run in: what each gets for it, and that the next one is right.

All of it is one command of its own, with a forkserver of its own, which some of them stop or end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from robustness.conftest import SEED, SIZE

from profiler.processes import logs
from profiler.processes.logs import BoundedLog
from profiler.processes.pipe import MOST_BYTES, BrokenMessage, Receiver, Sender, frame
from profiler.processes.temporary import OwnFolder, own_folder, sweep
from profiler.processes.trees import take_all_along

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]

FUNCTIONS = '''
import fcntl
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

from profiler.processes import logs, pipe
from profiler.processes.messages import Salvage
from profiler.processes.pipe import frame

HALF = frame(b"x" * 1000)[:100]


def told(data):
    """Into the pipe to the parent, as one who writes into every descriptor that is open; not the tracker's."""
    from multiprocessing import resource_tracker
    for number in range(3, 64):
        try:
            is_written = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if is_written and os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                if number != resource_tracker._resource_tracker._fd:
                    os.write(number, data)
        except OSError:
            pass

def good(_, report):
    return "figures"

def ends_in_mid_message(_, report):
    report(Salvage("kept"))
    told(HALF)
    os._exit(3)

def stops_in_mid_message(_, report):
    report(Salvage("kept"))
    told(HALF)
    os.kill(os.getpid(), signal.SIGSTOP)

def writes_noise(_, report):
    told(bytes(range(256)))
    time.sleep(600)

def announces_gigabytes(_, report):
    told(frame(b"")[:4] + b"\\xff" * 4)
    time.sleep(600)

def sends_no_pickle(_, report):
    told(frame(b"x" * 40))
    time.sleep(600)

def sends_too_much(_, report):
    pipe.MOST_BYTES = 2**20
    return bytes(2**21)

def never_stops_writing(_, report):
    while True:
        report(Salvage("kept"))

def closes_every_descriptor(_, report):
    os.closerange(0, 256)
    os._exit(4)

def goes_on_in_a_copy(_, report):
    if os.fork() == 0:
        report(Salvage("of the copy"))
        return "of the copy"
    os.wait()
    return "figures"

def leaves_a_copy_with_the_pipe(_, report):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
    os._exit(5)

def stops_the_forkserver(_, report):
    os.kill(os.getppid(), signal.SIGSTOP)
    return "figures"

def stops_the_forkserver_and_crashes(_, report):
    os.kill(os.getppid(), signal.SIGSTOP)
    os.abort()

def ends_the_forkserver(_, report):
    start_in_a_session(report)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

def ends_the_forkserver_and_hides(_, report):
    start_in_a_session(report, env={})
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

def start_in_a_session(report, **options):
    other = subprocess.Popen(["sleep", "600"], start_new_session=True, **options)
    report(Salvage(other.pid))
    return other.pid

def starts_in_a_session(_, report):
    return start_in_a_session(report)

def becomes_a_daemon(_, report):
    """By two forks; the second one starts others."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            other = subprocess.Popen(["sleep", "600"], start_new_session=True)
            os.write(write, f"{os.getpid()} {other.pid}".encode())
            time.sleep(600)
        os._exit(0)
    os.wait()
    pids = [int(pid) for pid in os.read(read, 100).split()]
    report(Salvage(pids))
    return pids

def becomes_a_daemon_and_crashes(_, report):
    becomes_a_daemon(_, report)
    os.abort()

def becomes_a_daemon_and_hangs(_, report):
    becomes_a_daemon(_, report)
    time.sleep(600)

def closes_its_output(_, report):
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)
    print("after")
    warnings.warn("a warning")
    return "figures"

def removes_its_output(_, report):
    sys.stdout = sys.stderr = None
    print("after")
    return "figures"

def leaves_its_output_closed(_, report):
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.stdout.close()
    return "figures"

def fails_with_its_output_closed(_, report):
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.stdout.close()
    raise ValueError("no luck")

def floods_its_log(_, report):
    os.write(1, b"the beginning\\n")
    for _ in range(40):
        os.write(1, b"y" * 2**20)
        time.sleep(0.01)
    while os.fstat(1).st_size > logs.MOST_BYTES:  # What is written just while it is cut may be lost.
        time.sleep(0.01)
    os.write(1, b"the end\\n")
    return "figures"
'''

PARENT = """
import json, os, signal, subprocess, sys
from pathlib import Path
from hanging import end_once
from profiler.processes import process
from profiler.processes.process import Call, run_all, run_one, start_forkserver

folder, hanging = Path(sys.argv[1]), sys.argv[2].split()
preload = process._CONTEXT.set_forkserver_preload
process._CONTEXT.set_forkserver_preload = lambda names: preload(["without_libraries"])
process._EXIT_SECONDS = 3.0
start_forkserver(folder / "forkserver.log")
# As another thread of whoever calls `measure` does; it ends with this process, which holds its pipe.
users = subprocess.Popen(["cat"], start_new_session=True, stdin=subprocess.PIPE)


def call(name):
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    return Call(f"attacks:{name}", None, log, timeout=600, path=(str(folder),))


# What hangs does so once it has reported.
end_once(lambda child: child._salvage is not None and child.call.function.partition(":")[2] in hanging)


def said(name, outcome):
    pids = outcome.salvage if isinstance(outcome.salvage, list) else [outcome.salvage]
    living = [pid for pid in pids if isinstance(pid, int) and state(pid) not in "ZXx-"]
    return dict(name=name, status=outcome.status, reason=outcome.reason, value=outcome.value, kept=outcome.salvage,
                seconds=sum(outcome.seconds.values()), living=living)


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"


found = []
for name in sys.argv[3:]:
    for each in (name, "good"):
        found.append(said(each, run_one(call(each))))
# Side by side what one of them leaves is ended, and what another one has is not.
waiting = call("good")
outcomes = run_all([call("becomes_a_daemon"), call("becomes_a_daemon_and_hangs"), waiting], 3)
found += [said(f"side by side {number}", outcome) for number, outcome in enumerate(outcomes)]
# A forkserver that cannot be woken is replaced.
signal_it, process._START_SECONDS = process._signal_forkserver, 1.0
process._signal_forkserver = lambda number: number == signal.SIGCONT or signal_it(number)
found += [said(name, run_one(call(name))) for name in ("stops_the_forkserver", "good")]
print(json.dumps([*found, {"what the caller started": state(users.pid)}]))
"""

ATTACKS = {
    "ends_in_mid_message": ("crashed", "exited with code 3"),
    "stops_in_mid_message": ("timeout", "ended after 600 s"),
    "writes_noise": ("crashed", "wrote into the profiler's pipe what is no message of its own"),
    "announces_gigabytes": ("crashed", "announced a message of 4096 MiB"),
    "sends_no_pickle": ("crashed", "sent what cannot be read (UnpicklingError"),
    "sends_too_much": ("failed", "its result cannot be sent: ValueError: 2 MiB, more than the 1 "),
    "never_stops_writing": ("timeout", "ended after 600 s"),
    "closes_every_descriptor": ("crashed", "exited with code 4"),
    "goes_on_in_a_copy": ("ok", "figures"),
    "leaves_a_copy_with_the_pipe": ("crashed", "exited with code 5"),
    "stops_the_forkserver": ("ok", "figures"),
    "stops_the_forkserver_and_crashes": ("crashed", "ended by SIGABRT"),
    "ends_the_forkserver": ("crashed", "ended with the forkserver, which forks every process"),
    "ends_the_forkserver_and_hides": ("crashed", "ended with the forkserver, which forks every process"),
    "starts_in_a_session": ("ok", ""),
    "becomes_a_daemon": ("ok", ""),
    "becomes_a_daemon_and_crashes": ("crashed", "ended by SIGABRT"),
    "becomes_a_daemon_and_hangs": ("timeout", "ended after 600 s"),
    "closes_its_output": ("ok", "figures"),
    "removes_its_output": ("ok", "figures"),
    "leaves_its_output_closed": ("ok", "figures"),
    "fails_with_its_output_closed": ("failed", "ValueError: no luck"),
    "floods_its_log": ("ok", "figures"),
}
"""By function the status that it must get, and what its reason or its value must say."""
ORDER = [*ATTACKS]
for round_ in range(1, min(SIZE, 5)):  # In a soak each again, after others.
    ORDER += random.Random(SEED + round_).sample([*ATTACKS], len(ATTACKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "attacks.py").write_text(FUNCTIONS)
    modules = ("profiler.processes.process", take_all_along.__module__)
    imports = "".join(f"import {module}\n" for module in modules)
    (folder / "without_libraries.py").write_text(f"{imports}{modules[1]}.{take_all_along.__name__}()\n")
    (folder / "temporary").mkdir()
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> list[dict[str, Any]]:
    """What came of each attack, and of the good call after it."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(folder), os.environ.get("PYTHONPATH", "")])
    hanging = " ".join(name for name, (status, _) in ATTACKS.items() if status == "timeout")
    with (folder / "errors").open("w") as errors:  # No pipe, which whatever outlives it would hold open.
        done = subprocess.run(
            [sys.executable, "-c", PARENT, str(folder), hanging, *ORDER],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "temporary")},
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
        )
    assert done.returncode == 0, (folder / "errors").read_text()
    found: list[dict[str, Any]]
    *found, others = json.loads(done.stdout)
    assert others == {"what the caller started": "S"}, "it was ended with what the calls had left"
    return found


def test_each_attack_is_its_own_case_and_the_next_one_goes_on(outcomes: list[dict[str, Any]], soak: Any) -> None:
    wrong = []
    for attack, after in zip(outcomes[: 2 * len(ORDER) : 2], outcomes[1 : 2 * len(ORDER) : 2], strict=True):
        status, text = ATTACKS[attack["name"]]
        if attack["status"] != status or text not in str(attack["reason"] or attack["value"]):
            wrong.append(attack)
        if (after["status"], after["value"]) != ("ok", "figures"):
            wrong.append(after)
    wrong += [each for each in outcomes if each["living"]]
    assert wrong == []
    soak.count("attacks on a process", len(ORDER), faults=ATTACKS)


def test_what_had_been_reported_is_kept(outcomes: list[dict[str, Any]]) -> None:
    kept = {each["name"]: each["kept"] for each in outcomes}
    for name in ("ends_in_mid_message", "stops_in_mid_message", "never_stops_writing"):
        assert kept[name] == "kept"
    assert kept["goes_on_in_a_copy"] is None


def test_what_a_model_started_in_sessions_of_its_own_ends_with_its_case(outcomes: list[dict[str, Any]]) -> None:
    started = [each["name"] for each in outcomes if each["kept"] and each["kept"] != "kept"]
    kinds = (
        "ends_the_forkserver",
        "ends_the_forkserver_and_hides",
        "starts_in_a_session",
        *(name for name in ATTACKS if "daemon" in name),
    )
    assert {*kinds, "side by side 0", "side by side 1"} == set(started)


def test_of_calls_side_by_side_only_those_that_have_ended_lose_what_they_started(
    outcomes: list[dict[str, Any]],
) -> None:
    found = [(each["status"], each["value"] is not None) for each in outcomes[2 * len(ORDER) : -2]]
    assert found == [("ok", True), ("timeout", False), ("ok", True)]


def test_a_forkserver_that_cannot_be_woken_is_replaced(outcomes: list[dict[str, Any]]) -> None:
    assert [(each["status"], each["value"]) for each in outcomes[-2:]] == [("ok", "figures")] * 2


def test_a_log_keeps_its_beginning_and_its_end(outcomes: list[dict[str, Any]], folder: Path) -> None:
    log = (folder / "floods_its_log.log").read_bytes()
    assert log.startswith(b"the beginning\n")
    assert log.endswith(b"the end\n")
    assert b" MiB left out here" in log
    assert len(log) <= logs.MOST_BYTES + 100


def test_what_is_printed_after_a_model_closed_its_output_is_in_the_log(
    outcomes: list[dict[str, Any]], folder: Path
) -> None:
    text = (folder / "closes_its_output.log").read_text()
    assert "after" in text
    assert "a warning" in text
    assert "ValueError: no luck" in (folder / "fails_with_its_output_closed.log").read_text()


def test_nothing_stays_in_the_temporary_folder(outcomes: list[dict[str, Any]], folder: Path) -> None:
    assert list((folder / "temporary").glob("profiler-*")) == []


@pytest.fixture
def pipe() -> Any:
    read, write = os.pipe()
    yield Receiver(read), write
    os.close(read)


def test_a_message_that_comes_in_pieces_is_whole(pipe: Any) -> None:
    receiver, write = pipe
    Sender(write)({"a": 1})
    assert list(receiver.messages()) == [{"a": 1}]
    data = frame(b"N.") * 2  # Two pickles of None.
    seen = []
    for byte in data:
        os.write(write, bytes([byte]))
        seen += receiver.messages()
    assert seen == [None, None]
    os.close(write)
    with pytest.raises(EOFError):
        list(receiver.messages())


def test_bytes_that_are_no_message_are_known_by_the_first(pipe: Any, soak: Any) -> None:
    tried = 0
    for rng in soak.trials(200):
        data = bytearray(frame(b"." + rng.randbytes(rng.randrange(100))))
        data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        with pytest.raises((BrokenMessage, EOFError)):
            list(Receiver(read).messages())
        os.close(read)
        tried += 1
    receiver, write = pipe
    os.write(write, b"T")
    with pytest.raises(BrokenMessage):
        list(receiver.messages())
    os.close(write)
    with pytest.raises(ValueError, match="256"):
        frame(bytes(MOST_BYTES + 1))
    soak.count("messages", tried)


def test_a_log_that_others_filled_gets_no_more_than_a_mebibyte_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    monkeypatch.setattr(logs, "_LEAST_BYTES", 100)
    path = tmp_path / "log"
    path.write_bytes(b"a" * 950)
    log = BoundedLog(path)
    for _ in range(30):
        with path.open("ab") as file:
            file.write(b"b" * 30 + b"c" * 30)
        log.trim()
        assert path.stat().st_size <= 950 + 160
    log.trim(done=True)
    text = path.read_text()
    assert text.startswith("a" * 950 + "b" * 30 + "c" * 20)
    assert text.endswith("b" * 20 + "c" * 30)
    assert "0.0 MiB left out here" in text
    log = BoundedLog(tmp_path / "link")
    (tmp_path / "link").symlink_to(path)
    log.trim(done=True)
    assert path.read_text() == text


def test_a_forkserver_that_still_imports_ends_with_its_run(tmp_path: Path) -> None:
    torch = "import os, time; os.symlink(str(os.getpid()), 'pid'); time.sleep(600)"
    (tmp_path / "torch.py").write_text(torch)
    start = "subprocess.run([sys.executable, '-c', 'import profiler.worker.preload'])"
    run = f"import os, subprocess, sys; os.environ['PROFILER_STARTED_FOR'] = str(os.getpid())\n{start}"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    parent = subprocess.Popen([sys.executable, "-c", run], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    while not (tmp_path / "pid").is_symlink():
        assert parent.poll() is None
        time.sleep(0.01)
    cwd = Path("/proc", (tmp_path / "pid").readlink(), "cwd")
    assert cwd.exists()
    parent.kill()
    parent.wait()
    while cwd.exists():  # For as long as a test may take; one that has ended and nobody asks after has none.
        time.sleep(0.01)


def test_folders_of_processes_that_are_gone_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = "from profiler.processes.temporary import OwnFolder; print(OwnFolder().path)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    left = Path(done.stdout.strip())
    (left / "inside").mkdir()
    (tmp_path / "profiler-tmp-users").mkdir()
    (tmp_path / "profiler-tmp-abcd1234").symlink_to(ROOT)
    with own_folder() as mine:
        sweep()
        assert mine.exists()
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profiler-tmp-abcd1234", "profiler-tmp-users"]
    assert (ROOT / "profiler").exists()
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/{'l' * 150}")
    one = OwnFolder(for_sockets=True)
    assert len(one.path) < 60
    close, lock = os.close, one._lock

    def interrupted(file: int) -> None:
        close(file)
        if file == lock:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "close", interrupted)
        one.remove()
    one.remove()
