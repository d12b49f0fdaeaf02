"""Hand a document to the user: into the file of `--output`, or on standard output."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from exporters.whole_file import write_whole
from profiler.errors import ConfigError


def deliver(document: str | bytes, output: Path | None, console: Console, about: str = "") -> None:
    """Print a text as it is, or write the document and say where it is, and then what `about` adds.

    Raises ConfigError where the file cannot be written. Bytes need a file.
    """
    if output is None:
        assert isinstance(document, str)
        sys.stdout.write(document)
        return
    try:
        write_whole(output, document)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; give another file") from None
    console.print(Text(f"Written: {output}{about}"), soft_wrap=True)
