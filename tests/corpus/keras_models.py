"""Keras models by tf2onnx, channels last as Keras has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .case import Bounds, Case, Sizes

Make = Callable[[Any], Any]


def _write(make: Make, dims: tuple[str | int, ...], dtype: str = "float32") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import keras
        import tensorflow as tf
        import tf2onnx

        keras.utils.set_random_seed(0)
        model = make(keras)
        shape = [extent if isinstance(extent, int) else None for extent in dims]
        signature = [tf.TensorSpec(shape, getattr(tf, dtype), name="x")]
        function = tf.function(lambda x: model(x, training=False), input_signature=signature)
        proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=17)
        for axis, extent in enumerate(dims):  # tf2onnx calls them unk__7 and the like
            if isinstance(extent, str):
                proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = extent
        path.write_bytes(proto.SerializeToString())

    return write


def _cnn(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.DepthwiseConv2D(3, strides=2, padding="same"),
            layers.SeparableConv2D(12, 3, activation="swish"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="softmax"),
        ]
    )


def _unet(keras: Any) -> Any:
    layers = keras.layers
    x = image = keras.Input((32, 32, 3))
    x = skip = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = layers.Conv2D(12, 3, strides=2, padding="same", activation="relu")(x)
    up = layers.Conv2DTranspose(8, 3, strides=2, padding="same")(x)
    bilinear = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([skip, up, bilinear])
    return keras.Model(image, layers.Conv2D(2, 1)(x))


def _lstm(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,)),
            layers.Embedding(100, 16),
            layers.Bidirectional(layers.LSTM(12, return_sequences=True)),
            layers.GRU(8),
            layers.Dense(3),
        ]
    )


def _transformer(keras: Any) -> Any:
    layers = keras.layers
    x = ids = keras.Input((None,))
    x = layers.Embedding(100, 16)(x)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, activation="relu")(x)))
    return keras.Model(ids, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def _mobilenet(keras: Any) -> Any:
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5)


def _efficientnet(keras: Any) -> Any:
    return keras.applications.EfficientNetB0(input_shape=(32, 32, 3), weights=None, classes=5)


def _case(name: str, make: Make, dims: tuple[str | int, ...], bounds: dict[str, Bounds], *sizes: Sizes) -> Case:
    dtype = "int32" if len(dims) == 2 else "float32"
    return Case("tf2onnx", name, _write(make, dims, dtype), bounds, sizes, ("tensorflow", "tf2onnx"))


IMAGE = ("n", 32, 32, 3)
BATCH: dict[str, Bounds] = {"n": (1, 4)}
TEXT: dict[str, Bounds] = {"n": (1, 4), "t": (1, 16)}
KERAS = [
    _case("keras_cnn", _cnn, IMAGE, BATCH, {"n": 1}, {"n": 3}),
    _case("keras_unet", _unet, IMAGE, BATCH, {"n": 1}, {"n": 3}),
    _case("keras_lstm", _lstm, ("n", "t"), TEXT, {"n": 1, "t": 5}, {"n": 3, "t": 16}),
    _case("keras_transformer", _transformer, ("n", "t"), TEXT, {"n": 1, "t": 5}, {"n": 3, "t": 16}),
    _case("keras_mobilenet", _mobilenet, IMAGE, BATCH, {"n": 1}, {"n": 3}),
    _case("keras_efficientnet", _efficientnet, IMAGE, BATCH, {"n": 1}, {"n": 3}),
]
