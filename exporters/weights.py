"""Key a model and its weights by content, and keep its state dict in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporters.cache import Cache, check_room, code_of, file_sha256
from exporters.catalog import network_of
from exporters.errors import cut
from exporters.inputs import input_specs, read_onnx
from exporters.libraries.catalog import LIBRARIES, folder_of
from exporters.packages import installed_version
from exporters.sound_graph import every_graph, graphs_in
from exporters.source import TOO_LONG, Identity, ModelError, ModelSource, digest, plain

PACKAGE = Path(__file__).parent


def source_key(source: ModelSource) -> str:
    """A sha256 in hexadecimal over everything that determines the model and its weights, at any precision. Raises
    ModelError if the model or a file of it cannot be had."""
    return identify(source).key


def identified(source: ModelSource) -> ModelSource:
    """The source with its identity, which it keeps from now on. Raises ModelError."""
    return replace(source, identity=identify(source))


def identify(source: ModelSource) -> Identity:
    """What the model is: the source's own identity if it has one. A factory's is what `exporters.fingerprint` says of
    its model, which means making it and running it; of a library's the library is imported, and else no torch is.
    Raises ModelError if the model or a file of it cannot be had."""
    if source.identity is not None:
        return source.identity
    parts = given(source)
    if source.factory is None or source.library is not None:
        return Identity(parts)
    from exporters.fingerprint import fingerprint

    made, repeatable, remarks = fingerprint(source)
    return Identity(parts | made, repeatable, remarks)


def given(source: ModelSource) -> dict[str, Any]:
    """The parts of the identity that are known without making the model: all of them but a factory's."""
    parts: dict[str, Any] = {"kind": source.kind, "options": plain(source.options), "inputs": repr(input_specs(source))}
    if source.graphs:
        parts["graphs"] = {precision: files_of(path) for precision, path in source.graphs.items()}
    if source.onnx is not None:
        parts["files"] = files_of(source.onnx)
        return parts
    parts["torch"] = installed_version("torch")
    if source.weights is not None:
        if not source.weights.is_file():
            raise ModelError(f"weights {source.weights}: no such file")
        parts["weights"] = file_sha256(source.weights)
        if source.key is not None or source.prefix:
            parts["weights in the file"] = [source.key, source.prefix]
    if source.factory is not None:
        parts["factory"] = source.factory
        if source.library is not None:
            parts["library"] = library_parts(source)
            parts["step"] = source.step
    elif source.layer is not None:
        parts["layer"] = repr(source.layer)
        parts["code"] = code_of("build_model.py", "random_weights.py")
    elif network := network_of(source):
        parts["name"] = network.name
        parts["code"] = code_of(f"models/{network.family}.py", "models/plain.py", "build_model.py", "random_weights.py")
    return parts


def has_own_weights(source: ModelSource) -> bool:
    """Whether the weights are from a file, so that what it predicts may mean something."""
    in_folder = source.library is not None and folder_of(source.factory or "") is not None
    return source.onnx is not None or source.weights is not None or in_folder


def files_of(path: Path) -> list[str]:
    """The hashes of an ONNX file and of those with its external data; none of one that cannot be read."""
    try:
        return [file_sha256(file) for file in graph_files(path).values() if file.is_file()]
    except ModelError:
        return []


def library_parts(source: ModelSource) -> list[str]:
    """The library's version, the code that seeds, and a local folder's files: together with name and options they say
    what the model is, so that it need not be made to find out."""
    library = LIBRARIES[source.library or ""]
    folder = folder_of(source.factory or "")
    files = [*folder.glob("*.safetensors"), folder / "config.json"] if folder else []
    own = library.module.partition(".")[2].replace(".", "/").removesuffix("models")
    drawing = (PACKAGE / name for name in ("build_model.py", "random_weights.py", "inputs.py"))
    code = [*drawing, *sorted(PACKAGE.glob(f"{own}*.py"))]
    return [f"{library.package} {installed_version(library.package)}", *map(file_sha256, [*code, *sorted(files)])]


