// Runs a fuzzer's entry point over its corpus without libFuzzer, so that every build and compiler
// sees at least the known inputs and their near neighbours.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

/// Gives the input in a block of exactly its size: AddressSanitizer then sees a read past the end.
void run(const std::string& input) {
  const auto exact = std::make_unique<uint8_t[]>(input.size());
  for (size_t i = 0; i < input.size(); ++i) exact[i] = static_cast<uint8_t>(input[i]);
  LLVMFuzzerTestOneInput(exact.get(), input.size());
}

/// The input, its prefixes and its single-byte changes; long inputs in about `kSteps` even steps.
void run_neighbours(const std::string& input) {
  constexpr size_t kSteps = 2000;
  const size_t stride = input.size() / kSteps + 1;
  run(input);
  for (size_t i = 0; i < input.size(); i += stride) {
    run(input.substr(0, i));
    std::string changed = input;
    for (const int mask : {0x01, 0x80, 0xff}) {
      changed[i] = static_cast<char>(input[i] ^ mask);
      run(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    run_neighbours(std::string(std::istreambuf_iterator<char>(file), {}));
    ++count;
  }
  std::printf("replayed %d inputs and their neighbours\n", count);
  return count > 0 ? 0 : 1;
}
