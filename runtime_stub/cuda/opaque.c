/* opaque.c: work that a library enqueues, which only the library knows: one node of a graph, whatever it consists of.
 */
#include "gpu.h"

/* A library may load a kernel when it is first used, also while the host program captures. */
static CUresult call_library(pk_cuda_t *cuda, const pk_work_t *work, CUstream stream) {
  int mode = pk_relax_captures();
  int32_t status = work->enqueue(cuda, stream, work->arguments);
  pk_restore_captures(mode);
  if (!status) return 0;
  cuda->failed = status;
  return PK_LIBRARY;
}

static CUresult capture(pk_cuda_t *cuda, const pk_work_t *work, CUgraph *graph) {
  CUresult result = cuda->opaque ? 0 : pk_driver.cuStreamCreate(&cuda->opaque, CU_STREAM_NON_BLOCKING);
  if (!result) result = pk_driver.cuStreamBeginCapture(cuda->opaque, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result) return result;
  *graph = NULL;
  result = call_library(cuda, work, cuda->opaque);
  CUresult ended = pk_driver.cuStreamEndCapture(cuda->opaque, graph);
  if (!result) result = ended;
  if (result && *graph) pk_driver.cuGraphDestroy(*graph);
  return result;
}

CUresult pk_opaque_capture(pk_cuda_t *cuda, const pk_work_t *work, CUgraph *graph) {
  int mode = pk_relax_captures();
  CUresult result = capture(cuda, work, graph);
  pk_restore_captures(mode);
  return result;
}

/* Nothing may overlap it: edges of a node that is a graph cannot be programmatic, and runs without graphs are alike. */
CUresult pk_opaque_enqueue(pk_cuda_t *cuda, const pk_work_t *work) {
  cuda->chained = 0;
  if (cuda->mode != PK_CAPTURE) return call_library(cuda, work, cuda->stream);
  CUgraph child;
  CUresult result = pk_opaque_capture(cuda, work, &child);
  if (result) return result;
  result = pk_graph_add_child(cuda, child);
  pk_driver.cuGraphDestroy(child);
  return result;
}

static CUresult prepare(pk_cuda_t *cuda, const pk_work_t *work) {
  CUgraph graph;
  CUresult result = pk_opaque_capture(cuda, work, &graph);
  if (!result) pk_driver.cuGraphDestroy(graph);
  return result;
}

int32_t pk_cuda_is_preparing(const pk_cuda_t *cuda) { return cuda->mode == PK_PREPARE; }

int32_t pk_cuda_enqueue(pk_cuda_t *cuda, pk_cuda_enqueue_fn *enqueue, const void *problem, uint64_t bytes) {
  static const pk_cuda_launch_t none;
  const pk_work_t work = {PK_OPAQUE, &none, problem, bytes, 0, enqueue};
  CUresult result = cuda->mode == PK_PREPARE ? prepare(cuda, &work) : pk_perform(cuda, &work);
  if (result) cuda->result = result;
  return result;
}

static CUresult warm_up(pk_cuda_t *cuda, pk_cuda_first_run_fn *first_run, void *context, CUdeviceptr memory,
                        uint64_t bytes) {
  CUstream stream = cuda->gpu->uploads;
  CUresult result = pk_driver.cuMemsetD8Async(memory, 0, bytes, stream);
  if (result) return result;
  int32_t status = first_run(cuda, stream, (void *)(uintptr_t)memory, context);
  result = pk_driver.cuStreamSynchronize(stream); /* also after a failure: some of it may run */
  return status ? status : result;
}

int32_t pk_cuda_warm_up(pk_cuda_t *cuda, pk_cuda_first_run_fn *first_run, void *context, uint64_t bytes) {
  int mode = pk_relax_captures();
  CUdeviceptr memory;
  CUresult result = pk_driver.cuMemAlloc(&memory, bytes);
  if (!result) {
    result = warm_up(cuda, first_run, context, memory, bytes);
    pk_driver.cuMemFree(memory);
  }
  pk_restore_captures(mode);
  return result;
}
