/* LSTM and GRU layers in one launch: a block, or a cluster of them, has eight rows of the batch and one direction for
 * all steps. Recurrent weights stay in registers: a warp has those of all gates of eight hidden units, two tiles of 16
 * rows, so that a lane gets the sums of all gates of a unit for two rows, and keeps their states. The hidden state goes
 * around by shared memory, of all blocks of the cluster. */
#pragma once

#include <stdint.h>

#include "packager_cuda.h"
#include "recurrent_problem.h"
#include "warp.h"

namespace pk {

constexpr int kBatchRows = 8;

/* Pointers are those of pk_recurrent_t. */
struct RecurrentParams {
  const void *x, *w, *bias, *h, *c;
  void *y;
  int32_t steps, batch, hidden, directions, gates, reverse, final_h, final_c;
  int32_t place[4];
};

/* Elements of a row of the hidden state in shared memory: lanes read eight rows at different banks. */
__host__ __device__ constexpr int recurrent_pitch(int depth) { return depth + 8; }
__host__ __device__ constexpr int recurrent_shared(int depth) { return 2 * kBatchRows * recurrent_pitch(depth) * 2; }

#if !defined(PK_HOST) || defined(PK_SIMT)
__device__ inline float sigmoid_of(float x) { return reciprocal_of(1.0f + exp2_of(-kLog2OfE * x)); }
__device__ inline float tanh_of(float x) { return 2.0f * sigmoid_of(2.0f * x) - 1.0f; }

/* `kUnits` hidden units of each of `kBlocks` blocks, all of them `kDepth`, a multiple of 16. An LSTM's gates are i, f,
 * c, o; a GRU's are z, r, h, the last tile's second half is zeros. */
template <class Type, bool kGru, int kUnits, int kDepth, int kBlocks>
__device__ void recurrent_layer(const RecurrentParams &p, char *shared) {
  using Storage = typename Type::Storage;
  constexpr int kWarps = kUnits / 8, kSteps = kDepth / 16, kPitch = recurrent_pitch(kDepth);
  constexpr int kState = kBatchRows * kPitch;
  constexpr int kGates = kGru ? 3 : 4;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % kBlocks, first = blockIdx.x / kBlocks * kBatchRows, direction = blockIdx.y;
  const int unit = rank * kUnits + 8 * warp + g;
  Storage *const state = reinterpret_cast<Storage *>(shared);

  release_next();
  uint4 w[kSteps][2];
  const uint4 *from = static_cast<const uint4 *>(p.w) + ((direction * kBlocks + rank) * kWarps + warp) * kSteps * 64;
#pragma unroll
  for (int k = 0; k < kSteps; k++) {
#pragma unroll
    for (int i = 0; i < 2; i++) w[k][i] = load_once(from + (2 * k + i) * 32 + lane);
  }
  float bias = 0.0f;
  if constexpr (kGru) {
    if (p.bias && unit < p.hidden) {
      bias = Type::widen(static_cast<const Storage *>(p.bias)[direction * p.hidden + unit]);
    }
  }
  wait_for_earlier();

  const Storage *const initial = static_cast<const Storage *>(p.h), *const cells = static_cast<const Storage *>(p.c);
  for (int i = thread; i < 2 * kState; i += kWarps * 32) {
    const int row = first + i / kPitch, k = i % kPitch;
    const bool exists = initial && i < kState && row < p.batch && k < p.hidden;
    state[i] = exists ? initial[(int64_t(direction) * p.batch + row) * p.hidden + k] : Type::narrow(0.0f);
  }
  float h[2], c[2];
  bool exists[2];
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const int row = first + 2 * t + j;
    exists[j] = row < p.batch && unit < p.hidden;
    const int64_t at = (int64_t(direction) * p.batch + row) * p.hidden + unit;
    h[j] = exists[j] && initial ? Type::widen(initial[at]) : 0.0f;
    c[j] = exists[j] && cells ? Type::widen(cells[at]) : 0.0f;
  }

  /* Inputs are loaded two steps before they are used, and stay as they are until then: to convert them is to wait for
   * them. Lanes without a row or a unit load those of others. */
  const bool backwards = p.reverse >> direction & 1;
  const int64_t apart = int64_t(p.directions) * p.gates * p.hidden, width = int64_t(p.directions) * p.hidden;
  const int64_t move = backwards ? -p.batch : p.batch, start = backwards ? int64_t(p.steps - 1) * p.batch : 0;
  const int some = min(unit, p.hidden - 1);
  const Storage *x[2];
  Storage *y[2];
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const int row = first + 2 * t + j;
    x[j] = static_cast<const Storage *>(p.x) + (start + min(row, p.batch - 1)) * apart +
           int64_t(direction) * p.gates * p.hidden + some;
    y[j] = static_cast<Storage *>(p.y) + (start + row) * width + int64_t(direction) * p.hidden + unit;
  }
  int place[kGates];
#pragma unroll
  for (int gate = 0; gate < kGates; gate++) place[gate] = p.place[gate] * p.hidden;
  auto load = [&](Storage(&ahead)[kGates][2], int step) {
    if (step >= p.steps) return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int gate = 0; gate < kGates; gate++) ahead[gate][j] = x[j][place[gate]];
      x[j] += move * apart;
    }
  };
  auto meet = [] {
    if constexpr (kBlocks > 1) {
      cluster_sync();
    } else {
      __syncthreads();
    }
  };
  OfBlock of_block[kBlocks];
