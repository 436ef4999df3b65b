"""Preprocessing as an ONNX graph: from uint8 [N, height, width, 3] to normalized [N, 3, H, W].

Sizes are computed inside the graph, so one file takes pictures of any size; those of one batch
share theirs. A picture that has the network's size already passes through unchanged.

Note: shrinking smooths as Pillow does, but crops start at whole pixels; where pictures have another
size than the network's, values differ from Pillow's by a few of 255.
"""

from typing import Any

import numpy as np

from fairmargin.data.decode import Decoder
from fairmargin.data.geometry import Geometry
from fairmargin.data.preprocessing import Preprocessing


class _Graph:
    """Nodes that are added one after another; every value has a name."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.asarray(value, dtype=kind)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        node = self.onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes)
        self.nodes.append(node)
        return name

    def size(self, image: str, axis: int) -> str:
        """[1] int64: the length of an axis."""
        return self.add("Gather", self.add("Shape", image), self.constant([axis]))

    def scaled(self, length: str, by: float, *, rounded: bool = True) -> str:
        """round(length · by), or its floor, as [1] int64."""
        float_kind = self.onnx.TensorProto.FLOAT
        product = self.add(
            "Mul", self.add("Cast", length, to=float_kind), self.constant(by, np.float32)
        )
        whole = self.add("Round" if rounded else "Floor", product)
        return self.add("Cast", whole, to=self.onnx.TensorProto.INT64)

    def resize(self, image: str, height: str, width: str) -> str:
        """Resize bilinearly, smooth where it shrinks, and round as 8-bit pictures are."""
        first = self.add("Slice", self.add("Shape", image), self.constant([0]), self.constant([2]))
        sizes = self.add("Concat", first, height, width, axis=0)
        resized = self.add(
            "Resize", image, "", "", sizes, mode="linear", antialias=1,
            coordinate_transformation_mode="half_pixel",
        )  # fmt: skip
        limits = self.constant(0, np.float32), self.constant(255, np.float32)
        return self.add("Clip", self.add("Round", resized), *limits)

    def center(self, image: str, height: str, width: str, *, to_even: bool = False) -> str:
        """The middle of an image, black outside should the image be smaller.

        Args:
            to_even: round halves to even numbers, as `Geometry` does; else down.
        """
        zero = self.constant([0])
        for axis, side in ((2, height), (3, width)):
            length = self.size(image, axis)
            start = self._half(self.add("Sub", length, side), to_even)
            before = self.add("Max", self.add("Neg", start), zero)
            missing = self.add("Sub", self.add("Sub", side, length), before)
            front, back = [zero] * 4, [zero] * 4
            front[axis], back[axis] = before, self.add("Max", missing, zero)
            pads = self.add("Concat", *front, *back, axis=0)
            image = self.add("Pad", image, pads, self.constant(0, np.float32))
            first = self.add("Max", start, zero)
            image = self.add(
                "Slice", image, first, self.add("Add", first, side), self.constant([axis])
            )
        return image

    def _half(self, number: str, to_even: bool) -> str:
        """[1] int64: half of a number, in whole pixels, rounded towards 0 or to even."""
        if not to_even:
            return self.add("Div", number, self.constant([2]))
        halved = self.add(
            "Mul",
            self.add("Cast", number, to=self.onnx.TensorProto.FLOAT),
            self.constant(0.5, np.float32),
        )
        return self.add("Cast", self.add("Round", halved), to=self.onnx.TensorProto.INT64)


def preprocessing_graph(
    onnx: Any, preprocessing: Preprocessing, opset: int, ir_version: int
) -> Any:
    """An ONNX model with the input `pixels` and the output `normalized`."""
    graph = _Graph(onnx)
    helper, kinds = onnx.helper, onnx.TensorProto
    image = graph.add("Cast", graph.add("Transpose", "pixels", perm=[0, 3, 1, 2]), to=kinds.FLOAT)
    decoder = preprocessing.decoder
    if isinstance(decoder, Decoder):
        fitted = _decoder(graph, image, decoder)
    elif isinstance(decoder, Geometry):
        fitted = _geometry(graph, image, decoder)
    else:
        raise TypeError("vectors are standardized without a graph of their own")
    height, width = preprocessing.size
    fitted = graph.add("Reshape", fitted, graph.constant([0, 3, height, width]))
    mean = np.array(preprocessing.mean, np.float32).reshape(1, 3, 1, 1)
    std = np.array(preprocessing.std, np.float32).reshape(1, 3, 1, 1)
    scaled = graph.add("Mul", fitted, graph.constant(1 / (255 * std), np.float32))
    shifted = graph.add("Sub", scaled, graph.constant(mean / std, np.float32))
    graph.nodes.append(helper.make_node("Identity", [shifted], ["normalized"], name="normalized"))
    made = helper.make_graph(
        graph.nodes,
        "preprocessing",
        [helper.make_tensor_value_info("pixels", kinds.UINT8, ["batch", "height", "width", 3])],
        [helper.make_tensor_value_info("normalized", kinds.FLOAT, ["batch", 3, height, width])],
        graph.constants,
    )
    operators = [helper.make_opsetid("", opset)]
    return helper.make_model(made, opset_imports=operators, ir_version=ir_version)


def _decoder(graph: _Graph, image: str, decoder: Decoder) -> str:
    """As `Decoder`: stretch, crop the middle, or pad with black."""
    _, height, width = decoder.shape
    target = graph.constant([height]), graph.constant([width])
    if decoder.mode == "stretch":
        return graph.resize(image, *target)
    tall, wide = graph.size(image, 2), graph.size(image, 3)
    if decoder.mode == "crop":
        cut_height = graph.add("Min", tall, graph.scaled(wide, height / width))
        cut_width = graph.add("Min", wide, graph.scaled(tall, width / height))
        return graph.resize(graph.center(image, cut_height, cut_width), *target)
    # Pad: the longer side fits, compared with the target's proportions.
    new_height = graph.add("Min", target[0], _ratio(graph, tall, width, wide))
    new_width = graph.add("Min", target[1], _ratio(graph, wide, height, tall))
    one = graph.constant([1])
    resized = graph.resize(
        image, graph.add("Max", new_height, one), graph.add("Max", new_width, one)
    )
    return graph.center(resized, *target)


def _ratio(graph: _Graph, length: str, factor: int, other: str) -> str:
    """round(length · factor / other) as [1] int64."""
    kinds = graph.onnx.TensorProto
    above = graph.add(
        "Mul", graph.add("Cast", length, to=kinds.FLOAT), graph.constant(factor, np.float32)
    )
    value = graph.add("Round", graph.add("Div", above, graph.add("Cast", other, to=kinds.FLOAT)))
    return graph.add("Cast", value, to=kinds.INT64)


def _geometry(graph: _Graph, image: str, geometry: Geometry) -> str:
    """As `Geometry`: a centre square of the file, resize, centre crop."""
    if geometry.square is not None:
        side = graph.constant([geometry.square])
        image = graph.center(image, side, side, to_even=True)
    resize = graph.constant([geometry.resize])
    if geometry.stretch:
        resized = graph.resize(image, resize, resize)
    else:
        tall, wide = graph.size(image, 2), graph.size(image, 3)
        short = graph.add("Min", tall, wide)
        # Whole-number division, as in `Geometry`.
        new_height = graph.add("Div", graph.add("Mul", tall, resize), short)
        new_width = graph.add("Div", graph.add("Mul", wide, resize), short)
        resized = graph.resize(image, new_height, new_width)
    side = graph.constant([geometry.side])
    return graph.center(resized, side, side, to_even=True)
