"""What backends require of a model before they see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preparation:
    """The model-wide passes that a backend requires before partitioning; the requirements of all backends are united.

    ``channels_last``: convolutions and poolings with channels last on the CPU too. ``integer_matmuls``:
    QDQ is converted to integer matmuls and convolutions, uint8 or int8 times constant int8 weights, accumulated in
    int32. ``signed_data``: on the GPU their data is int8, uint8 becomes it. ``float8_matmuls``: likewise for float8
    (e4m3), accumulated in float32, where 16 divides the extents; ``float8_halves``: also those that the model computes
    in half precision.
    ``block_products``: products with weights that are quantized in blocks get these packed; on the GPU those of
    half precision that may have few rows, or with ``every_block_product`` of any number.
    ``grouped_products``: products of rows with the matrices of their groups stay one operator if these are constants.
    ``im2col``: on the GPU convolutions with few input channels are lowered to im2col + matmul.
    ``normalizations``: on the CPU layer, group, instance and RMS norms are ``packager.normalize``, however written.
    ``padded_rows``: or to convolutions of a padded image, of which kernels for sm_90a read windows row by row.
    ``planar_convolutions``: on the GPU convolutions of sequences and transposed ones are lowered to 2-D convolutions.
    ``volume_views``: on the GPU 3-D convolutions are channels last if views of their tensors make them 2-D ones;
    ``volume_windows``: others too, of channels and filters that kernels for sm_90a read by TMA, or of few channels.
    ``transposed_convolutions``: on the CPU they are lowered to convolutions of stride 1; always done if no backend
    takes partitions. ``sink_reshapes``: on the CPU reshapes are moved below elementwise operators; always done if a
    backend takes partitions.
    """

    channels_last: bool = False
    integer_matmuls: bool = False
    signed_data: bool = False
    float8_matmuls: bool = False
    float8_halves: bool = False
    block_products: bool = False
    every_block_product: bool = False
    grouped_products: bool = False
    im2col: bool = False
    padded_rows: bool = False
    volume_views: bool = False
    volume_windows: bool = False
    planar_convolutions: bool = False
    normalizations: bool = False
    transposed_convolutions: bool = False
    sink_reshapes: bool = False

    def __or__(self, other: Preparation) -> Preparation:
        """Return the union of two requirements."""
        return Preparation(
            *(mine or theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )
