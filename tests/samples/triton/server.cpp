// server.cpp: what the Triton server does with a backend, as far as tests need it: it loads one model, makes an
// instance for each thread, and hands over batches of requests.
//
//     server BACKEND.so MODEL_FOLDER THREADS SECONDS <batches
//
// A line of the input is a request: what it asks for ("*": all outputs, else names with commas between), the number of
// buffers of each input, and inputs as NAME:TYPE:EXTENTS:FILE. An empty line ends a batch. Every thread repeats all
// batches for so many seconds, at least once. Printed are the responses of the first time, with their bytes in hex,
// "runs" and the rows of each run, and at the end how many responses came and how many differed from the first.
#include "server.hpp"

#include <chrono>
#include <thread>

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const Backend backend(argv[1]);
  const std::vector<std::vector<TRITONBACKEND_Request>> batches = read_batches();
  require(backend.Initialize(nullptr));
  TRITONBACKEND_Model model{argv[2], nullptr};
  require(backend.ModelInitialize(&model));

  struct Worker {
    TRITONBACKEND_ModelInstance instance;
    std::string first;
    long responses = 0, different = 0;
  };
  std::vector<Worker> workers(std::stoul(argv[3]));
  std::vector<std::thread> threads;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::stod(argv[4]));
  for (Worker &worker : workers) {
    worker.instance.model = &model;
    require(backend.ModelInstanceInitialize(&worker.instance));
  }
  for (Worker &worker : workers) {
    threads.emplace_back([&] {
      do {
        std::string all;
        for (const auto &batch : batches) {
          std::vector<TRITONBACKEND_Request> requests = batch;
          std::vector<TRITONBACKEND_Request *> pointers;
          for (TRITONBACKEND_Request &request : requests) pointers.push_back(&request);
          worker.instance.runs.clear();
          require(
              backend.ModelInstanceExecute(&worker.instance, pointers.data(), static_cast<uint32_t>(pointers.size())));
          for (const TRITONBACKEND_Request &request : requests) all += answer_of(request);
          all += "runs" + worker.instance.runs + "\n";
          worker.responses += static_cast<long>(requests.size());
        }
        if (worker.first.empty()) worker.first = all;
        worker.different += worker.first != all;
      } while (std::chrono::steady_clock::now() < end);
    });
  }
  for (std::thread &thread : threads) thread.join();
  std::cout << workers[0].first;
  long responses = 0, different = 0;
  for (Worker &worker : workers) {
    responses += worker.responses;
    different += worker.different + (worker.first != workers[0].first);
    require(backend.ModelInstanceFinalize(&worker.instance));
  }
  require(backend.ModelFinalize(&model));
  std::cout << "responses " << responses << " different " << different << "\n";
  return 0;
}