def checked(source: ModelSource, produce: Callable[[Path], None], runs: bool = True) -> Callable[[Path], None]:
    """`produce`, and then a look whether the model is still the one that the source's identity names.

    Preparing takes minutes, in which people edit: without it a graph of the new code would be kept under the key of the
    old. With `runs` a factory's model is run for that, too. Raises ModelError where the model has changed.
    """

    def produce_and_check(path: Path) -> None:
        produce(path)
        if source.identity is None:
            return
        parts = given(source)
        if source.factory is not None and source.library is None:
            from exporters.fingerprint import look

            parts |= look(source, runs=runs and source.identity.parts.get("outputs") != TOO_LONG)
        now = Identity({**source.identity.parts, **parts}, source.identity.repeatable)
        if changes := source.identity.changes(now):
            raise ModelError(
                f"model {source.name!r} changed while it was being prepared ({', '.join(changes)}); start the run again"
            )

    return produce_and_check


def external_tensors(path: Path) -> list[tuple[Any, dict[str, str]]]:
    """The tensors of an ONNX file whose data are in other files of its folder, and where (`location`, maybe `offset`,
    `length`). Raises ModelError for an unreadable file, and for data elsewhere."""
    model, found = read_onnx(path), []
    for tensor in (each for graph in graphs_in(model) for each in tensors(graph) if each.external_data):
        entries = [("location", ""), *((entry.key, entry.value) for entry in tensor.external_data)]
        for location in {value for key, value in entries[1:] if key == "location"}:
            _check_location(path, tensor.name, location)  # Of several, readers disagree on which one counts.
        found.append((tensor, dict(entries)))
    return found


def _check_location(path: Path, tensor: str, location: str) -> None:
    """Raise ModelError for data outside the folder of the file: a model must not read other files of this machine."""
    folder = path.parent.resolve()
    shown = repr(cut(location, 200))
    try:
        is_inside = (folder / location).resolve().is_relative_to(folder)
        (folder / location).exists()
    except (OSError, ValueError, RuntimeError) as error:  # A NUL, a name that is too long, links in a circle.
        why = getattr(error, "strerror", None) or error
        raise ModelError(f"{path}: tensor {tensor!r} keeps its data at {shown}, which is no path ({why})") from None
    if not is_inside:
        raise ModelError(
            f"{path}: tensor {tensor!r} keeps its data at {shown}, outside the model's folder; refused. Put the data "
            "next to the model and save it again with a relative location"
        )


def graph_files(path: Path) -> dict[str, Path]:
    """An ONNX file and those with its external data, whether they are there or not, by their places next to it. Raises
    ModelError for an unreadable file."""
    locations = sorted({place["location"] for _, place in external_tensors(path)})
    return {path.name: path, **{location: path.parent / location for location in locations}}


def tensors(outer: Any) -> Iterator[Any]:
    """Every onnx.TensorProto of a GraphProto or FunctionProto, those of its nodes' subgraphs included."""
    for graph in every_graph(outer):
        yield from getattr(graph, "initializer", ())
        for sparse in getattr(graph, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for each in (*getattr(graph, "attribute_proto", ()), *(own for node in graph.node for own in node.attribute)):
            yield from (each.t, *each.tensors, each.sparse_tensor.values, each.sparse_tensor.indices)


def cached_state(source: ModelSource, cache: Cache) -> Path:
    """The state dict of `exporters.build_model.load`, made once for all shapes of the inputs, which `restore` takes.
    Raises ModelError."""
    import torch

    from exporters.build_model import load

    identity = identify(source)
    of_weights = {name: part for name, part in identity.parts.items() if name not in ("inputs", "outputs")}
    key = digest(of_weights) if identity.repeatable else identity.key

    def produce(path: Path) -> None:
        model = load(source)
        check_room(path, sum(weight.nbytes for weight in model.parameters()))
        torch.save(model.state_dict(), path)

    return cache.entry("state", key, ".pt", checked(source, produce, runs=False))[0]
