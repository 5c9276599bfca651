/* packager_cuda.h: what the code that a CUDA backend compiles may use of a bundle's runtime. No part of the ABI for
 * programs that load bundles.
 *
 * A primitive function of a CUDA bundle is a C function
 *
 *     int32_t symbol(pk_cuda_t *cuda, pointers..., int64_t scalars...);
 *
 * that enqueues work, waits for nothing and returns 0, or the result of what failed. Pointers are device memory. A
 * backend's object also defines its modules, and declares for each the number that its first kernel has in the bundle:
 *
 *     extern const int32_t acme_module_first;
 *     const pk_cuda_module_t acme_module = { fatbin, "acme_gemm\0acme_add\0", shared_bytes, 2, 0 };
 *     int32_t acme_f(pk_cuda_t *cuda, void *y, const void *x, int64_t n) {
 *       const struct { void *y; const void *x; int64_t n; } arguments = { y, x, n };
 *       const pk_cuda_launch_t launch = { { (uint32_t)((n + 255) / 256), 1, 1 }, { 256, 1, 1 }, 0, 0 };
 *       return pk_cuda_launch(cuda, acme_module_first + 1, &launch, &arguments, sizeof arguments);
 *     }
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef PACKAGER_CUDA_H_
#define PACKAGER_CUDA_H_

#include <stdint.h>

#include "packager_library.h"

/* One run on one device: stream, kernels, and whether calls are launched, captured, compared or timed. */
typedef struct pk_cuda pk_cuda_t;

/* A fatbin and the names of its kernels. */
typedef struct {
  const void *image;            /* as nvcc -fatbin writes it */
  const char *names;            /* of the kernels, zero-terminated, one after the other */
  const uint32_t *shared_bytes; /* [num_kernels] the most dynamic shared memory that a launch asks for */
  int32_t num_kernels;
  int32_t arch; /* 0, or the one architecture that the kernels are for, as 90: other GPUs do not load them */
} pk_cuda_module_t;

typedef struct {
  uint32_t grid[3]; /* blocks; where one is 0 nothing is launched */
  uint32_t block[3];
  uint32_t shared_bytes; /* dynamic */
  uint32_t flags;        /* PK_CUDA_... */
} pk_cuda_launch_t;

/* The kernel waits itself (griddepcontrol.wait) before it touches what earlier kernels write, or writes what they read,
 * and never ends without having waited: on GPUs from 90 on it may be started while those before it run. Constants may
 * be read before. What earlier kernels write is not loaded by ld.global.nc (__ldg, or const and __restrict__): an SM's
 * cache may answer with what was there when the kernel was placed. Code for older GPUs, which has no such instruction,
 * is launched as without the flag. */
#define PK_CUDA_PROGRAMMATIC 1u

/* The device of a run. */
typedef struct {
  int32_t arch; /* as 90 */
  int32_t num_sms;
} pk_cuda_device_t;

/* Launches kernel number `kernel` of the bundle. `arguments` are `bytes` bytes laid out as the kernel's parameters
 * are, one after the other at their alignments; they are copied. */
int32_t pk_cuda_launch(pk_cuda_t *cuda, int32_t kernel, const pk_cuda_launch_t *launch, const void *arguments,
                       uint64_t bytes);

const pk_cuda_device_t *pk_cuda_device(const pk_cuda_t *cuda);

/* Computes a kernel's launch and arguments from the problem that it is to solve. Returns 0, or -1 where the kernel
 * cannot take the problem. */
typedef int32_t pk_cuda_fill_fn(const pk_cuda_device_t *device, const void *problem, void *arguments,
                                pk_cuda_launch_t *launch);

/* Launches kernel number `kernel` with the arguments, `bytes` bytes of them, that `fill` makes of the problem. A
 * session keeps them: `fill` is called anew only where the problem, all its `problem_bytes` bytes, is another than at
 * the same place of the run before. */
int32_t pk_cuda_launch_filled(pk_cuda_t *cuda, int32_t kernel, pk_cuda_fill_fn *fill, const void *problem,
                              uint64_t problem_bytes, uint64_t bytes);

/* What cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col do, with their parameters; -1 where the driver has no such
 * function. Where they fail nothing is written to the tensor map. */
int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                             int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);
int32_t pk_tensor_map_encode_im2col(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                                    const uint64_t *strides, const int32_t *lower, const int32_t *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *element_strides,
                                    int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);

