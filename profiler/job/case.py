"""What enters: nothing. What leaves: `Case`, one cell of the matrix, and `Budget`, how long it may take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Gt

from engines.catalog import PLAIN, Device, Pass, Training
from exporters.source import ModelSource

Seconds = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class Budget:
    """Limits of one case: sampling time, sample counts, and the seconds after which its process is ended.

    Sampling stops early only with an interval, which needs 30 samples: a `min_samples` below that changes nothing.
    """

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012 -- read by pydantic, which config.py validates this with

    seconds: Seconds = 3.0
    min_samples: Annotated[int, Ge(3)] = 20
    max_samples: Annotated[int, Ge(3)] = 5000
    timeout: Seconds = 300.0
    build_timeout: Seconds = 900.0


@dataclass(frozen=True)
class Case:
    """One cell of the matrix. `engine` is the catalog's key, `variant` the preset's name or the label in the config.

    `options` are the engine's, resolved for the device; `extra` is what else distinguishes the case (an optimizer, a
    sweep) and is added to the id. `unsupported` holds the reason where the plan already knows that it cannot run.
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
    extra: Mapping[str, Any] = field(default_factory=dict)
    training: Training = PLAIN
    unsupported: str | None = None

    @property
    def id(self) -> str:
        """Readable and stable: `resnet50/ort-tuned/inference/fp16/b16/r0`, then `/key=value` for each extra."""
        parts = [self.model, self.variant, self.pass_, self.precision, f"b{self.batch_size}", f"r{self.replicate}"]
        return "/".join([*parts, self.suffix] if self.suffix else parts)

    @property
    def suffix(self) -> str:
        """The extras as they stand in the id, such as "optimizer=sgd/head=logits"; empty without any."""
        return "/".join(f"{key}={value}" for key, value in self.extra.items())

    @property
    def options_json(self) -> str:
        """The options as JSON, keys sorted."""
        return json.dumps(dict(self.options), sort_keys=True)
