// load.cpp: loads the Triton backend by a program in place of the server, and times requests beside the bare session.
//
//     load BACKEND.so MODEL_FOLDER INSTANCES SECONDS ROUNDS <batches
//
// Batches are those of tests/samples/triton/server.cpp. For so many seconds each instance repeats them in a thread of
// its own; every second there is a line
//     rss KIB RESPONSES
// and at the end
//     responses RESPONSES DIFFERENT FAILED
// Then the first request runs alone, in rounds:
//     round NANOSECONDS NANOSECONDS NANOSECONDS
// of a call of the backend, of a run of a bare session, and of what the calls of the server's API cost by themselves.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "../../samples/hosts/cpp/bundle.hpp"
#include "../../tests/samples/triton/server.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Batch = std::vector<TRITONBACKEND_Request>;
constexpr std::chrono::milliseconds TURN{50};

std::atomic<long> responses{0}, different{0}, failed{0};

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0;
  file >> pages >> pages;
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

void execute(const Backend &backend, TRITONBACKEND_ModelInstance *instance, Batch *requests) {
  std::vector<TRITONBACKEND_Request *> pointers;
  for (TRITONBACKEND_Request &request : *requests) pointers.push_back(&request);
  require(backend.ModelInstanceExecute(instance, pointers.data(), static_cast<uint32_t>(pointers.size())));
}

void work(const Backend &backend, TRITONBACKEND_ModelInstance *instance, const std::vector<Batch> &batches,
          Clock::time_point end) {
  std::vector<std::string> first(batches.size());
  while (Clock::now() < end) {
    for (std::size_t i = 0; i < batches.size(); i++) {
      Batch requests = batches[i];
      instance->runs.clear();
      execute(backend, instance, &requests);
      std::string answers;
      for (const TRITONBACKEND_Request &request : requests) {
        answers += answer_of(request);
        failed += !request.error.empty();
      }
      if (first[i].empty()) first[i] = answers;
      different += first[i] != answers;
      responses += static_cast<long>(requests.size());
    }
  }
}

