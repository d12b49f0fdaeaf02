"""Make results folders that no run writes: a small whole run, and what can be wrong with each of its files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import handmade
import polars as pl
import yaml

from profiler.results.columns import LAYERS
from profiler.results.reading import with_all_columns

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "docs" / "results" / "suites" / "2-core-xeon" / "convnet-benchmarks"
FILES = ("results.parquet", "samples.parquet", "layers.parquet", "environment.json", "bench.yaml")
TEXTS = (
    *("", " ", "\x1b[2J\x1b]0;owned\x07", "a\x00b", "\u202eevil", "\u2028", "a\nb", "😀", "a/b", "a,b", "a=b", "::"),
    *("../../outside/made", "/etc/passwd", "..", ".", "CON", "-rf", "--output", "$(touch made)", "`touch made`"),
    *("<script>hacked=1</script>", "</script><img src=x onerror=hacked=1>", "[x](javascript:hacked)", "|**_#"),
    *("x" * 300, "y" * 70_000, "resnet18", "fp32", "inference", "ok", "1e999", "{}", "[" * 5000, "NaN", "null"),
)
NUMBERS = (0.0, -0.0, -1.0, 1e-320, 1e-9, 1e300, -1e300, 1e18, float("nan"), float("inf"), float("-inf"), 0.1)
COUNTS = (0, -1, 1, 2, 2**31, 2**53, 2**63 - 1, -(2**63))
KEYS = ("machine", "roofs", "packages", "command", "earlier_commands", "wall_seconds", "gpu", "sampling_seconds")
PLACES = ("missing", "folder", "pipe", "link out", "folder out", "link to itself", "device", "link to text")
EVIL = """
from pathlib import Path
Path({marker!r}).write_text("code ran")
def make(**options):
    raise SystemExit
