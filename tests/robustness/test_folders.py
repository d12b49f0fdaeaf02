"""Commands that read a run refuse in one sentence what they cannot use; a journal loses only its damaged lines."""

from __future__ import annotations

import io
import json
import os
import shutil
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from engines.base import Proof
from profiler import options
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder

STUDY = "convnet-benchmarks"
SUITE = Path(__file__).resolve().parents[2] / "docs" / "results" / "suites" / "2-core-epyc" / STUDY
READERS: dict[str, dict[str, Any]] = {
    "report": {},
    "compare": {},
    "recommend": {},
    "query": {"sql": "select * from results"},
    "layers": {},
    "suites show": {},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(SUITE, tmp_path / "run"))
    (folder / "bench.yaml").write_text("models: [alexnet]\nengines: [eager]\n")
    return folder


def execute(reader: str, run: Path) -> None:
    """Carry out the command."""
    kind, place = options.COMMANDS[reader]
    module, function = place.split(":")
    given = dict(READERS[reader])
    runs = {"run": run} if reader == "layers" else {"runs": [str(run), *filter(None, [given.pop("sql", None)])]}
    getattr(import_module(module), function)(kind(**runs, **given), Console(file=io.StringIO()))


@pytest.mark.parametrize("reader", READERS)
def test_a_table_that_cannot_be_used_is_one_sentence(run, reader):
    (run / "results.parquet").unlink()
    with pytest.raises(ConfigError, match=r"no results yet|lacks results.parquet") as caught:
        execute(reader, run)
    assert "\n" not in str(caught.value)


def test_a_case_that_is_in_a_file_twice_counts_once(run):
    path = run / "results.parquet"
    rows = pl.read_parquet(path)
    pl.concat([rows, rows.head(2).with_columns(latency_ms=pl.lit(9.0))]).write_parquet(path)
    assert read_runs([run]).results.collect().equals(read_runs([SUITE]).results.collect())


ODD: dict[Any, list[Any]] = {
    pl.Float64(): [float("nan"), float("inf"), -1.0, 0.0, 5e-324, 1e-30, 1e30, 1e308, None],
    pl.Int64(): [-1, 0, 1, 2**31, 2**62, None],
    pl.String(): ["", "{", "[]", "\x1b[31m\u202e", "a/b", "=1", "ok", "training", "cuda", "x" * 500, None],
    pl.Boolean(): [True, False, None],
}
FACTS = [
    None,
    True,
    -1,
    1e400,
    float("nan"),
    10**30,
    "",
    "\x1b]0;x\x07",
    [],
    {},
    [[1]],
    {"a": {"b": [None]}},
    {"label": 3},
]


def odd_run(run: Path, rng: Random) -> None:
    """Write values into a run that no run writes: of the right types in its table, of any in its JSON."""
    frame = pl.read_parquet(SUITE / "results.parquet")
    for name in rng.sample(frame.columns, rng.choice([0, 1, 1, 2, 5])):
        dtype, hit = frame.schema[name], [rng.random() < 0.5 for _ in range(frame.height)]
        if dtype in ODD:
            value = pl.Series(name, [rng.choice(ODD[dtype])], dtype).extend_constant(None, 0)
            chosen = pl.Series(hit)
            frame = frame.with_columns(
                pl.when(chosen).then(pl.lit(value[0], dtype)).otherwise(pl.col(name)).alias(name)
            )
    frame.write_parquet(run / "results.parquet")
    facts = json.loads((SUITE / "environment.json").read_text())
    for key in rng.sample([*facts, "roofs", "machine", "usd_per_hour", "spread", "nodes"], rng.choice([0, 1, 2])):
        if isinstance(facts.get(key), dict) and facts[key] and rng.random() < 0.5:
            facts[key][rng.choice(list(facts[key]))] = rng.choice(FACTS)
        else:
            facts[key] = rng.choice(FACTS)
    (run / "environment.json").write_text(json.dumps(facts))


def test_whatever_a_folder_holds_is_shown_or_refused_in_one_sentence(soak, run):
    tried, wrong = 0, list[str]()
    for rng in soak.trials(6, 60):
        odd_run(run, rng)
        for reader in READERS:
            tried += 1
            try:
                execute(reader, run)
            except ConfigError as error:
                if "\n" in str(error) or "\x1b" in str(error):
                    wrong.append(f"{rng.trial}, {reader}: {error!r}")
            except Exception as error:
                wrong.append(f"{rng.trial}, {reader}: {error!r}")
    assert wrong == []
    soak.count("folders of others", tried=tried)


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("latency_ms", float("nan")), ("status", "odd"), ("proof", "[]")]
)
def test_a_row_that_no_run_writes_is_refused(run, name, value):
    table = run / "results.parquet"
    rows = pl.read_parquet(table)
    rows.with_columns(pl.lit(value, rows.schema[name]).alias(name)).write_parquet(table)
    with pytest.raises(ConfigError, match=rf"{name}: must "):
        execute("compare", run)


