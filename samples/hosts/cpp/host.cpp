// host.cpp: runs a packager bundle from C++17 with packager.h and bundle.hpp, a RAII wrapper to copy.
//
//     c++ -std=c++17 -I runtime_stub/include samples/hosts/cpp/host.cpp -o host -ldl
//     ./host ./model.so input.f32 output.f32
//
// The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
// symbolic it follows from the size of the file. All outputs are written one after another.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "bundle.hpp"
#include "packager.h"

namespace {

using packager::Bundle;
using packager::Session;
using packager::Tensor;

std::string describe(const packager_tensor_info_t &info) {
  static const char *const names[] = {"int", "uint", "float", "", "bfloat", "", "bool"};
  std::string text = std::string(info.name) + ": ";
  text += (info.dtype.code < std::size(names) ? names[info.dtype.code] : "") + std::to_string(info.dtype.bits) + " [";
  for (std::int32_t axis = 0; axis < info.ndim; axis++) {
    if (axis > 0) text += ", ";
    text += info.shape[axis] == PACKAGER_DIM_SYMBOLIC ? info.dims[axis] : std::to_string(info.shape[axis]);
  }
  return text + "]";
}

// Reads the model's one input and derives a symbolic first extent from the size of the file.
Tensor read_input(const Bundle &bundle, const std::string &path) {
  const packager_tensor_info_t &info = bundle->inputs[0];
  if (bundle->num_inputs != 1 || info.dtype.code != kDLFloat || info.dtype.bits != 32) {
    throw std::runtime_error("needs a model of one float32 input");
  }
  std::ifstream file(path, std::ios::binary);
  Tensor input{info.dtype, {info.shape, info.shape + info.ndim}, {std::istreambuf_iterator<char>(file), {}}};
  if (!file || input.bytes.empty()) throw std::runtime_error(path + ": is empty or cannot be read");

  if (!input.shape.empty() && input.shape[0] == PACKAGER_DIM_SYMBOLIC) {
    input.shape[0] = 1;
    const std::size_t row = input.size();
    input.shape[0] = row == 0 ? 0 : static_cast<std::int64_t>(input.bytes.size() / row);
  }
  for (const std::int64_t extent : input.shape) {
    if (extent == PACKAGER_DIM_SYMBOLIC) throw std::runtime_error("only the first dim may vary");
  }
  if (input.size() != input.bytes.size()) throw std::runtime_error(path + ": its size is not that of the input");
  return input;
}

void write_outputs(const std::vector<Tensor> &outputs, const std::string &path) {
  std::ofstream file(path, std::ios::binary);
  for (const Tensor &output : outputs)
    file.write(output.bytes.data(), static_cast<std::streamsize>(output.bytes.size()));
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) {
    std::cerr << "usage: host BUNDLE INPUT OUTPUT\n";
    return 1;
  }
  try {
    const Bundle bundle(argv[1]);
    std::cout << "model " << bundle->name << "\n";
    for (std::int32_t i = 0; i < bundle->num_inputs; i++) std::cout << "input " << describe(bundle->inputs[i]) << "\n";
    for (std::int32_t i = 0; i < bundle->num_outputs; i++)
      std::cout << "output " << describe(bundle->outputs[i]) << "\n";

    Session session(bundle);
    std::vector<Tensor> inputs;
    inputs.push_back(read_input(bundle, argv[2]));
    write_outputs(session.run(inputs), argv[3]);
  } catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
