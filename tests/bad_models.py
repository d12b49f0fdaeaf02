"""Models that go wrong in ways that happen by accident, a good one between them, and what is printed of each."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    """A convolution, a pool and a product, and what is `then` done with its output."""

    def __init__(self, then=lambda y: y):
        super().__init__()
        self.stem, self.head, self.then = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), then

    def forward(self, x):
        return self.then(self.head(self.stem(x).relu().mean((2, 3))))


class TwoInputs(Net):
    def forward(self, image, mask):
        return super().forward(image) * mask


class Trained(Net):
    """Calls a batch normalization by its function, which `eval` does not reach."""

    def forward(self, x):
        return super().forward(nn.functional.batch_norm(x, None, None, training=True))


class Elsewhere(Net):
    """Keeps a tensor in a list, which does not move with the module."""

    def __init__(self):
        super().__init__()
        self.scales = [torch.ones(3, 1, 1, device="meta")]

    def forward(self, x):
        return super().forward(x * self.scales[0])


class Branches(Net):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


class InPlace(Net):
    def forward(self, x):
        return super().forward(x.add_(1))


class Remembers(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def good():
    return Net()


def raises():
    return nn.Linear(8, 5, width=3)


def exits():
    sys.exit("no license")


def no_module():
    return Net().state_dict()


def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def wrong_type():
    return nn.Sequential(nn.Flatten(), nn.Embedding(10, 5))


def missing_input():
    return TwoInputs()


def no_tensor():
    return Net(lambda y: ["cat"] * len(y))


def nan():
    return Net(lambda y: (y - 100).log())


def other_device():
    return Elsewhere()


def training_mode():
    return Trained()


def control_flow():
    return Branches()


def operator():
    return Net(torch.special.bessel_j0)


def in_place():
    return InPlace()


def random():
    return Net(torch.randn_like)  # Of ten outputs dropout would leave all as they were every now and then.


def remembers():
    return Remembers()


def half():
    return Net().train().half()


def no_parameters():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())


CASES = (
    (
        "raises",
        "eager",
        "failed",
        "model 'raises': factory 'bad_models:raises' raised TypeError: Linear.__init__() got an unexpected "
        "keyword argument 'width' at bad_models.py:69 (`return nn.Linear(8, 5, width=3)`)",
    ),
    (
        "exits",
        "eager",
        "failed",
        "model 'exits': factory 'bad_models:exits' raised SystemExit: no license at bad_models.py:73 "
        '(`sys.exit("no license")`)',
    ),
    (
        "no_module",
        "eager",
        "failed",
        "model 'no_module': factory 'bad_models:no_module' returned collections.OrderedDict, not a "
        "torch.nn.Module; return the module itself",
    ),
    (
        "wrong_shape",
        "eager",
        "failed",
        "model 'wrong_shape': its reference outputs cannot be made: RuntimeError: mat1 and mat2 shapes "
        "cannot be multiplied (8x192 and 64x5); given: input x float32 [batch, 3, 8, 8], of which a "
        "reference takes up to 8 items: correct the inputs in the job, or the model",
    ),
    (
        "wrong_type",
        "eager",
        "failed",
        "model 'wrong_type': its reference outputs cannot be made: RuntimeError: Expected tensor for "
        "argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
        "torch.FloatTensor instead (while checking arguments for embedding); given: input x float32 "
        "[batch, 3, 8, 8]: write `inputs` for another type",
    ),
    (
        "missing_input",
        "eager",
        "failed",
        "model 'missing_input': its reference outputs cannot be made: TypeError: TwoInputs.forward() missing "
        "1 required positional argument: 'mask'; forward takes image, mask: give `inputs` for each (on "
        "the command line --input, once for each)",
    ),
    (
        "no_tensor",
        "eager",
        "failed",
        "model 'no_tensor': it returns no tensor; return one, or some in a tuple or a dict",
    ),
    (
        "nan",
        "eager",
        "failed",
        "nothing can be compared: the reference itself is NaN in 100 % of output 0: inputs are seeded with "
        "standard normal values; in a job `inputs` gives others (range, fill, data)",
    ),
    ("good", "eager", "ok", ""),
    ("good", "ort", "ok", ""),
    (
        "other_device",
        "eager",
        "failed",
        "model 'other_device': its reference outputs cannot be made: RuntimeError: Tensor on device meta is "
        "not on the expected device cpu! at bad_models.py:40 (`return super().forward(x * self.scales[0])`); "
        "a tensor that is neither parameter nor buffer stays where it was made: use register_buffer",
    ),
    (
        "training_mode",
        "eager",
        "ok",
        "inaccurate: relative L2 error …, usual at fp32 is below 1e-4; the reference is PyTorch's too, so "
        "probably an item's output depends on the others of its batch (batch norm in training mode?), or on "
        "earlier calls",
    ),
    ("control_flow", "eager", "ok", ""),
    (
        "control_flow",
        "ort",
        "failed",
        "model 'control_flow': no ONNX graph in fp32, neither for any batch nor for batch 2 only: "
        "GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1) (unhinted: "
        "Eq(u0, 1)). (Size-like symbols: none) at bad_models.py:46 (`return y if y.sum() > 0 else -y`); a "
        "computed value decides which code runs: write it with torch.where or torch.cond or give a graph of "
        "your own (`onnx: FILE`)",
    ),
    ("operator", "eager", "ok", ""),
    (
        "operator",
        "ort",
        "failed",
        "model 'operator': no ONNX graph in fp32, neither for any batch nor for batch 2 only: ONNX has no "
        "operator for prims.bessel_j0 at bad_models.py:17 (`return "
        "self.then(self.head(self.stem(x).relu().mean((2, 3))))`); write it with others or give a graph of "
        "your own (`onnx: FILE`)",
    ),
    (
        "in_place",
        "eager",
        "failed",
        "the outputs are wrong: relative L2 error …; forward changes its input x in place, so each call gets "
        "another: clone it first",
    ),
    (
        "random",
        "eager",
        "failed",
        "the outputs are wrong: relative L2 error …; the model gives other outputs each time: switch off "
        "what is random (dropout, unseeded weights)",
    ),
    (
        "remembers",
        "eager",
        "failed",
        "the outputs are wrong: relative L2 error …; the reference is PyTorch's too, so probably an item's "
        "output depends on the others of its batch (batch norm in training mode?), or on earlier calls",
    ),
    ("half", "eager", "ok", ""),
    ("no_parameters", "eager", "ok", ""),
)
"""Model, variant, status, and what is printed, the folder and the figure left out."""
