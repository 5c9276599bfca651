/* What convolution kernels check of a problem before they take it, for their host code. */
#pragma once

#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "gemm.h"
#include "problems.h"

namespace pk {

/* How many rows (axis 0) or columns (axis 1) of the padded input a window covers at all its places. */
inline int64_t covered(const pk_conv_t &conv, int axis) {
  const int64_t places = axis == 0 ? conv.out_height : conv.out_width;
  return (places - 1) * conv.stride[axis] + (conv.window[axis] - 1) * conv.dilation[axis] + 1;
}

/* The padding after the last row or column. The problem does not say it, the output's extents do. */
inline int64_t end_padding(const pk_conv_t &conv, int axis) {
  const int64_t extent = axis == 0 ? conv.height : conv.width;
  return std::max<int64_t>(0, covered(conv, axis) - extent - conv.padding[axis]);
}

/* Whether a kernel that accesses `wide` elements of x and w at a time, and `wide_d` of bias, residual and y, may take
 * the problem. Extents, and the offsets of elements within a tensor, are ints in CUTLASS. */
inline bool takes(const pk_conv_t &conv, int64_t size, int64_t wide, int64_t wide_d, bool residual) {
  const double x = double(conv.batch) * conv.height * conv.width * conv.channels;
  const int64_t part = conv.groups ? conv.part : conv.channels;
  const double w = double(conv.filters) * conv.window[0] * conv.window[1] * part;
  const double y = double(conv.batch) * conv.out_height * conv.out_width * conv.filters;
  for (const int64_t extent : {conv.batch, conv.height, conv.width, conv.channels, conv.filters, conv.out_height,
                               conv.out_width, conv.window[0], conv.window[1], part}) {
    if (extent < 1) return false;
  }
  if (std::max({x, w, y}) > INT32_MAX) return false;
  for (int axis = 0; axis < 2; ++axis) {
    if (conv.stride[axis] < 1 || conv.dilation[axis] < 1 || conv.padding[axis] < 0) return false;
    if (conv.stride[axis] > INT16_MAX || conv.dilation[axis] > INT16_MAX || conv.padding[axis] > INT16_MAX)
      return false;
    if (covered(conv, axis) > INT32_MAX) return false;
  }
  if (conv.channels % wide || part % wide || conv.filters % wide_d) return false;
  if (conv.groups < 0 || (conv.groups && (conv.channels % conv.groups || conv.filters % conv.groups))) return false;
  if (!conv.x || !conv.w || !conv.y || residual != (conv.residual != nullptr)) return false;
  for (const void *pointer : {conv.x, conv.w}) {
    if (reinterpret_cast<uintptr_t>(pointer) % (size * wide)) return false;
  }
  for (const void *pointer : {conv.bias, conv.residual, static_cast<const void *>(conv.y)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % (size * wide_d)) return false;
  }
  return true;
}

}  // namespace pk