"""


def make_run(folder: Path) -> Path:
    """A whole run of a suite, with samples and layers, whose model a factory next to it would make."""
    folder.mkdir(parents=True)
    for name in ("environment.json", "bench.yaml"):
        shutil.copy(SUITE / name, folder)
    results = pl.read_parquet(SUITE / "results.parquet")
    name, case, network = (results[column][0] for column in ("run_id", "case_id", "model"))
    more = [
        *(handmade.row("eager", ms=4 + n / 50, replicate=n, model=network, device="cpu") for n in range(3)),
        *(handmade.row("ort", ms=1 + n / 50, replicate=n, model=network, device="cpu") for n in range(3)),
        handmade.row("ort", "fp16", ms=None, model=network, device="cpu", reason="it cannot"),
    ]
    rows, samples = handmade.run(*more)
    rows = pl.concat([with_all_columns(results), rows.with_columns(run_id=pl.lit(name))])
    rows.write_parquet(folder / "results.parquet")
    samples.with_columns(run_id=pl.lit(name)).write_parquet(folder / "samples.parquet")
    layer = {"run_id": name, "kind": "Conv", "nodes": ["node_conv"], "ms": 1.0, "share": 0.5}
    cases = [case, *rows.filter(variant="ort", precision="fp32")["case_id"]]
    layers = [{**layer, "case_id": case, "order": n, "layer": f"layer{n}"} for case in cases for n in range(3)]
    pl.DataFrame(layers, schema=LAYERS).write_parquet(folder / "layers.parquet")
    return folder


def spoil(folder: Path, rng: Random, outside: Path) -> str:
    """Do one odd thing to a file of the run; returns what, so that it can be done again."""
    what = rng.choice(list(WAYS))
    return f"{what}: {WAYS[what](folder, rng, outside)}"


def odd_json(rng: Random, depth: int = 0) -> Any:
    """A value that JSON can hold, and often one that no run writes."""
    kind = rng.randrange(9 if depth < 4 else 7)
    if kind == 7:
        return [odd_json(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 8:
        return {rng.choice(TEXTS): odd_json(rng, depth + 1) for _ in range(rng.randrange(3))}
    return rng.choice([rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(COUNTS), 10**400, None, True, False])


def _table(rng: Random, folder: Path) -> tuple[Path, pl.DataFrame] | None:
    path = folder / rng.choice(FILES[:3])
    if not path.is_file():  # A pipe or a device by now.
        return None
    try:
        frame = pl.read_parquet(path.read_bytes())
        return (path, frame) if frame.width else None
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None  # What was done before has spoilt it.


def _value(folder: Path, rng: Random, _: Path) -> str:
    found = _table(rng, folder)
    if found is None or found[1].is_empty():
        return "nothing"
    path, frame = found
    name, share = rng.choice(frame.columns), rng.choice([1.0, 0.5, 0.1])
    dtype = frame.schema[name]
    values: dict[Any, Callable[[], Any]] = {
        pl.String(): lambda: rng.choice((*TEXTS, None)),
        pl.Float64(): lambda: rng.choice((*NUMBERS, None)),
        pl.Int64(): lambda: rng.choice((*COUNTS, None)),
        pl.Boolean(): lambda: rng.choice((True, False, None)),
        pl.List(pl.String()): lambda: rng.choice([None, [], [None], [rng.choice(TEXTS)], ["outliers: 1"] * 3]),
    }
    odd = values.get(dtype, lambda: None)
    column = [odd() if rng.random() < share else value for value in frame[name].to_list()]
    frame.with_columns(pl.Series(name, column, dtype)).write_parquet(path)
    return f"{path.name} {name} {column[:5]!r:.200}"


def _type(folder: Path, rng: Random, _: Path) -> str:
    found = _table(rng, folder)
    if found is None:
        return "nothing"
    path, frame = found
    name = rng.choice(frame.columns)
    others: list[Any] = [
        *(pl.Series([value]) for value in ("x", 1, 1.5, True, None, b"x", [1], ["x"], {"a": 1}, [None])),
        *(pl.Series([3], dtype=dtype) for dtype in (pl.UInt64, pl.Int8, pl.Float32, pl.Duration, pl.Date, pl.Decimal)),
        pl.Series(["x"], dtype=pl.Categorical),
    ]
    other = rng.choice(others)
    frame.with_columns(other.new_from_index(0, frame.height).alias(name)).write_parquet(path)
    return f"{path.name} {name} {other.dtype}"


def _columns(folder: Path, rng: Random, _: Path) -> str:
    found = _table(rng, folder)
    if found is None:
        return "nothing"
    path, frame = found
    some = rng.sample(frame.columns, rng.randint(1, min(frame.width, 4)))
    how = rng.choice(["drop", "keep", "rename", "twice", "none", "empty"])
    made = {
        "drop": lambda: frame.drop(some),
        "keep": lambda: frame.select(some),
        "rename": lambda: frame.rename({some[0]: rng.choice([t for t in TEXTS if t not in frame.columns])}),
        "twice": lambda: pl.concat([frame, frame]),
        "none": lambda: frame.head(0),
        "empty": lambda: pl.DataFrame(),
    }[how]()
    made.write_parquet(path)
    return f"{path.name} {how} {some}"


def _bytes(folder: Path, rng: Random, _: Path) -> str:
    path = folder / rng.choice(FILES)
    if not path.is_file() or path.is_symlink():
        return "nothing"
    data, how = bytearray(path.read_bytes()), rng.choice(["flip", "cut", "insert", "garbage", "empty", "end"])
    at = rng.randrange(len(data) + 1)
    if how == "flip" and data:
        for _ in range(rng.choice([1, 1, 3, 30])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == "end" and data:
        data[-rng.randint(1, min(len(data), 2000))] ^= 1 << rng.randrange(8)
    else:
        noise = rng.randbytes(rng.choice([1, 8, 100]))
        data = {"cut": data[:at], "insert": data[:at] + noise + data[at:], "garbage": noise}.get(how, b"")
    path.write_bytes(data)
    return f"{path.name} {how} {at}"


def _facts(folder: Path, rng: Random, _: Path) -> str:
    path = folder / "environment.json"
    try:
        facts = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError:
        facts = {}
    keys = [
        "machine",
        "roofs",
        "packages",
        "command",
        "earlier_commands",
        "wall_seconds",
        "gpu",
        "cpu",
        "sampling_seconds",
    ]
    key = rng.choice([*keys, *(facts if isinstance(facts, dict) else ()), rng.choice(TEXTS)])
    facts = {**facts, key: odd_json(rng)} if isinstance(facts, dict) and rng.random() < 0.95 else odd_json(rng)
    _put(path, json.dumps(facts).encode("utf-8", "surrogatepass"))
    return f"{key} {str(facts)[-200:]}"


def _job(folder: Path, rng: Random, outside: Path) -> str:
    path = folder / "bench.yaml"
    job = yaml.safe_load((SUITE / "bench.yaml").read_text())
    key = rng.choice([*job, "import_from", "machine", "budget", "shapes"])
    job[key] = odd_json(rng)
    if rng.random() < 0.5:
        given = yaml.safe_load((SUITE / "bench.yaml").read_text())["models"][0]["name"]
        evil = {"name": rng.choice([given, "mine"])}
        job |= {"models": [{**evil, "factory": "evil:make", "input": [3, 8, 8]}], "import_from": ["."]}
        (folder / "evil.py").write_text(EVIL.format(marker=str(outside / "code")))
    _put(path, yaml.safe_dump(job, allow_unicode=True).encode("utf-8", "replace"))
    return f"{key} {str(job[key])[:200]}"


def _put(path: Path, data: bytes) -> None:
    _remove(path)
    path.write_bytes(data)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _place(folder: Path, rng: Random, outside: Path) -> str:
    more = ("report.html", "report-tables", "journal.jsonl", "lock", "tables", "models.json", "model")
    path = folder / rng.choice([*FILES, *more])
    _remove(path)
    match how := rng.choice(PLACES):
        case "folder":
            (path / "in").mkdir(parents=True)
        case "pipe":
            os.mkfifo(path)
        case "link out":
            path.symlink_to(outside / "secret.txt")
        case "folder out":
            path.symlink_to(outside)
        case "link to itself":
            path.symlink_to(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "link to text":
            (folder / "text").write_text("text")
            path.symlink_to("text")
    return f"{path.name} {how}"


WAYS: dict[str, Callable[[Path, Random, Path], str]] = {
    "value": _value,
    "another value": _value,
    "type": _type,
    "columns": _columns,
    "bytes": _bytes,
    "facts": _facts,
    "job": _job,
    "place": _place,
}
"""By name what can be wrong; values are tried most."""
