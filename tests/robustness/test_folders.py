"""Every command that reads a results folder says what it cannot use, writes nowhere else and calls no code.

Journals are read whatever their bytes are. What once broke a reader is kept at the end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import traceback
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from robustness.odd_folders import TEXTS, make_run, odd_json, spoil

from engines.base import Proof
from profiler import options
from profiler.errors import ConfigError
from profiler.job.case import CaseId
from profiler.results import parquet_size
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.run.command import _open_job

SECRET = "this must be in no report"
STUDY = "convnet-benchmarks"
_SECONDS = 300
Folders = tuple[Path, Path, Path]
"""The run, a place for what is asked for, and a place that must stay as it is."""


def command(name: str, **given: Any) -> Callable[[Console], int]:
    """What carries a command out, with these options."""
    kind, place = options.COMMANDS[name]
    module, function = place.split(":")
    execute, asked = getattr(import_module(module), function), kind(**given)
    return lambda console: execute(asked, console)


def resumed(run: Path) -> int:
    """Read what a resumed run reads of its folder before it measures."""
    _open_job(options.Run(resume=run, device="cpu")).read("cpu")
    folder = RunFolder(run)
    for read in (folder.results, folder.read_environment, folder.read_models):
        assert isinstance(read(), dict)
    return 0


READERS: dict[str, Callable[[Path, Path], Callable[[Console], int]]] = {
    "report": lambda run, out: command("report", runs=[str(run)]),
    "report md": lambda run, out: command("report", runs=[str(run)], format="md", output=out / "report.md"),
    "report csv": lambda run, out: command(
        "report", runs=[str(run), str(out / "whole")], format="csv", output=out / "t"
    ),
    "report study": lambda run, out: command(
        "report", runs=[str(run)], study="convnet-benchmarks", output=out / "s.html"
    ),
    "compare": lambda run, out: command("compare", runs=[str(run), str(out / "whole")]),
    "compare json": lambda run, out: command("compare", runs=[str(out / "whole"), str(run)], best=True, format="json"),
    "compare md": lambda run, out: command("compare", runs=[str(run)], by="machine", format="md", output=out / "c.md"),
    "recommend": lambda run, out: command("recommend", runs=[str(run)]),
    "recommend training": lambda run, out: command("recommend", runs=[str(run)], pass_="training", format="json"),
    "export": lambda run, out: command("recommend", runs=[str(run)], engine=["eager"], export=out / "artifact"),
    "query": lambda run, out: command("query", runs=[str(run), "select * from results"], format="csv"),
    "query text": lambda run, out: command("query", runs=[str(run), "select * from environments"]),
    "query samples": lambda run, out: command(
        "query", runs=[str(run), "select clock, max(ms) from samples group by clock"]
    ),
    "layers": lambda run, out: command("layers", run=run),
    "published": lambda run, out: command("published", runs=[str(run)], study=STUDY, into=out / "p"),
    "submit": lambda run, out: command("submit", runs=[str(run)], into=out / "submitted", incomplete=True),
    "resume": lambda run, out: lambda console: resumed(run),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def folders(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    run, out, outside = (tmp_path / name for name in ("run", "out", "outside"))
    _fresh(whole, run, out, outside)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return run, out, outside


def _fresh(whole: Path, run: Path, out: Path, outside: Path) -> None:
    """The folders as they were at first."""
    for folder in (run, out, outside):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, run)
    shutil.copytree(whole, out / "whole")
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(reader: str, folders: Folders) -> dict[str, int]:
    """What went wrong when the command read the folder, as the table of suites counts it; prints what it was."""
    run, out, outside = folders
    printed, found = io.StringIO(), dict[str, int]()
    before = _listing(run.parent, run, out)
    try:
        with _limited(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = READERS[reader](run, out)(Console(file=printed, width=120))
            assert code in (0, 1, 3, 4)
    except ConfigError as error:
        printed.write(str(error))
        if not str(error).strip() or "Traceback" in str(error) or "\x1b" in str(error):
            found["tracebacks"] = 1
    except TimeoutError:
        found["hangs"] = 1
    except BaseException:  # A panic of polars is no Exception.
        found["tracebacks"] = 1
        traceback.print_exc()
    after = _listing(run.parent, run, out)
    if after != before:
        found["files_outside"] = 1
    if (outside / "code").exists():
        found["code_run"] = 1
    if SECRET in printed.getvalue() or any(SECRET in _text(path) for path in (*out.rglob("*"), *run.glob("*.html"))):
        found["files_outside"] = 1
    return found


def _listing(place: Path, *without: Path) -> dict[str, bytes]:
    """Every file below a place but in some folders, with what it holds."""
    paths = (path for path in place.rglob("*") if not any(path.is_relative_to(folder) for folder in without))
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() and not path.is_symlink() else ""


@pytest.mark.parametrize("reader", READERS)
def test_a_whole_run_is_read(reader: str, folders: Folders) -> None:
    """What the others spoil is what these commands can use."""
    assert tried(reader, folders) == {}


def test_layers_that_took_no_time_are_read(folders: Folders) -> None:
    path = folders[0] / "layers.parquet"
    pl.read_parquet(path).with_columns(ms=pl.lit(0.0)).write_parquet(path)
    assert tried("report md", folders) == {}


@pytest.mark.slow  # What `export` is not refused it makes.
@pytest.mark.parametrize("quarter", range(4))  # For as many processes.
def test_whatever_a_folder_holds_is_read_or_refused_in_words(
    soak: Any, whole: Path, folders: Folders, quarter: int
) -> None:
    names, found, count = list(READERS), dict[str, int](), 0
    for rng in soak.trials(12, 30):
        _fresh(whole, *folders)
        what = [spoil(folders[0], rng, folders[2]) for _ in range(rng.choice([1, 1, 2, 4]))]
        reader = rng.choice(names)
        wrong = tried(reader, folders)
        if wrong:
            print(f"trial {rng.trial}, {reader}: {wrong} after", *what, sep="\n  ")
        count += 1
        found = {key: found.get(key, 0) + wrong.get(key, 0) for key in {*found, *wrong}}
    soak.count("results folders", tried=count, survived=count - sum(found.values()), **found)


JOB = """
models: [resnet18]
engines: [eager, ort]
device: cpu
batch_sizes: [1, 2, 4]
budget: {seconds: 0.1}
"""
CASES = [CaseId.parse(f"resnet18/{v}/inference/fp32/b{b}/r0") for v in ("eager", "ort") for b in (1, 2, 4)]


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """A run that was ended before its tables, with a line for each of its cases."""
    run = RunFolder(tmp_path / "begun")
    run.path.mkdir()
    (run.path / "bench.yaml").write_text(JOB)
    (run.path / "environment.json").write_text('{"cpu": "Xeon"}')
    layer = {"layer": "conv", "kind": "Conv", "nodes": ["a"], "ms": 1.0}
    for case in CASES:
        given: dict[str, Any] = {"proof": Proof(library="torch 2.13"), "layers": [layer], "environment": {"host": "h"}}
        run.append(Result(case, "ok", clock="host", samples={"host": [1.0, 2.0, 3.0]}, throughput=9.0, **given))
    return run


def odd_line(line: bytes, rng: Random) -> bytes:
    """A line of the journal with a wrong value in it, and a checksum that fits."""
    values = json.loads(line)
    del values["crc32"]
    place = values
    key = rng.choice(list(place))
    if isinstance(place[key], dict) and place[key] and rng.random() < 0.5:
        place = place[key]
        key = rng.choice(list(place))
    place[key if rng.random() < 0.9 else rng.choice(TEXTS)] = odd_json(rng)
    sealed = json.dumps(values).encode()
    return sealed[:-1] + b', "crc32": "%08x"}' % zlib.crc32(sealed)


def spoilt(data: bytes, rng: Random) -> tuple[bytes, set[int]]:
    """The journal with something odd in it, and the numbers of its lines that are as they were."""
    lines = data.splitlines(keepends=True)
    hit = {rng.randrange(len(lines)) for _ in range(rng.choice([1, 1, 2, 3]))}
    for number in hit:
        line = bytearray(lines[number][:-1])
        at = rng.randrange(len(line))
        match rng.choice(["value", "value", "value", "flip", "cut", "insert", "line", "empty"]):
            case "value":
                line[:] = odd_line(bytes(line), rng)
            case "flip":
                line[at] ^= 1 << rng.randrange(8)
            case "cut":
                del line[at:]
            case "insert":
                line[at:at] = rng.randbytes(rng.choice([1, 9, 200]))
            case "line":
                line += b"\n" + rng.choice([b"{}", b"[" * 9000, b"\xff", b"null", rng.randbytes(50), b'{"a": 1e999}'])
            case "empty":
                line.clear()
        lines[number] = bytes(line) + b"\n"
    return b"".join(lines), set(range(len(lines))) - hit


def test_whatever_a_journal_holds_its_other_rows_are_read(soak: Any, begun: RunFolder) -> None:
    whole, tries, raised, lost = begun.journal.read_bytes(), 0, 0, 0
    for rng in soak.trials(40, 80):
        tries += 1
        data, left = spoilt(whole, rng)
        begun.journal.write_bytes(data)
        try:
            rows = {row["case_id"]: row for row in read_runs([begun.path]).results.collect().to_dicts()}
            known = begun.results()
            lost += sum(known[CASES[n]].throughput != 9.0 or rows[str(CASES[n])]["status"] != "ok" for n in left)
        except ConfigError as error:
            assert not left, error
        except BaseException:
            raised += 1
            print(f"trial {rng.trial}")
            traceback.print_exc()
    soak.count("journals", tried=tries, survived=tries - raised, rows_lost=lost, tracebacks=raised)


def refused(folders: Folders, reader: str = "query") -> str:
    """What a reader says that cannot use the folder."""
    with pytest.raises(ConfigError) as caught, _limited():
        READERS[reader](folders[0], folders[1])(Console(file=io.StringIO()))
    return " ".join(str(caught.value).split())


def test_a_file_that_claims_more_than_fits_into_memory_is_refused_unread(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_size, "_ANY", 2**20)  # A GiB takes long to write.
    rows = pl.DataFrame({"ms": [1.0]}).select(pl.col("ms").repeat_by(300_000).explode())
    ids = (pl.lit("x").alias(name) for name in ("run_id", "case_id", "clock"))
    rows.with_columns(*ids, index=pl.lit(0, pl.Int64)).write_parquet(folders[0] / "samples.parquet")
    assert (folders[0] / "samples.parquet").stat().st_size < 2**16
    assert "GiB of memory" in refused(folders)


def test_a_file_of_countless_pages_is_refused_unread(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_size, "_MOST_PAGES", 5)
    assert "too many pages" in refused(folders)


@pytest.mark.parametrize("name", ["results.parquet", "samples.parquet", "bench.yaml"])
@pytest.mark.parametrize("how", ["pipe", "link", "device", "circle"])
def test_what_is_no_file_of_the_folder_is_not_read(folders: Folders, name: str, how: str) -> None:
    path = folders[0] / name
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"link": folders[2] / "secret.txt", "device": "/dev/zero", "circle": name}[how])
    assert tried("report", folders) == {}
    assert tried("submit", folders) == {}


def test_a_huge_environment_is_left_out(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    with (folders[0] / "environment.json").open("wb") as file:
        file.truncate(2 << 30)  # Of nothing: no disk is filled.
    with _limited():
        assert READERS["query text"](folders[0], folders[1])(Console(file=io.StringIO())) == 0
    assert "larger than 8 MiB" in capsys.readouterr().err


def test_rows_that_no_run_writes_are_left_out_with_a_note(folders: Folders) -> None:
    path = folders[0] / "results.parquet"
    rows = pl.read_parquet(path)
    odd = rows.head(1).with_columns(case_id=pl.lit("odd"), latency_ms=pl.lit(float("nan")), status=pl.lit("great"))
    long = rows.head(1).with_columns(case_id=pl.lit("long"), setting=pl.lit(f"optimizer={'a' * 2**17}"))
    pl.concat([rows, odd, long, rows.head(1)], how="vertical_relaxed").write_parquet(path)
    runs = read_runs([folders[0]])
    assert runs.results.collect().height == rows.height
    left_out = next(note for note in runs.notes if "2 rows left out, for values that no run writes" in note)
    assert all(name in left_out for name in ("status", "latency_ms", "setting"))
    assert any("1 row left out, of cases that have one already" in note for note in runs.notes)


def test_texts_move_no_cursor_and_are_no_markup(folders: Folders) -> None:
    path = folders[0] / "results.parquet"
    evil = "\x1b[2J<img src=x onerror=alert(1)>"
    pl.read_parquet(path).with_columns(model=pl.lit(evil)).write_parquet(path)
    out = io.StringIO()
    READERS["query"](folders[0], folders[1])(Console(file=out))
    assert tried("report", folders) == {}
    page = (folders[0] / "report.html").read_text()
    assert "&lt;img src=x" in page and "<img src=x onerror" not in page and "\x1b" not in page


def test_a_report_does_not_follow_a_link_out_of_the_folder(folders: Folders) -> None:
    (folders[0] / "report.html").symlink_to(folders[2] / "secret.txt")
    assert "leads out of the run's folder" in refused(folders, "report")
    assert (folders[2] / "secret.txt").read_text() == SECRET


def test_links_in_a_circle_end_a_pattern(folders: Folders) -> None:
    for name in ("a", "b"):
        (folders[0] / name).symlink_to(folders[0])
    with _limited():
        assert len(read_runs([f"{folders[0].parent}/**"]).runs) == 1


def test_of_several_bases_of_a_cell_the_first_counts(folders: Folders) -> None:
    path = folders[0] / "results.parquet"
    pl.read_parquet(path).with_columns(is_base=True).write_parquet(path)
    for reader in ("report md", "compare", "recommend"):
        assert tried(reader, folders) == {}