// What a backend asks of the server for one request, without a run.
void serve_nothing(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request,
                   const std::vector<packager::Tensor> &outputs, const packager::Bundle &bundle) {
  TRITONBACKEND_Response *response = nullptr;
  uint32_t count = 0;
  require(TRITONBACKEND_ResponseNew(&response, request));
  require(TRITONBACKEND_RequestOutputCount(request, &count));
  for (int32_t i = 0; i < bundle->num_inputs; i++) {
    TRITONBACKEND_Input *input = nullptr;
    TRITONSERVER_DataType type;
    const int64_t *shape = nullptr;
    uint64_t size = 0;
    const void *data = nullptr;
    int64_t device = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    require(TRITONBACKEND_RequestInput(request, bundle->inputs[i].name, &input));
    require(TRITONBACKEND_InputProperties(input, nullptr, &type, &shape, &count, &size, &count));
    require(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &memory, &device));
  }
  for (std::size_t i = 0; i < outputs.size(); i++) {
    TRITONBACKEND_Output *output = nullptr;
    void *data = nullptr;
    int64_t device = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    require(TRITONBACKEND_ResponseOutput(response, &output, bundle->outputs[i].name, TRITONSERVER_TYPE_FP32,
                                         outputs[i].shape.data(), static_cast<uint32_t>(outputs[i].shape.size())));
    require(TRITONBACKEND_OutputBuffer(output, &data, outputs[i].bytes.size(), &memory, &device));
  }
  require(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, nullptr));
  require(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, 0, 0, 0, 0));
  require(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, 0, 0, 0, 0));
  require(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

// Returns the nanoseconds of a call, the median of those of a turn; `before` is not measured.
template <typename Before, typename Call>
long timed(Before before, Call call) {
  std::vector<long> taken;
  const auto end = Clock::now() + TURN;
  while (taken.size() < 3 || Clock::now() < end) {
    before();
    const auto start = Clock::now();
    call();
    taken.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
  std::nth_element(taken.begin(), taken.begin() + static_cast<long>(taken.size() / 2), taken.end());
  return taken[taken.size() / 2];
}

void compare(const Backend &backend, TRITONBACKEND_ModelInstance *instance, const std::string &path,
             const TRITONBACKEND_Request &request, long rounds) {
  const packager::Bundle bundle(path);
  packager_session_t *session = nullptr;
  if (bundle->session_create(nullptr, &session) != PACKAGER_OK) std::exit(1);
  TRITONBACKEND_Request bare = request;
  std::vector<DLTensor> views;
  for (int32_t i = 0; i < bundle->num_inputs; i++) {
    TRITONBACKEND_Input &input = bare.inputs.at(bundle->inputs[i].name);
    views.push_back({input.buffers.at(0).data(),
                     {kDLCPU, 0},
                     bundle->inputs[i].ndim,
                     bundle->inputs[i].dtype,
                     input.shape.data(),
                     nullptr,
                     0});
  }
  std::vector<const DLTensor *> inputs;
  for (const DLTensor &view : views) inputs.push_back(&view);
  const auto given = static_cast<int32_t>(inputs.size());
  std::vector<packager::Tensor> outputs(static_cast<std::size_t>(bundle->num_outputs));
  for (int32_t i = 0; i < bundle->num_outputs; i++) {
    packager::Tensor &output = outputs[static_cast<std::size_t>(i)];
    output.dtype = bundle->outputs[i].dtype;
    output.shape.resize(static_cast<std::size_t>(bundle->outputs[i].ndim));
    if (bundle->session_output_shape(session, inputs.data(), given, i, output.shape.data()) != PACKAGER_OK)
      std::exit(1);
    output.bytes.resize(output.size());
  }
  std::vector<DLTensor> targets;
  for (packager::Tensor &output : outputs) targets.push_back(output.view());
  std::vector<DLTensor *> results;
  for (DLTensor &target : targets) results.push_back(&target);

  Batch batch;
  const auto renew = [&] {
    batch.assign(1, request);
    instance->runs.clear();
  };
  for (long round = 0; round < rounds; round++) {
    const long whole = timed(renew, [&] { execute(backend, instance, &batch); });
    const long run = timed(renew, [&] {
      const int32_t status = bundle->session_run(session, inputs.data(), given, results.data(),
                                                 static_cast<int32_t>(results.size()), nullptr);
      if (status != PACKAGER_OK) std::exit(1);
    });
    const long own = timed(renew, [&] { serve_nothing(instance, &batch[0], outputs, bundle); });
    std::cout << "round " << whole << " " << run << " " << own << std::endl;
  }
  bundle->session_destroy(session);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  const Backend backend(argv[1]);
  const std::vector<Batch> batches = read_batches();
  require(backend.Initialize(nullptr));
  TRITONBACKEND_Model model{argv[2], nullptr};
  require(backend.ModelInitialize(&model));
  std::vector<TRITONBACKEND_ModelInstance> instances(std::stoul(argv[3]));
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::stod(argv[4])));
  std::vector<std::thread> threads;
  for (TRITONBACKEND_ModelInstance &instance : instances) {
    instance.model = &model;
    require(backend.ModelInstanceInitialize(&instance));
  }
  for (TRITONBACKEND_ModelInstance &instance : instances) {
    threads.emplace_back([&] { work(backend, &instance, batches, end); });
  }
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::min<Clock::duration>(std::chrono::seconds(1), end - Clock::now()));
    std::cout << "rss " << resident_kib() << " " << responses << std::endl;
  }
  for (std::thread &thread : threads) thread.join();
  std::cout << "responses " << responses << " " << different << " " << failed << std::endl;
  compare(backend, &instances[0], std::string(argv[2]) + "/1/model.so", batches.at(0).at(0), std::stol(argv[5]));
  for (TRITONBACKEND_ModelInstance &instance : instances) require(backend.ModelInstanceFinalize(&instance));
  require(backend.ModelFinalize(&model));
  return 0;
}
