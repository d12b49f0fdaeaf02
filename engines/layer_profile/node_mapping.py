"""Find which exported nodes each step of a runtime covers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

_MOVES = {
    *("Transpose", "ReorderInput", "ReorderOutput", "Reformat", "MemcpyFromHost", "MemcpyToHost"),
    *("Cast", "QuantizeLinear", "DequantizeLinear"),
}
"""Steps that runtimes insert; what they put out is somebody else's result in another layout, place or type."""
_NCHWC = "_nchwc"
"""ONNX Runtime calls a node in its blocked layout <the tensor it gave>_nchwc (optimizer/nchwc_transformer.cc)."""
_EPILOGUES = ("Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Add", "Sum", "Mul")
"""What runtimes put behind a convolution or product, into the same step."""
_SHAPES = ("Shape", "Size", "Constant")


@dataclass(frozen=True)
class Step:
    """A node of a runtime's optimized graph, or its layer; its tensors by name, as far as they kept theirs."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where an exported node comes from, as torch.onnx wrote it into the node's metadata."""

    node: str
    path: str
    """The module that ran the operator, such as "layer1.0.bn1"; empty for the model itself."""
    operator: str
    """The ATen operator, such as "add"."""
    modules: frozenset[str]
    """Modules whose parameters the node holds: the exporter folds a batch normalization into its convolution."""


def node_name(node: onnx.NodeProto) -> str:
    """The node's name, or the first tensor that it gives if it has none."""
    return node.name or next(iter(node.output), "")


def steps_of(graph: onnx.GraphProto) -> list[Step]:
    """The nodes of a runtime's optimized graph, in the file's order."""
    return [Step(node_name(n), n.op_type, tuple(n.input), tuple(n.output)) for n in graph.node]