@pytest.mark.parametrize("facts", ['{"usd_per_hour": NaN}', '{"machine": 3}', '{"roofs": {"copy_gb_s": "fast"}}'])
def test_facts_that_no_run_writes_are_refused(run, facts):
    (run / "environment.json").write_text(facts)
    with pytest.raises(ConfigError, match=r"environment\.json"):
        execute("compare", run)


@pytest.mark.parametrize("table", ["results", "layers"])
def test_a_damaged_table_is_one_sentence(run, table, capfd):
    whole, said = (run / "results.parquet").read_bytes(), list[str]()
    for rng in map(Random, range(8)):
        data = bytearray(whole)
        for _ in range(20):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (run / f"{table}.parquet").write_bytes(data)
        try:
            execute("query", run)
        except ConfigError as error:
            said.append(str(error))
    assert said
    assert [text for text in said if "\n" in text] == []
    assert "panicked" not in capfd.readouterr().err


def test_a_panic_of_polars_is_one_sentence(run, monkeypatch, capfd):
    def panic(*_: Any, **__: Any) -> None:
        os.write(2, b"panicked at deserialize/utils.rs")
        raise pl.exceptions.PanicException("assertion failed")

    monkeypatch.setattr(pl, "scan_parquet", panic)
    with pytest.raises(ConfigError, match=r"results\.parquet"):
        execute("query", run)
    assert capfd.readouterr().err == ""


CASES = [f"resnet18/{v}/inference/fp32/b{b}/r0" for v in ("eager", "ort") for b in (1, 2, 4)]
JOB = """
models: [resnet18]
engines: [eager, ort]
device: cpu
batch_sizes: [1, 2, 4]
budget: {seconds: 0.1}
"""


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "begun")
    run.path.mkdir()
    (run.path / "bench.yaml").write_text(JOB)
    (run.path / "environment.json").write_text('{"cpu": "Xeon"}')
    layer = {"layer": "conv", "kind": "Conv", "nodes": ["a"], "ms": 1.0}
    for case in CASES:
        given: dict[str, Any] = {"proof": Proof(library="torch 2.13"), "layers": [layer], "environment": {"host": "h"}}
        run.append(Result(case, "ok", clock="host", samples={"host": [1.0, 2.0, 3.0]}, throughput=9.0, **given))
    return run


def damaged(data: bytes, rng: Random) -> tuple[bytes, set[int]]:
    """Damage lines of the journal; returns the numbers of those that are as they were, too."""
    lines = data.splitlines(keepends=True)
    hit = {rng.randrange(len(lines)) for _ in range(rng.choice([1, 1, 2, 3]))}
    for number in hit:
        line = bytearray(lines[number][:-1])
        at = rng.randrange(len(line))
        line[at:at] = rng.choice([b"", rng.randbytes(1), rng.randbytes(200)])
        line[at] ^= 1 << rng.randrange(8)
        del line[rng.choice([len(line), at, 0]) :]
        line += rng.choice([b"", b"\n{}", b"\n" + b"[" * 9000, b"\n\xff", b"\nnull", b"\n" + rng.randbytes(50)])
        lines[number] = bytes(line) + b"\n"
    return b"".join(lines), set(range(len(lines))) - hit


def test_whatever_a_journal_holds_its_other_rows_are_read(soak, begun):
    whole, tries, lost = begun.journal.read_bytes(), 0, 0
    plan = make_plan(load_config(begun.path / "bench.yaml"), "cpu")
    for rng in soak.trials(20, 80):
        tries += 1
        data, left = damaged(whole, rng)
        begun.journal.write_bytes(data)
        if left:
            rows = {row["case_id"]: row for row in begun.write_parquet("suite", plan, {})[0].to_dicts()}
            known = begun.results()
            lost += sum(known[CASES[n]].throughput != 9.0 or rows[CASES[n]]["status"] != "ok" for n in left)
    soak.count("journals", tried=tries, rows_lost=lost)
