"""Open a job in the engine of a given name: a Job in, a Session out."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.catalog import ENGINES

if TYPE_CHECKING:
    from engines.base import BuiltAhead, Job, Session

__all__ = ["build", "open_session"]


def open_session(engine: str, job: Job) -> Session:
    """Open `job` in the engine of that name.

    Raises engines.base.Unsupported where this machine or build cannot do it, and whatever the runtime itself raises.
    """
    module = importlib.import_module(ENGINES[engine].module)
    session: Session = module.open_session(replace(job, engine=engine))
    return session


def build(engine: str, job: Job) -> BuiltAhead:
    """Have an engine that builds (`Engine.builds`) do so into its cache, for a session that is opened later.

    Raises as `open_session` does.
    """
    made: BuiltAhead = importlib.import_module(ENGINES[engine].module).build(replace(job, engine=engine))
    return made
