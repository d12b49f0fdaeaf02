"""Declare the valid values of a results folder's files, and refuse others in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import polars as pl
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from engines.options import Pass
from exporters import named_files
from exporters.catalog import Price
from exporters.errors import printable
from profiler.errors import ConfigError
from profiler.job.config import Machine
from profiler.job.mistakes import EXPECTED, yaml_text
from profiler.processes.messages import Status
from profiler.results.columns import COLUMNS, LARGEST_BATCH, LAYERS, RESULTS, TEXT, Group, Schema, names
from profiler.results.result import Result

_GIVE = "give another run, or remove that file"
_MOST_JSON_BYTES = 2**24
_FINITE = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
_SIGNED = ("MiB", "°C", "points")
"""Units of figures that may be below 0."""
_NEEDED = ("run_id", "case_id", "model", "engine", "variant", "pass", "precision", "batch_size", "status")
"""Columns that every row has."""
_UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f-\x{9f}\x{202a}-\x{202e}\x{2066}-\x{2069}]"
Positive = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Words = list[str]


class _Machine(Machine):
    model_config = _FINITE
    usd_per_hour: Price | None = None


class _Facts(BaseModel):
    model_config = _FINITE
    machine: _Machine | str | None = None
    usd_per_hour: Price | None = None
    cpu_cores: Count | None = None
    cores: list[Count] | None = None
    threads: Count | None = None
    torch_threads: Count | None = None
    memory_mib: Positive | None = None
    gpu_memory_mib: Positive | None = None
    sampling_seconds: Positive | None = None
    roofs: dict[str, Positive] | None = None
    roofs_quiet: bool = True
    spread: dict[str, tuple[Positive, Positive]] | None = None
    packages: dict[str, str] = {}
    variables: dict[str, str] = {}
    command: Words | None = None
    earlier_commands: list[Words | None] = []
    nodes: list[dict[str, Any]] = []


_TEXTS = ("cpu", "platform", "compute_capability", "user", "job_folder", "device", "cloud", "instance")
_TEXT_FACTS = dict.fromkeys((*_TEXTS, *names(Group.PLACE, Group.VERSIONS)), (str | None, None))
FACTS = TypeAdapter(create_model("_Environment", __base__=_Facts, **_TEXT_FACTS))  # type: ignore[call-overload]


class _Identity(BaseModel):
    model_config = _FINITE
    parts: dict[str, Any]


def _json_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text), dict)
    except RecursionError:
        is_object = False
    if not is_object:
        raise ValueError("must be a JSON object")
    return text


_Json = Annotated[str, AfterValidator(_json_object)]
_ANNOTATED: Mapping[str, Any] = {
    "status": Status,
    "pass": Pass,
    "batch_size": Annotated[int, Field(ge=1, lt=2**53)],
    "options": _Json,
    "proof": _Json,
    "shape": Annotated[str, Field(pattern=r"^([^/=]+=\d{1,18}(/[^/=]+=\d{1,18})*)?$")],
    "usd_per_hour": Price,
    "nodes": list[str | None],
    "warnings": list[str | None],
}
_TYPES: Mapping[pl.DataType, Any] = {TEXT: str, pl.Boolean(): bool, pl.Int64(): Count}


def _is_signed(name: str) -> bool:
    return name in COLUMNS and COLUMNS[name].unit in _SIGNED


def _rows(schema: Schema, needed: tuple[str, ...]) -> TypeAdapter[Any]:
    fields = {}
    for number, (name, dtype) in enumerate(schema.items()):
        kind = _ANNOTATED.get(name) or _TYPES.get(dtype) or (float if _is_signed(name) else Positive)
        fields[f"f{number}"] = kind if name in needed else kind | None, Field(alias=name)
    row = create_model("Row", __config__=ConfigDict(strict=True, allow_inf_nan=False), **fields)  # type: ignore[call-overload]
    return TypeAdapter(list[row])  # type: ignore[valid-type]


_TABLES = {
    "results": _rows(RESULTS, _NEEDED),
    "layers": _rows(LAYERS, tuple(LAYERS)),
    "largest_batch": _rows(LARGEST_BATCH, ("run_id", "model", "variant", "pass", "precision", "batch_size", "status")),
}
_Result = create_model(
    "_Result",
    __config__=ConfigDict(strict=True),
    **{name: (hint, ...) for name, hint in get_type_hints(Result).items()},  # type: ignore[call-overload]
)
IDENTITIES = TypeAdapter(dict[str, _Identity])


def checked_table(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a run's table with printable texts. Raises ConfigError for an invalid value."""
    try:
        _TABLES[path.stem].validate_python(frame.to_dicts())
    except ValidationError as error:
        raise _refused(path, error) from None
    texts = [frame[name] for name, dtype in frame.schema.items() if dtype == TEXT]
    unprintable = [column for column in texts if column.str.contains(_UNPRINTABLE).any()]
    return frame.with_columns(pl.Series(c.name, list(map(printable, c)), pl.String) for c in unprintable)


def check_try(row: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid line of largest_batch.jsonl."""
    _TABLES["largest_batch"].validate_python([row])


def read_json(path: Path, schema: TypeAdapter[Any]) -> dict[str, Any]:
    """Read environment.json or models.json; return {} without the file. Raises ConfigError for an invalid value."""
    if not named_files.exists(path):
        return {}
    data = named_files.read_bytes(path, _MOST_JSON_BYTES)
    try:
        schema.validate_json(data)
        return dict(printable(json.loads(data)))
    except ValidationError as error:
        raise _refused(path, error) from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: cannot be read; {_GIVE}") from None


def check_result(result: Result) -> None:
    """Raise ValueError for a result with an invalid value."""
    if not all(value is None or isinstance(value, bool | int | float) for value in result.figures.values()):
        raise ValueError("a figure is no number")
    if below := [name for name, value in result.figures.items() if (value or 0) < 0 and not _is_signed(name)]:
        raise ValueError(f"{below[0]} is below 0")
    _Result.model_validate({**vars(result), "figures": {}})


def _refused(path: Path, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    if not first["loc"]:
        return ConfigError(f"{path}: cannot be read: {first['msg']}; {_GIVE}")
    row, *place = first["loc"] if isinstance(first["loc"][0], int) else ("", *first["loc"])
    at = f"row {row}, " if row != "" else ""
    expected = EXPECTED.get(first["type"], first["msg"].replace("Input should", "must").replace("Value error, ", ""))
    where = f"{at}{'.'.join(map(str, place))}"
    return ConfigError(printable(f"{path}: {where}: {expected}, got {yaml_text(first['input'])}; {_GIVE}"))
