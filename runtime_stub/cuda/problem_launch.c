/* problem_launch.c: launches whose arguments are computed from a problem; and tensor maps, which are parts of such
 * arguments.
 *
 * Computing them takes longer than a launch: a session caches them for each launch of its run, and reuses them if the
 * problem is the same.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define ALIGNMENT 128 /* of tensor maps, as their type in cuda.h has it; the driver asks for 64 */
#define TENSOR_MAP_BYTES 128
#define ROUND_UP(bytes) (((bytes) + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1))

/* Returns a place that is not kept yet, or NULL where memory ran out. */
static pk_filled_t *add_place(pk_cuda_t *cuda) {
  uint64_t count = cuda->num_places;
  if (!pk_grow((void **)&cuda->places, &cuda->place_capacity, count + 1, sizeof *cuda->places)) return NULL;
  cuda->num_places = count + 1;
  cuda->places[count] = (pk_filled_t){.room = 0};
  return &cuda->places[count];
}

/* Makes room for arguments, aligned, and a problem. Returns 0 where memory ran out. */
static int make_room(pk_filled_t *place, uint64_t argument_bytes, uint64_t problem_bytes) {
  uint64_t room = ROUND_UP(argument_bytes) + ROUND_UP(problem_bytes);
  if (room > place->room) {
    free(place->arguments);
    place->arguments = aligned_alloc(ALIGNMENT, room);
    place->room = place->arguments ? room : 0;
    if (!place->arguments) return 0;
  }
  place->argument_bytes = argument_bytes;
  place->problem = place->arguments + ROUND_UP(argument_bytes);
  place->problem_bytes = problem_bytes;
  return 1;
}

/* Caches the problem once the kernel has accepted it. */
static CUresult fill_place(const pk_cuda_t *cuda, pk_filled_t *place, pk_cuda_fill_fn *fill, const void *problem,
                           uint64_t problem_bytes, uint64_t bytes) {
  place->fill = NULL;
  if (!make_room(place, bytes, problem_bytes)) return PK_NO_MEMORY;
  memset(place->arguments, 0, bytes);
  place->launch = (pk_cuda_launch_t){.flags = 0};
  if (fill(&cuda->gpu->facts, problem, place->arguments, &place->launch)) return PK_REFUSED;
  memcpy(place->problem, problem, problem_bytes);
  place->fill = fill;
  return 0;
}

static int is_kept(const pk_filled_t *place, pk_cuda_fill_fn *fill, const void *problem, uint64_t problem_bytes,
                   uint64_t bytes) {
  return place->fill == fill && place->problem_bytes == problem_bytes && place->argument_bytes == bytes &&
         !memcmp(place->problem, problem, problem_bytes);
}

int32_t pk_cuda_launch_filled(pk_cuda_t *cuda, int32_t kernel, pk_cuda_fill_fn *fill, const void *problem,
                              uint64_t problem_bytes, uint64_t bytes) {
  if (cuda->mode == PK_PREPARE) return 0;
  uint64_t number = (uint64_t)cuda->filled++;
  pk_filled_t *place = number < cuda->num_places ? &cuda->places[number] : add_place(cuda);
  if (!place) return pk_fail_launch(cuda, kernel, PK_NO_MEMORY);
  if (!is_kept(place, fill, problem, problem_bytes, bytes)) {
    CUresult result = fill_place(cuda, place, fill, problem, problem_bytes, bytes);
    if (result) return pk_fail_launch(cuda, kernel, result);
  }
  const pk_work_t work = {kernel, &place->launch, place->arguments, bytes, 1, NULL};
  return pk_launch_work(cuda, &work);
}

void pk_filled_release(pk_cuda_t *cuda) {
  for (uint64_t i = 0; i < cuda->num_places; ++i) free(cuda->places[i].arguments);
  free(cuda->places);
}

/* The driver does not say what it leaves in a map that it has refused. */
typedef struct {
  _Alignas(ALIGNMENT) uint8_t bytes[TENSOR_MAP_BYTES];
} tensor_map_t;

static int32_t finish(void *map, const tensor_map_t *encoded, CUresult result) {
  if (!result) memcpy(map, encoded, sizeof *encoded);
  return result;
}

int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                             int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill) {
  tensor_map_t encoded;
  if (!pk_driver.cuTensorMapEncodeTiled) return -1;
  return finish(map, &encoded,
                pk_driver.cuTensorMapEncodeTiled(&encoded, type, rank, address, extents, strides, box, element_strides,
                                                 interleave, swizzle, promotion, fill));
}

int32_t pk_tensor_map_encode_im2col(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                                    const uint64_t *strides, const int32_t *lower, const int32_t *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *element_strides,
                                    int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill) {
  tensor_map_t encoded;
  if (!pk_driver.cuTensorMapEncodeIm2col) return -1;
  return finish(
      map, &encoded,
      pk_driver.cuTensorMapEncodeIm2col(&encoded, type, rank, address, extents, strides, lower, upper, channels, pixels,
                                        element_strides, interleave, swizzle, promotion, fill));
}
