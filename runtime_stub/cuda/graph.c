/* graph.c: runs, or segments of runs, that are captured once for each entry and vector of dims, and then replayed.
 *
 * A graph holds what each primitive function enqueued, and with which arguments. Where a run has other pointers than
 * the graph was last made for, the primitive functions are called to compare: nodes whose arguments differ are changed.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* Replays that were not waited for may be going on, of runs before and of this one. */
static void drop(const pk_cuda_t *cuda, pk_graph_t *graph) {
  int mode = pk_relax_captures();
  if (cuda->pending && graph->exec) pk_driver.cuEventSynchronize(cuda->done);
  if (cuda->by_graphs && graph->exec) pk_driver.cuStreamSynchronize(cuda->stream);
  if (graph->exec) pk_driver.cuGraphExecDestroy(graph->exec);
  if (graph->graph) pk_driver.cuGraphDestroy(graph->graph);
  pk_restore_captures(mode);
  graph->exec = NULL;
  graph->graph = NULL;
  graph->state = PK_GRAPH_EMPTY;
  graph->count = 0;
  graph->argument_bytes = 0;
}

void pk_graphs_release(pk_cuda_t *cuda) {
  for (int32_t i = 0; i < cuda->num_graphs; ++i) {
    drop(cuda, &cuda->graphs[i]);
    free(cuda->graphs[i].nodes);
    free(cuda->graphs[i].arguments);
  }
}

static size_t bytes_of(int32_t count) { return (size_t)count * sizeof(int64_t); }

static int is_for(const pk_graph_t *graph, const packager_session_t *session, const pk_part_t *part) {
  const pk_entry_t *entry = session->entry;
  return graph->state != PK_GRAPH_EMPTY && graph->entry == entry && graph->segment == part->segment &&
         !memcmp(graph->dims, session->dims, bytes_of(entry->num_dims)) &&
         (part->num_keys == 0 || !memcmp(graph->dims + entry->num_dims, part->keys, bytes_of(part->num_keys)));
}

static void assign(pk_graph_t *graph, const packager_session_t *session, const pk_part_t *part) {
  const pk_entry_t *entry = session->entry;
  graph->entry = entry;
  graph->segment = part->segment;
  memcpy(graph->dims, session->dims, bytes_of(entry->num_dims));
  if (part->num_keys > 0) memcpy(graph->dims + entry->num_dims, part->keys, bytes_of(part->num_keys));
}

/* Returns the graph of the part for its dims, or a new one; evicts the least recently used. */
static pk_graph_t *find(const packager_session_t *session, const pk_part_t *part) {
  pk_cuda_t *cuda = session->call.cuda;
  if (cuda->graph && is_for(cuda->graph, session, part)) return cuda->graph;
  pk_graph_t *oldest = cuda->graphs;
  for (int32_t i = 0; i < cuda->num_graphs; ++i) {
    pk_graph_t *graph = &cuda->graphs[i];
    if (graph->used < oldest->used) oldest = graph;
    if (!is_for(graph, session, part)) continue;
    oldest = graph;
    break;
  }
  if (!is_for(oldest, session, part)) {
    drop(cuda, oldest);
    assign(oldest, session, part);
  }
  oldest->used = ++cuda->clock;
  return cuda->graph = oldest;
}

/* What the next node of the stream would depend on. A query that leaves no place for the edges' data fails where there
 * is any, as that of programmatic launches; drivers before CUDA 12.3 know of no such data. */
static CUresult last_nodes(CUstream stream, int *status, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
  const void *edges;
  if (!pk_driver.cuStreamGetCaptureInfoEdges) {
    return pk_driver.cuStreamGetCaptureInfo(stream, status, NULL, graph, nodes, count);
  }
  return pk_driver.cuStreamGetCaptureInfoEdges(stream, status, NULL, graph, nodes, &edges, count);
}

