"""Two different things never have one key, and the same thing always has: random models, options and inputs."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from exporters.catalog import Conv2d
from exporters.source import ModelError, ModelSource
from exporters.weights import source_key

VALUES = ("", "a", "a\nb", "1", "True", "null", "date(2024, 1, 1)", "\udc80", 0, 1, -1, 2**70, 1.5, True, False, None,
          float("inf"), date(2024, 1, 1), "date(2024,1,1)", b"a", "b'a'", {"a", "b"}, {"b", "c"})  # fmt: skip


def value(draw: random.Random, depth: int = 0) -> Any:
    """Draw a value of an option that YAML can have."""
    kind = draw.randrange(6 if depth < 3 else 4)
    if kind < 4:
        return copy.copy(draw.choice(VALUES))
    if kind == 4:
        return [value(draw, depth + 1) for _ in range(draw.randrange(3))]
    keys = draw.sample([1, "1", "a", "b", None, 2.5, True, date(2024, 1, 1)], draw.randrange(4))
    return {key: value(draw, depth + 1) for key in keys}


def source(draw: random.Random) -> ModelSource:
    options = {name: value(draw) for name in draw.sample("abc", draw.randrange(3))}
    network = ModelSource("mine", network=draw.choice(["resnet18", "alexnet", "vgg16"]), options=options)
    size, height = draw.choice([4, 8]), draw.choice([16, 32])
    layer = Conv2d((3, height, 16), out_channels=size, kernel=draw.choice([(1, 1), (3, 1)]))
    return draw.choice([network, network, network, ModelSource("a", layer=layer)])


def spelled(thing: Any) -> str:
    """A text that is the same for what is the same, types included, whatever the order of a mapping or a set."""
    if isinstance(thing, dict):
        return f"dict{sorted(f'{spelled(key)}={spelled(each)}' for key, each in thing.items())}"
    if isinstance(thing, set | list):
        parts = [spelled(each) for each in thing]
        return f"{type(thing).__name__}{sorted(parts) if isinstance(thing, set) else parts}"
    return f"{type(thing).__name__}:{thing!r}"


def turned(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: turned(each) for key, each in reversed(thing.items())}
    return [turned(each) for each in thing] if isinstance(thing, list) else copy.copy(thing)


def test_different_models_have_different_keys_and_the_same_one_has_one(soak):
    by_key: dict[str, str] = {}
    for draw in soak.trials(150):
        each = source(draw)
        key, said = source_key(each), spelled([each.network or "", repr(each.layer), each.options])
        assert by_key.setdefault(key, said) == said
        same = replace(each, options=turned(each.options)), copy.deepcopy(each), replace(each, name="another")
        assert {*map(source_key, same)} == {key}, "a name is no part of a network"
    assert len(set(by_key.values())) == len(by_key) > 40
    soak.count("cache keys", tried=soak.times(150))


def test_what_a_file_holds_is_in_the_key_and_not_what_it_is_called(tmp_path, soak):
    keys: dict[str, tuple[bytes, str | None, str]] = {}
    for draw in soak.trials(100):
        weights = tmp_path / f"{draw.trial}.pt"
        weights.write_bytes(draw.choice([b"", b"a", b"b", b"\n", b"ab"]))
        key, prefix = draw.choice([None, "", "a"]), draw.choice(["", "a", "a.", "\n"])
        said = (weights.read_bytes(), key, prefix)
        known = ModelSource("m", network="alexnet", weights=weights, key=key, prefix=prefix)
        assert keys.setdefault(source_key(known), said) == said
    assert len(set(keys.values())) == len(keys)
    with pytest.raises(ModelError, match="no such file"):
        source_key(replace(known, weights=tmp_path / "absent.pt"))
    soak.count("cache keys", tried=soak.times(100))


@pytest.mark.parametrize("found", [{"survived": 1}, {"rows_lost": 1}, {"orphans": 2}, {"code_run": 1}])
def test_what_was_lost_fails_its_test_and_trials_can_be_repeated(request, soak, found):
    first = [rng.random() for rng in soak.trials(3)]
    assert first == [rng.random() for rng in soak.trials(5)][: len(first)]
    with pytest.raises(AssertionError, match="seed"):
        soak.count("nothing", tried=2, **found)
    request.node.user_properties.clear()