/* Copies within device memory. */
int32_t pk_cuda_copy(pk_cuda_t *cuda, void *target, const void *source, uint64_t bytes);

/* Enqueues the work of a problem in a stream, by a library that the bundle opens: any number of kernels, copies and
 * memsets. It waits for nothing, works while the stream is captured, and leaves no reference to `problem`. Returns 0,
 * or the library's status. */
typedef int32_t pk_cuda_enqueue_fn(pk_cuda_t *cuda, void *stream, const void *problem);

/* Has a library enqueue its work as a part of the run. `problem`, all its `bytes` bytes, is all that the work depends
 * on, pointers included: a graph holds the work as one node, and `enqueue` is called anew only where the problem is
 * another than when the node was last made. Before a session's first run it is called for the largest dims, with
 * pointers that are never read, and nothing of it runs: what the library chooses or loads for a problem is there then.
 * Clear the padding. */
int32_t pk_cuda_enqueue(pk_cuda_t *cuda, pk_cuda_enqueue_fn *enqueue, const void *problem, uint64_t bytes);

/* A kind of value that a backend keeps on each device, as a library's handle. `make` returns 0, or a status. Both are
 * called with the device's context current; `make` by one thread at a time. */
typedef struct {
  int32_t (*make)(const void *key, void *context, void **value);
  void (*release)(void *value);
} pk_cuda_kept_t;

/* Finds the value of a key, all its `bytes` bytes; the first call makes it. Values are shared by the sessions on a
 * device and released after the last of them, the newest first. `make` cannot ask for others: hand them over as its
 * context. */
int32_t pk_cuda_keep(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                     void **value);

/* The same for a value of the session alone, as a handle that has a stream: released with it, the newest first. */
int32_t pk_cuda_keep_own(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                         void **value);

/* Finds PK_CUDA_COUNTER_BYTES bytes of the device that are the session's alone, and zero at its first launch: blocks of
 * a kernel count arrivals there, and the last one leaves zeros. The first call allocates them. */
#define PK_CUDA_COUNTER_BYTES 65536
int32_t pk_cuda_counters(pk_cuda_t *cuda, void **counters);

/* Whether a session is being made: nothing is captured yet, so a value whose making may wait for the device, as that of
 * a handle, is best asked for before the work of the problem is enqueued. */
int32_t pk_cuda_is_preparing(const pk_cuda_t *cuda);

/* Enqueues the first run of what a library has just made, as an execution context, which may do more than later runs
 * do. `stream` is one that nothing captures; `memory` is device memory, cleared, for the run alone. */
typedef int32_t pk_cuda_first_run_fn(pk_cuda_t *cuda, void *stream, void *memory, void *context);

/* Has a library make a first run, in `bytes` bytes of memory that is freed again, and waits for it: what only that run
 * does is then in no graph, which would do it in each replay. Also while the run of the session is captured. Returns
 * 0, what `first_run` returned, or what failed. */
int32_t pk_cuda_warm_up(pk_cuda_t *cuda, pk_cuda_first_run_fn *first_run, void *context, uint64_t bytes);

/* Says why work fails, in the words of the library, right before `enqueue` or the primitive function returns a status:
 * the error of the run quotes it. The text is copied. */
void pk_cuda_explain(pk_cuda_t *cuda, const char *why);

/* Says that a library which is open is of no use on this device, before a status is returned while a session is made:
 * the session is then made without it, if its choices allow that, and warns. */
void pk_cuda_do_without(pk_cuda_t *cuda, const pk_library_t *library);

/* For libraries that hold copies of constants. A session can swap constants between runs: the number of the constants
 * that this run has is part of a problem whose work depends on copies, because the address of a swapped one may be that
 * of an earlier one. */
uint64_t pk_cuda_constants_number(const pk_cuda_t *cuda);
/* Whether a pointer to a constant is that of data which the session was given, and not the bundle's own. */
int32_t pk_cuda_is_swapped(const pk_cuda_t *cuda, const void *constant);
/* Waits until the session's earlier runs are done, and copies a constant to host memory. Not on behalf of a run that
 * the host program captures. Returns 0, or what failed. */
int32_t pk_cuda_read_constant(pk_cuda_t *cuda, void *host, const void *constant, uint64_t bytes);

#endif /* PACKAGER_CUDA_H_ */