def covered_nodes(graph: onnx.GraphProto, steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """For each step, in running order, the names of the exported nodes that it covers, in the graph's order.

    A node is covered by one step at most; by none, if it was computed ahead of the run or cannot be known. Nodes are
    found by what kept its name (node, tensor, a constant that one node alone reads), else by data flow: a node is a
    step's if it alone is of the step's kind and gets its data from the same steps. Nodes that went into another (an
    activation, a sum, parts of a normalization) belong to the step whose result they change, else to their reader's.
    """
    return _Cover(graph, steps).nodes()


class _Cover:
    """The search behind `covered_nodes`; nodes and steps are numbers, `owner` maps the former to the latter."""

    def __init__(self, graph: onnx.GraphProto, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.graph_nodes = list(graph.node)
        self.constants = {t.name for t in graph.initializer}
        self.inputs = {v.name for v in graph.input} - self.constants
        self.producer = {t: n for n, node in enumerate(self.graph_nodes) for t in node.output if t}
        self.giver = {t: s for s, step in enumerate(steps) for t in step.outputs if t}
        self.folded = self._folded()
        self.owner: dict[int, int] = {}

    def nodes(self) -> list[tuple[str, ...]]:
        self._by_name()
        self._by_kind()
        for number in self._empty():
            self._by_flow(number)
        # A step that nothing was found for has a node of its kind somewhere: another step must not swallow it.
        kept = self._claimable()
        self._followers(kept)
        self._forerunners(kept)
        covered: list[list[str]] = [[] for _ in self.steps]
        for number in sorted(self.owner):
            covered[self.owner[number]].append(node_name(self.graph_nodes[number]))
        return [tuple(names) for names in covered]

    def _folded(self) -> set[int]:
        """Nodes that compute from constants, or from a shape, which is one once the graph's sizes are set."""
        known, folded = set(self.constants), set()
        for number, node in enumerate(self.graph_nodes):
            if node.op_type in _SHAPES or all(t in known for t in node.input if t):
                folded.add(number)
                known.update(node.output)
        return folded

    def _by_name(self) -> None:
        named = {node.name: n for n, node in enumerate(self.graph_nodes) if node.name}
        read = Counter(t for node in self.graph_nodes for t in set(node.input) & self.constants)
        reader = {t: n for n, node in enumerate(self.graph_nodes) for t in node.input if read[t] == 1}
        given = Counter(t for step in self.steps for t in set(step.inputs))
        for number, step in enumerate(self.steps):
            if step.name in named:
                self.owner.setdefault(named[step.name], number)
            if step.name.endswith(_NCHWC) and step.name.removesuffix(_NCHWC) in self.producer:
                self.owner.setdefault(self.producer[step.name.removesuffix(_NCHWC)], number)
            for tensor in step.inputs:
                if given[tensor] == 1 and tensor in reader and reader[tensor] not in self.folded:
                    self.owner.setdefault(reader[tensor], number)
        for tensor, number in self.giver.items():
            node = self.producer.get(tensor)
            moved = self.steps[number].kind in _MOVES
            if node is not None and not (moved and self.graph_nodes[node].op_type != self.steps[number].kind):
                self.owner.setdefault(node, number)

    def _by_kind(self) -> None:
        """A step that was found by its end, such as an activation, owns the chain back to a node of its own kind."""
        for last, number in list(self.owner.items()):
            chain, node = [], last
            while not self._is_of(node, number):
                chain.append(node)
                before = [p for p in self._before(node) if p not in self.owner]
                if len(before) != 1:
                    break
                node = before[0]
            else:
                for member in (*chain, node):
                    self.owner.setdefault(member, number)

    def _by_flow(self, number: int) -> None:
        """The node of the step's kind that gets its data from the steps that the step reads, if there is just one."""
        read = [self._sources_of_tensor(t) for t in self.steps[number].inputs]
        first, every = next(filter(None, read), set()), set().union(*read)
        claimable = self._claimable()
        sources = self._sources_of_nodes(claimable)
        fitting = [node for node in claimable if self._is_of(node, number) and first <= sources[node] <= every]
        if first and len(fitting) == 1:
            self.owner[fitting[0]] = number

    def _claimable(self) -> set[int]:
        """Nodes without an owner of the kinds of steps that own nothing."""
        kinds = {self.steps[s].kind for s in self._empty()}
        return {n for n in self._open() if any(kind.endswith(self.graph_nodes[n].op_type) for kind in kinds)}

    def _empty(self) -> list[int]:
        """Steps that own nothing yet, and do more than move data."""
        owning = set(self.owner.values())
        return [s for s, step in enumerate(self.steps) if s not in owning and step.kind not in _MOVES]

    def _open(self) -> list[int]:
        """Nodes without an owner that are not computed ahead."""
        return [n for n in range(len(self.graph_nodes)) if n not in self.owner and n not in self.folded]

    def _followers(self, kept: set[int]) -> None:
        """What changes a result before it is put out belongs to the last step whose result it reads."""
        for node in self._open():
            if node in kept or not all(before in self.owner for before in self._before(node)):
                continue
            hidden = [t for t in self.graph_nodes[node].input if t not in self.giver and t in self.producer]
            owners = [self.owner[self.producer[t]] for t in hidden if self.producer[t] in self.owner]
            if owners:
                self.owner[node] = max(owners)

    def _forerunners(self, kept: set[int]) -> None:
        """What is left prepares for others: it belongs to the first step that reads its result."""
        reads: dict[str, list[int]] = {}
        for number, node in enumerate(self.graph_nodes):
            for tensor in node.input:
                reads.setdefault(tensor, []).append(number)
        for node in reversed(self._open()):
            if node in kept:
                continue
            owners = [self.owner[r] for t in self.graph_nodes[node].output for r in reads.get(t, []) if r in self.owner]
            if owners:
                self.owner[node] = min(owners)

    def _is_of(self, node: int, step: int) -> bool:
        """FusedConv, NhwcConv and QLinearConv are kinds of Conv."""
        return self.steps[step].kind.endswith(self.graph_nodes[node].op_type)

    def _before(self, node: int) -> list[int]:
        producers = [self.producer[t] for t in self.graph_nodes[node].input if t in self.producer]
        return [p for p in producers if p not in self.folded]

    def _sources_of_nodes(self, claimable: set[int]) -> list[set[int | str]]:
        """For each node the steps, and the graph's inputs, that its data comes from. Nodes without an owner are looked
        through, unless a step may still own them."""
        sources: list[set[int | str]] = []
        for node in self.graph_nodes:
            origin: set[int | str] = {t for t in node.input if t in self.inputs}
            for before in self._before(len(sources)):
                if before in self.owner:
                    origin.add(self.owner[before])
                elif before in claimable and self.graph_nodes[before].op_type not in _EPILOGUES:
                    origin.add("not known yet")
                else:
                    # It will follow the last of those whose results it changes.
                    steps = [source for source in sources[before] if isinstance(source, int)]
                    origin |= {max(steps)} if steps else sources[before]
            sources.append(origin)
        return sources

    def _sources_of_tensor(self, tensor: str) -> set[int | str]:
        """The step that gives a tensor, looking through what only moves it, or the graph's input itself."""
        giver = self.giver.get(tensor)
        if giver is None:
            return set({tensor} & self.inputs)
        if self.steps[giver].kind in _MOVES and giver not in self.owner.values():
            return set().union(*(self._sources_of_tensor(t) for t in self.steps[giver].inputs))
        return {giver}


def origins(graph: onnx.GraphProto) -> list[Origin]:
    """Where the nodes come from, in the graph's order; nodes without torch.onnx's metadata are left out."""
    constants = {t.name for t in graph.initializer}
    known = []
    for node in graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        scopes = _list(metadata.get("pkg.torch.onnx.name_scopes"))
        classes = _list(metadata.get("pkg.torch.onnx.class_hierarchy"))
        if len(scopes) < 2 or not classes:
            continue
        # "aten.add.Tensor": namespace, operator, overload.
        operator = classes[-1].split(".")[1:2]
        holders = frozenset(t.rpartition(".")[0] for t in node.input if t in constants and "." in t)
        known.append(Origin(node_name(node), scopes[-2], (operator or [""])[0], holders))
    return known


def _list(written: str | None) -> Sequence[str]:
    """A list of texts as Python writes it; empty for anything else."""
    try:
        value = ast.literal_eval(written or "[]")
    except (ValueError, SyntaxError):
        return []
    return [str(v) for v in value] if isinstance(value, Iterable) and not isinstance(value, str) else []
