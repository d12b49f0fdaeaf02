"""Define a case, one cell of the matrix: its identity, what it runs, and how long it may take."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from engines.catalog import EIGHT_BITS, ENGINES, PLAIN, Device, Pass, Training, is_base
from exporters.bounds import Repeats, Samples, Seconds
from exporters.source import ModelSource

_LONGEST_FILE_NAME = 180
"""Bytes, of the 255 that Linux takes: more words follow it."""
_ID = re.compile(
    r"(?P<model>[^/]+)/(?P<variant>[^/]+)/(?P<pass_>[^/]+)/(?P<precision>[^/]+)"
    r"/b(?P<batch_size>\d+)/r(?P<replicate>\d+)(?:/(?P<setting>.+))?"
)


@dataclass(frozen=True)
class Budget:
    """Limits of one case: sampling time, sample counts, and the seconds after which its process is ended.

    So many as `min_samples` are taken even where that takes longer than `seconds`, but no longer than half of what is
    left of the `timeout`. Sampling ends before the seconds are over only with an interval, which needs 30 samples.
    `repeats` is the run's: measuring disturbed cases again takes at most this share of the time that the first
    measuring took; 0 is never.
    """

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012 -- read by pydantic, which config.py validates this with

    seconds: Seconds = 3.0
    min_samples: Samples = 3
    max_samples: Samples = 5000
    timeout: Seconds = 300.0
    build_timeout: Seconds = 900.0
    repeats: Repeats = 0.5


@dataclass(frozen=True, kw_only=True)
class CaseId:
    """What tells a case apart from the others of its run; as text like `resnet50/ort-tuned/inference/fp16/b16/r0`.

    `setting` is whatever else distinguishes it, such as "optimizer=sgd/head=logits" or "sequence=128"; empty for
    nothing. In the text it follows after the replicate.
    """

    model: str
    variant: str
    pass_: str
    precision: str
    batch_size: int
    replicate: int
    setting: str = ""

    def __str__(self) -> str:
        return self._joined(f"b{self.batch_size}")

    @classmethod
    def parse(cls, text: str) -> CaseId:
        """The identity that was written as `text`. Raises ValueError for a text that is no id."""
        match = _ID.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is no case's id")
        parts: dict[str, Any] = match.groupdict()
        parts |= {name: int(parts[name]) for name in ("batch_size", "replicate")}
        return cls(**{**parts, "setting": parts["setting"] or ""})

    @property
    def cell(self) -> str:
        """What its replicates share."""
        return str(replace(self, replicate=0))

    @property
    def family(self) -> str:
        """The id without the batch size."""
        return self._joined("")

    @property
    def file_name(self) -> str:
        """The id as the name of a file."""
        return file_name(str(self))

    def _joined(self, batch: str) -> str:
        parts = (self.model, self.variant, self.pass_, self.precision, batch, f"r{self.replicate}", self.setting)
        return "/".join(filter(None, parts))


@dataclass(frozen=True)
class Case:
    """One cell of the matrix. `engine` is the catalog's key, `variant` the preset's name or the label in the config.

    `reference` is the model whose base and outputs it is compared with, where that is not its own.
    `options` are the engine's, resolved for the device; `setting` is as in `CaseId`. `unsupported` holds
    the reason where the plan already knows that it cannot run.
    """

    model: str
    engine: str
    variant: str
    pass_: Pass
    precision: str
    batch_size: int
    device: Device
    replicate: int
    source: ModelSource
    options: Mapping[str, Any] = field(default_factory=dict)
    setting: str = ""
    training: Training = PLAIN
    unsupported: str | None = None
    reference: ModelSource | None = None

    @property
    def id(self) -> CaseId:
        """What tells the case apart from the others of its run."""
        return CaseId(**{part.name: getattr(self, part.name) for part in fields(CaseId)})

    @property
    def is_base(self) -> bool:
        """Whether speed-ups are relative to this case."""
        return self.reference is None and is_base(self.variant, self.precision, self.source.kind)

    @property
    def subject(self) -> str:
        """What is prepared for it: the model, or the model at its shape."""
        return self.source.subject

    @property
    def shape(self) -> Mapping[str, int]:
        """The sizes of the dimensions that the job varies besides the batch."""
        return self.source.shape

    @property
    def calibrated(self) -> bool | None:
        """Of 8 bits whether their ranges are of data that the user chose: those of a file quantized by others count so,
        and those that torchao takes of each call's inputs do not."""
        if self.precision not in EIGHT_BITS:
            return None
        if ENGINES[self.engine].needs == "torch":
            return False
        return self.source.calibration is not None or "int8" in self.source.graphs

    @property
    def options_json(self) -> str:
        """The options as JSON, keys sorted."""
        return json.dumps(dict(self.options), sort_keys=True)


def file_name(words: str) -> str:
    """An id, or what is made of one, as the name of a file; a digest is in place of a long one's end."""
    name = words.replace("/", "-")
    if len(name.encode()) <= _LONGEST_FILE_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name.encode()[: _LONGEST_FILE_NAME - 13].decode(errors='ignore')}-{digest}"


def settings(setting: str) -> dict[str, str]:
    """A case's setting by key, like {"optimizer": "sgd", "head": "logits"}."""
    return dict(part.split("=", 1) for part in setting.split("/") if part)


def setting_words(setting: str) -> list[str]:
    """A case's setting in words, like ["optimizer sgd", "head logits"]."""
    return [f"{key} {value}" for key, value in settings(setting).items()]
