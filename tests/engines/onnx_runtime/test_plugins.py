"""Plugins of ONNX Runtime: what cannot be loaded says why, and OpenVINO's, where it is installed, really runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import onnxruntime
import pytest

from engines.base import Unsupported
from engines.catalog import ENGINES, foreign_hardware
from engines.onnx_runtime.providers import load_plugin
from engines.option_values import is_path, key_values
from profiler.machine import Target

pytestmark = pytest.mark.slow

SHARED = str(Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_shared.so")
has_openvino = importlib.util.find_spec("onnxruntime_ep_openvino") is not None


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with libraries that are none, and packages that do not say where theirs is."""
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "without_library.py").write_text("")
    (tmp_path / "elsewhere.py").write_text("def get_library_path(): return '/not/there.so'")
    (tmp_path / "fails.py").write_text("1 / 0")
    (tmp_path / "needs_more.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("", "no library is named: give the package"),
        ("no_such_plugin", "no_such_plugin is not installed: pip install no-such-plugin"),
        ("without_library", "where its library is: module 'without_library' has no attribute 'get_lib"),
        ("elsewhere", "library: /not/there.so is not there: give the plugin's .so"),
        ("fails", "fails cannot be imported, or does not say where its library is: division by zero"),
        ("needs_more", "where its library is: No module named 'no_such_module'"),
        ("{}/missing.so", "missing.so is not there"),
        ("{}/folder.so", "folder.so is a folder"),
        ("{}/text.so", "text.so as a plugin: "),
        (SHARED, "libonnxruntime_providers_shared.so as a plugin: "),
    ],
)
def test_what_cannot_be_loaded_says_what_mends_it(broken: Path, library: str, says: str) -> None:
    before = onnxruntime.get_ep_devices()
    with pytest.raises(Unsupported) as caught:
        load_plugin(library.format(broken))
    assert says in str(caught.value)
    assert len(onnxruntime.get_ep_devices()) == len(before)
    sys.modules.pop(library, None)


@pytest.mark.skipif(not has_openvino, reason="no such plugin")
def test_a_plugin_without_the_device_says_what_it_has_and_openvinos_has_intels_processors() -> None:
    plugin = load_plugin("onnxruntime_ep_openvino")
    if foreign_hardware(ENGINES["ort-openvino"], "cpu", Target("cpu").hardware):
        with pytest.raises(Unsupported, match="offers nothing here: it needs other hardware"):
            plugin.on("cpu")
        return
    assert plugin.on("cpu").ep_name == "OpenVINOExecutionProvider"
    with pytest.raises(Unsupported, match="offers no GPU here, only OpenVINOExecutionProvider on CPU"):
        plugin.on("cuda")


def test_a_plugins_options() -> None:
    assert key_values("a=1; b = x=y ;") == {"a": "1", "b": "x=y"}
    assert key_values("") == {}
    for wrong in ("a", "=1", "a=1;b", "a=1;a=2"):
        with pytest.raises(ValueError, match="key=value; key=value"):
            key_values(wrong)


@pytest.mark.parametrize(
    ("library", "file"), [("a_b.c", False), ("a", False), ("a.so", True), ("x/a", True), ("./a", True)]
)
def test_a_package_is_no_file(library: str, file: bool) -> None:
    assert is_path(library) == file
