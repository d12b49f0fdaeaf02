"""run.py of an exported folder: the frame and a runtime's part in one script."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engines.deployment import described_inputs, write_run
from exporters.inputs import TensorSpec, seeded_inputs

PART = '''"""Double the input."""

import json
from typing import Any

import numpy as np

from engines.run_frame import HERE, Array, main

FACTOR = 2  # It stays, with its comment.


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        assert json.loads((HERE / "config.json").read_text()) == config
        self.arrays, self.calls = arrays, 0

    def call(self) -> None:
        self.calls += 1

    def output(self) -> Array:
        assert self.calls >= 20
        return np.asarray(FACTOR * self.arrays[0])


if __name__ == "__main__":
    main(Model)
'''


def test_run_py_is_one_script_with_the_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run_example.py").write_text(PART)
    write_run(str(tmp_path / "deploy.py"), tmp_path)
    script = (tmp_path / "run.py").read_text()
    assert script.startswith('"""Double the input."""\n\nimport argparse\n')
    assert "engines" not in script
    assert script.count("import numpy as np\n") == script.count("import json\n") == 1
    assert "FACTOR = 2  # It stays, with its comment.\n" in script

    inputs = [{"name": name, "shape": [2, 3], "dtype": dtype} for name, dtype in (("x", "float16"), ("y", "bfloat16"))]
    (tmp_path / "config.json").write_text(json.dumps({"model": "net", "inputs": inputs}))
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 10)
    given = [str(tmp_path / "x.npy"), str(tmp_path / "x.npy")]
    monkeypatch.setattr(sys, "argv", ["run.py", "--input", *given, "--output", str(tmp_path / "y.npy")])
    runpy.run_path(str(tmp_path / "run.py"), run_name="__main__")
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, 2 * x)
    assert capsys.readouterr().out == "net: output (2, 3), median latency 100.000 ms in 20 calls\n"


def test_run_py_draws_inputs_like_those_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run_example.py").write_text(PART)
    write_run(str(tmp_path / "deploy.py"), tmp_path)
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 10)
    monkeypatch.setattr(sys, "argv", ["run.py", "--output", str(tmp_path / "y.npy")])
    for dtype in ("float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        specs = [TensorSpec("x", (4, 999), dtype)]
        (tmp_path / "config.json").write_text(json.dumps({"model": "net", "inputs": described_inputs(specs, 4)}))
        runpy.run_path(str(tmp_path / "run.py"), run_name="__main__")
        ours, measured = np.load(tmp_path / "y.npy") / 2, seeded_inputs(specs, 4)[0].astype(np.float64)
        assert ours.mean() == pytest.approx(measured.mean(), abs=0.1)
        assert ours.std() == pytest.approx(measured.std(), abs=0.1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["nowhere.npy"], "No such file or directory: 'nowhere.npy'"),
        (["four.npy"], "four.npy has shape (4, 3); x of this export takes (2, 3)"),
        (["text.npy"], "--input: "),
        (["empty.npy"], "--input: "),
        (["four.npy", "four.npy"], "2 files, but the inputs are x"),
    ],
)
def test_run_py_says_what_is_wrong_with_an_input(
    given: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run_example.py").write_text(PART)
    write_run(str(tmp_path / "deploy.py"), tmp_path)
    specs = [{"name": "x", "shape": [2, 3], "dtype": "float32"}]
    (tmp_path / "config.json").write_text(json.dumps({"model": "net", "inputs": specs}))
    np.save(tmp_path / "four.npy", np.zeros((4, 3)))
    (tmp_path / "text.npy").write_text("0 0 0")
    (tmp_path / "empty.npy").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--input", *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("run.py", run_name="__main__")
    assert (ended.value.code, says in capsys.readouterr().err) == (2, True)