/* The node depends on the ends of those before it, whatever kernels of ours may overlap with. */
CUresult pk_graph_add_child(const pk_cuda_t *cuda, CUgraph child) {
  int status;
  size_t count = 0;
  CUgraph graph;
  const CUgraphNode *nodes;
  CUgraphNode node;
  CUresult result = last_nodes(cuda->stream, &status, &graph, &nodes, &count);
  if (result) return result;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  result = pk_driver.cuGraphAddChildGraphNode(&node, graph, nodes, count, child);
  if (result) return result;
  return pk_driver.cuStreamUpdateCaptureDependencies(cuda->stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

CUresult pk_graph_remember(pk_cuda_t *cuda, const pk_work_t *work) {
  pk_graph_t *graph = cuda->graph;
  int status;
  size_t count = 0;
  const CUgraphNode *nodes;
  CUresult result = last_nodes(cuda->stream, &status, NULL, &nodes, &count);
  if (result) return result;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  uint64_t offset = graph->argument_bytes;
  if (!pk_grow((void **)&graph->nodes, &graph->capacity, (uint64_t)graph->count + 1, sizeof *graph->nodes) ||
      !pk_grow((void **)&graph->arguments, &graph->argument_capacity, offset + work->bytes, 1)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memcpy(graph->arguments + offset, work->arguments, work->bytes);
  graph->argument_bytes += work->bytes;
  graph->nodes[graph->count++] =
      (pk_node_t){nodes[0], work->kernel, (uint32_t)work->bytes, offset, *work->launch, work->enqueue};
  return 0;
}

static CUresult change_kernel(const pk_cuda_t *cuda, CUgraphNode node, const pk_work_t *work) {
  pk_parameters_t passed;
  pk_pass(&passed, work);
  const pk_cuda_launch_t *launch = work->launch;
  const pk_kernel_node_t params = {
      .func = cuda->kernels[work->kernel].function,
      .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
      .block = {launch->block[0], launch->block[1], launch->block[2]},
      .shared_bytes = launch->shared_bytes,
      .kernel_params = passed.params,
      .extra = passed.extra,
  };
  return pk_driver.cuGraphExecKernelNodeSetParams(cuda->graph->exec, node, &params);
}

static CUresult change_copy(const pk_cuda_t *cuda, CUgraphNode node, const pk_copy_t *copy) {
  const pk_copy_node_t params = {
      .src_type = CU_MEMORYTYPE_DEVICE,
      .src_device = (CUdeviceptr)(uintptr_t)copy->source,
      .dst_type = CU_MEMORYTYPE_DEVICE,
      .dst_device = (CUdeviceptr)(uintptr_t)copy->target,
      .width = copy->bytes,
      .height = 1,
      .depth = 1,
  };
  return pk_driver.cuGraphExecMemcpyNodeSetParams(cuda->graph->exec, node, &params, cuda->gpu->context);
}

static CUresult change_opaque(pk_cuda_t *cuda, CUgraphNode node, const pk_work_t *work) {
  CUgraph child;
  CUresult result = pk_opaque_capture(cuda, work, &child);
  if (result) return result;
  result = pk_driver.cuGraphExecChildGraphNodeSetParams(cuda->graph->exec, node, child);
  pk_driver.cuGraphDestroy(child);
  return result;
}

static CUresult change(pk_cuda_t *cuda, CUgraphNode node, const pk_work_t *work) {
  switch (work->kernel) {
    case PK_COPY:
      return change_copy(cuda, node, work->arguments);
    case PK_OPAQUE:
      return change_opaque(cuda, node, work);
    default:
      return change_kernel(cuda, node, work);
  }
}

CUresult pk_graph_compare(pk_cuda_t *cuda, const pk_work_t *work) {
  pk_graph_t *graph = cuda->graph;
  if (cuda->visited >= graph->count) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  pk_node_t *node = &graph->nodes[cuda->visited++];
  if (node->kernel != work->kernel || node->bytes != work->bytes || node->enqueue != work->enqueue ||
      node->launch.flags != work->launch->flags) {
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE; /* what a node is, and its edges, stay as they were captured */
  }
  uint8_t *arguments = graph->arguments + node->offset;
  if (!memcmp(arguments, work->arguments, work->bytes) && !memcmp(&node->launch, work->launch, sizeof node->launch)) {
    return 0;
  }
  CUresult result = change(cuda, node->node, work);
  memcpy(arguments, work->arguments, work->bytes);
  node->launch = *work->launch;
  return result;
}

static size_t input_bytes(const pk_entry_t *entry) { return (size_t)entry->num_inputs * sizeof(void *); }
static size_t output_bytes(const pk_entry_t *entry) { return (size_t)entry->num_outputs * sizeof(void *); }

static int is_current(const packager_session_t *session, const pk_graph_t *graph) {
  const pk_entry_t *entry = graph->entry;
  return graph->version == session->constants.version &&
         !memcmp(graph->pointers, session->inputs, input_bytes(entry)) &&
         !memcmp(graph->pointers + entry->num_inputs, session->outputs, output_bytes(entry));
}

static void make_current(const packager_session_t *session, pk_graph_t *graph) {
  const pk_entry_t *entry = graph->entry;
  graph->version = session->constants.version;
  memcpy(graph->pointers, session->inputs, input_bytes(entry));
  memcpy(graph->pointers + entry->num_inputs, session->outputs, output_bytes(entry));
}

/* Calls the functions of a part in a mode, and goes on as before. */
static int32_t call_part(packager_session_t *session, const pk_part_t *part, int32_t mode) {
  pk_cuda_t *cuda = session->call.cuda;
  int32_t filled = cuda->filled;
  cuda->mode = mode;
  cuda->visited = 0;
  cuda->chained = 0;
  int32_t failed = part->compute(&session->call);
  cuda->mode = PK_LAUNCH;
  cuda->chained = 0;
  cuda->graph->filled = cuda->filled - filled;
  cuda->filled = filled;
  return failed;
}

/* Captures the part on a stream of its own: what the host program enqueues in the session's stream meanwhile is no part
 * of it. */
static int32_t capture(packager_session_t *session, const pk_part_t *part, pk_graph_t *graph) {
  pk_cuda_t *cuda = session->call.cuda;
  CUstream stream = cuda->stream;
  CUresult result = cuda->captures ? 0 : pk_driver.cuStreamCreate(&cuda->captures, CU_STREAM_NON_BLOCKING);
  if (!result) result = pk_driver.cuStreamBeginCapture(cuda->captures, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result) return pk_fail_run(session, result, "a run cannot be captured");
  cuda->stream = cuda->captures;
  int32_t failed = call_part(session, part, PK_CAPTURE);
  cuda->stream = stream;
  result = pk_driver.cuStreamEndCapture(cuda->captures, &graph->graph);
  if (failed) return pk_fail_call(session, failed);
  if (!result && graph->count > 0) result = pk_driver.cuGraphInstantiate(&graph->exec, graph->graph, 0);
  if (result) return pk_fail_run(session, result, "a graph cannot be made of the run");
  graph->state = PK_GRAPH_READY;
  make_current(session, graph);
  return PACKAGER_OK;
}

/* Updates the graph for this run; returns whether that succeeded. */
static int update(packager_session_t *session, const pk_part_t *part, pk_graph_t *graph) {
  if (is_current(session, graph)) return 1;
  if (call_part(session, part, PK_COMPARE) || session->call.cuda->visited != graph->count) return 0;
  make_current(session, graph);
  return 1;
}

static int32_t fail(packager_session_t *session, int32_t status) {
  session->call.cuda->status = status;
  return PK_FAILED;
}

static int32_t replay(packager_session_t *session, const pk_graph_t *graph) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = graph->exec ? pk_driver.cuGraphLaunch(graph->exec, cuda->stream) : 0;
  cuda->filled += graph->filled;
  return result ? fail(session, pk_fail_run(session, result, "the graph of the run cannot be launched")) : 0;
}

/* As a part of a run that has begun, or as one of its own. */
static int32_t launch(packager_session_t *session, const pk_part_t *part) {
  return part->segment ? part->compute(&session->call) : pk_call(session, PK_LAUNCH);
}

/* Without PACKAGER_GRAPH_ON, a part that cannot be captured is launched, now and from now on. */
static int32_t capture_or_launch(packager_session_t *session, const pk_part_t *part, pk_graph_t *graph) {
  pk_cuda_t *cuda = session->call.cuda;
  int mode = pk_relax_captures();
  int32_t status = capture(session, part, graph);
  pk_restore_captures(mode);
  if (!status) return replay(session, graph);
  drop(cuda, graph);
  if (cuda->graph_mode != PACKAGER_GRAPH_AUTO || status == PACKAGER_ERROR_GPU) return fail(session, status);
  graph->state = PK_GRAPH_REFUSED;
  cuda->result = 0;
  return launch(session, part);
}

int32_t pk_graph_run(packager_session_t *session, const pk_part_t *part) {
  pk_cuda_t *cuda = session->call.cuda;
  if (!part->segment) pk_call_begin(cuda, PK_LAUNCH);
  pk_graph_t *graph = find(session, part);
  if (graph->state == PK_GRAPH_READY) {
    if (update(session, part, graph)) return replay(session, graph);
    drop(cuda, graph); /* rebuild: an update does not support the change */
    graph->state = PK_GRAPH_SEEN;
  }
  if (graph->state == PK_GRAPH_SEEN) return capture_or_launch(session, part, graph);
  if (graph->state == PK_GRAPH_EMPTY) {
    if (cuda->graph_mode == PACKAGER_GRAPH_ON) return capture_or_launch(session, part, graph);
    graph->state = PK_GRAPH_SEEN;
  }
  return launch(session, part);
}

/* Only with as many launches as a graph may have; and not where the run is measured, waited for, or captured by the
 * host program. */
int32_t pk_cuda_segment(const pk_call_t *call, int32_t number, int64_t launches, int32_t num_keys, const int64_t *keys,
                        pk_run_fn *segment) {
  const pk_cuda_t *cuda = call->cuda;
  if (!cuda->by_graphs || launches > PK_MAX_NODES) return segment(call);
  const pk_part_t part = {segment, number, num_keys, keys};
  return pk_graph_run(cuda->session, &part);
}