#pragma unroll
  for (int block = 0; block < kBlocks; block++) of_block[block] = memory_of_block<kBlocks>(shared, block);

  auto advance = [&](Storage(&ahead)[kGates][2], int step) {
    const Storage *const now = state + step % 2 * kState;
    float in[kGates][2];
#pragma unroll
    for (int gate = 0; gate < kGates; gate++)
      in[gate][0] = Type::widen(ahead[gate][0]), in[gate][1] = Type::widen(ahead[gate][1]);
    load(ahead, step + 2);
    float sum[2][2][4] = {};  // even and odd steps of k, tile
#pragma unroll
    for (int k = 0; k < kSteps; k++) {
      const Storage *const at = now + g * kPitch + 16 * k + 2 * t;
      const uint32_t b0 = *reinterpret_cast<const uint32_t *>(at), b1 = *reinterpret_cast<const uint32_t *>(at + 8);
#pragma unroll
      for (int i = 0; i < 2; i++) mma<Type>(sum[k % 2][i], w[k][i].x, w[k][i].y, w[k][i].z, w[k][i].w, b0, b1);
    }
    const int place_of_state = (step + 1) % 2 * kState + 2 * t * kPitch + unit;
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float gate[4];
#pragma unroll
      for (int n = 0; n < 4; n++) gate[n] = sum[0][n / 2][n % 2 * 2 + j] + sum[1][n / 2][n % 2 * 2 + j];
      if constexpr (kGru) {
        const float z = sigmoid_of(in[0][j] + gate[0]), r = sigmoid_of(in[1][j] + gate[1]);
        h[j] = (1.0f - z) * tanh_of(in[2][j] + r * (gate[2] + bias)) + z * h[j];
      } else {
        const float i = sigmoid_of(in[0][j] + gate[0]), f = sigmoid_of(in[1][j] + gate[1]);
        c[j] = f * c[j] + i * tanh_of(in[2][j] + gate[2]);
        h[j] = sigmoid_of(in[3][j] + gate[3]) * tanh_of(c[j]);
      }
      const Storage rounded = Type::narrow(h[j]);
      if (unit < p.hidden) {
#pragma unroll
        for (int block = 0; block < kBlocks; block++) {
          store_to_block<kBlocks>(of_block[block], (place_of_state + j * kPitch) * int(sizeof rounded), rounded);
        }
      }
      if (exists[j]) *y[j] = rounded;
      y[j] += move * width;
    }
    meet();
  };

  Storage ahead[2][kGates][2];
  load(ahead[0], 0), load(ahead[1], 1);
  meet();
  for (int step = 0; step < p.steps; step += 2) {
    advance(ahead[0], step);
    if (step + 1 < p.steps) advance(ahead[1], step + 1);
  }
  Storage *const last =
      static_cast<Storage *>(p.y) + int64_t(p.steps) * p.batch * width + int64_t(direction) * p.hidden + unit;
#pragma unroll
  for (int j = 0; j < 2; j++) {
    if (!exists[j]) continue;
    const int64_t row = first + 2 * t + j;
    if (p.final_h >= 0) last[(int64_t(p.final_h) * p.batch + row) * width] = Type::narrow(h[j]);
    if (p.final_c >= 0) last[(int64_t(p.final_c) * p.batch + row) * width] = Type::narrow(c[j]);
  }
}
#endif

#ifdef PK_HOST
inline int32_t recurrent_fill(const pk_recurrent_t &layer, bool gru, int units, int depth, int blocks, void *arguments,
                              pk_cuda_launch_t *launch) {
  *launch = {};
  const int64_t gates = gru ? 3 : 4;
  if (layer.steps < 0 || layer.batch < 1 || layer.hidden < 1 || layer.hidden > depth) return -1;
  if (layer.directions < 1 || layer.directions > 2 || layer.hidden > int64_t(units) * blocks) return -1;
  const double most = double(layer.batch) * layer.directions * gates * layer.hidden;
  if (layer.steps > INT32_MAX - 2 || layer.batch > INT32_MAX - kBatchRows || most > INT32_MAX) return -1;
  if (!layer.x || !layer.y || !layer.w || reinterpret_cast<uintptr_t>(layer.w) % 16 != 0) return -1;
  RecurrentParams &p = *static_cast<RecurrentParams *>(arguments);
  p.x = layer.x, p.w = layer.w, p.bias = layer.bias, p.h = layer.h, p.c = layer.c, p.y = layer.y;
  p.steps = int32_t(layer.steps), p.batch = int32_t(layer.batch), p.hidden = int32_t(layer.hidden);
  p.directions = int32_t(layer.directions), p.gates = int32_t(gates), p.reverse = int32_t(layer.reverse);
  p.final_h = int32_t(layer.final_h), p.final_c = int32_t(layer.final_c);
  for (int gate = 0; gate < gates; gate++) p.place[gate] = int32_t(layer.place[gate]);
  const uint32_t rows = uint32_t((layer.batch + kBatchRows - 1) / kBatchRows);
  *launch = {{rows * uint32_t(blocks), uint32_t(layer.directions), 1},
             {uint32_t(units / 8 * 32), 1, 1},
             uint32_t(recurrent_shared(depth)),
             PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
