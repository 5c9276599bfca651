"""Train a small convolutional network on scikit-learn's digits and write it as ONNX.

Needs ``packager[build,torch,samples]``; downloads nothing. Writes ``digits.onnx`` and ``digits_test.npz`` (the images
and labels that were held out) beside this file, or into the folder given with ``--output``.

The graph is written node by node rather than traced, so that it has the names in this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 20240229
HELD_OUT = 360
EPOCHS = 40
BATCH = 64
REQUIRED_ACCURACY = 0.97


class DigitsNet(nn.Module):
    """8x8 gray images to ten logits; two convolutions with batch normalization, two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.dense1 = nn.Linear(32 * 2 * 2, 64)
        self.dense2 = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return logits [n, 10] for images [n, 1, 8, 8] in 0..1."""
        x = torch.max_pool2d(torch.relu(self.norm1(self.conv1(image))), 2)
        x = torch.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return self.dense2(torch.relu(self.dense1(x.flatten(1))))


def split_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return training images, held-out images, training labels, held-out labels; images uint8 [n, 1, 8, 8] in 0..16."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    return train_test_split(images, digits.target, test_size=HELD_OUT, random_state=SEED, stratify=digits.target)


def train(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> DigitsNet:
    """Return the trained network, in evaluation mode."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # reproducible: the order of sums changes the weights
    torch.use_deterministic_algorithms(True)
    net = DigitsNet()
    x = torch.from_numpy(images.astype(np.float32) / 16)
    y = torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        schedule.step()
        print(f"epoch {epoch + 1:2d}: loss {total / len(x):.4f}", file=sys.stderr)
    return net.eval()


def to_onnx(net: DigitsNet) -> onnx.ModelProto:
    """Return the network as an ONNX graph, ``image`` [n, 1, 8, 8] -> ``logits`` [n, 10]."""
    batch_norm = ("weight", "bias", "running_mean", "running_var")
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}

    def node(op: str, name: str, inputs: list[str], output: str | None = None, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output or name], name=name, **attributes)

    nodes = [
        node("Conv", "conv1", ["image", "conv1.weight", "conv1.bias"], **conv),
        node("BatchNormalization", "norm1", ["conv1", *(f"norm1.{p}" for p in batch_norm)], epsilon=net.norm1.eps),
        node("Relu", "relu1", ["norm1"]),
        node("MaxPool", "pool1", ["relu1"], **pool),
        node("Conv", "conv2", ["pool1", "conv2.weight", "conv2.bias"], **conv),
        node("BatchNormalization", "norm2", ["conv2", *(f"norm2.{p}" for p in batch_norm)], epsilon=net.norm2.eps),
        node("Relu", "relu2", ["norm2"]),
        node("MaxPool", "pool2", ["relu2"], **pool),
        node("Flatten", "flatten", ["pool2"], axis=1),
        node("Gemm", "dense1", ["flatten", "dense1.weight", "dense1.bias"], transB=1),
        node("Relu", "relu3", ["dense1"]),
        node("Gemm", "dense2", ["relu3", "dense2.weight", "dense2.bias"], output="logits", transB=1),
    ]
    weights = [
        numpy_helper.from_array(tensor.numpy(), name)
        for name, tensor in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])],
        weights,
    )
    model = helper.make_model(
        graph,
        producer_name="packager digits sample",
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> int:
    """Train, test, write; return 1 and write nothing when the network is not good enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder for the two files")
    folder: Path = parser.parse_args().output

    train_images, test_images, train_labels, test_labels = split_digits()
    net = train(train_images, train_labels)
    with torch.no_grad():
        answers = net(torch.from_numpy(test_images.astype(np.float32) / 16)).argmax(1).numpy()
    accuracy = float((answers == test_labels).mean())
    print(f"accuracy: {accuracy:.1%} of {len(test_labels)} held-out images")
    if accuracy < REQUIRED_ACCURACY:
        print(f"error: less than {REQUIRED_ACCURACY:.0%}, nothing written", file=sys.stderr)
        return 1
    onnx.save(to_onnx(net), folder / "digits.onnx")
    np.savez_compressed(folder / "digits_test.npz", images=test_images, labels=test_labels.astype(np.uint8))
    return 0


if __name__ == "__main__":
    sys.exit(main())
