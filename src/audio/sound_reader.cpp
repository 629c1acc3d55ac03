#include "audio/sound_reader.h"

#include <fcntl.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace tarn::audio {
namespace {

/// Streams whose length nobody knew carry sizes from about 2³¹ bytes on: of at most 8 bytes a sample, more
/// samples than this.
constexpr int64_t kOpenBytes = 0x7fff0000;
constexpr int64_t kOpenLength = kOpenBytes / 8;
constexpr int kMaxChannels = 64;

struct CloseSound {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

/// Of bytes that begin in `bytes`.
int64_t little_endian(const unsigned char* bytes) {
  int64_t value = 0;
  for (int i = 0; i < 4; ++i) value += static_cast<int64_t>(bytes[i]) << (8 * i);
  return value;
}

Status cut_off(int64_t has, int64_t promised, const std::string& name) {
  return corrupt("is cut off: has " + std::to_string(has) + " bytes, its header promises " +
                     std::to_string(promised),
                 name);
}

/// What the header of a WAV file promises must be there if it is a regular file: the library would end
/// early in silence.
Status check_wav(int fd, const std::string& name) {
  constexpr int kMaxChunks = 10'000;
  struct stat information;
  if (fstat(fd, &information) != 0 || !S_ISREG(information.st_mode)) return {};
  unsigned char head[8];
  if (pread(fd, head, sizeof head, 0) != sizeof head || std::memcmp(head, "RIFF", 4) != 0) {
    return corrupt("does not begin with RIFF as WAV files do", name);
  }
  const int64_t whole = 8 + little_endian(head + 4);
  if (whole > information.st_size && whole < kOpenBytes) {
    return cut_off(information.st_size, whole, name);
  }
  int64_t at = 12;
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    if (pread(fd, head, sizeof head, at) != sizeof head) break;
    const int64_t size = little_endian(head + 4), end = at + 8 + size;
    if (std::memcmp(head, "data", 4) == 0) {
      return end <= information.st_size ? Status() : cut_off(information.st_size, end, name);
    }
    at = end + size % 2;
  }
  return corrupt("is cut off: has no chunk of samples", name);
}

/// Of other containers the library does not tell whether all is there.
Status check_container(int format, int fd, const std::string& name) {
  switch (format & SF_FORMAT_TYPEMASK) {
    case SF_FORMAT_WAV:
    case SF_FORMAT_WAVEX: return check_wav(fd, name);
    case SF_FORMAT_FLAC:
    case SF_FORMAT_RAW: return {};
    default: break;
  }
  return Error{ErrorCode::kUnsupported, "is sound of another kind, wanted WAV or FLAC", name};
}

}  // namespace

struct SoundReader::State {
  std::string name;
  std::unique_ptr<SNDFILE, CloseSound> file;
  SF_INFO information{};
  int64_t read = 0;            ///< samples of each channel so far
  std::vector<float> several;  ///< samples of all channels, before their mean is taken
};

SoundReader::SoundReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
SoundReader::SoundReader(SoundReader&&) noexcept = default;
SoundReader& SoundReader::operator=(SoundReader&&) noexcept = default;
SoundReader::~SoundReader() = default;

int64_t SoundReader::sample_rate() const { return state_->information.samplerate; }
int64_t SoundReader::channels() const { return state_->information.channels; }

Result<SoundReader> SoundReader::open(const std::string& path, RawKind raw, int64_t raw_rate) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return Error{missing ? ErrorCode::kNotFound : ErrorCode::kIo,
                 std::string("cannot open: ") + std::strerror(errno), path};
  }
  return open_descriptor(fd, true, path, raw, raw_rate);
}

Result<SoundReader> SoundReader::from_descriptor(int fd, const std::string& name, RawKind raw,
                                                 int64_t raw_rate) {
  return open_descriptor(fd, false, name, raw, raw_rate);
}

Result<SoundReader> SoundReader::open_descriptor(int fd, bool owned, const std::string& name,
                                                 RawKind raw, int64_t raw_rate) {
  auto state = std::make_unique<State>();
  state->name = name;
  SF_INFO& information = state->information;
  if (raw != RawKind::kNone) {
    information.samplerate = static_cast<int>(raw_rate);
    information.channels = 1;
    information.format = SF_FORMAT_RAW | SF_ENDIAN_LITTLE |
                         (raw == RawKind::kInt16 ? SF_FORMAT_PCM_16 : SF_FORMAT_FLOAT);
  }
  // The library closes an owned descriptor whether it likes the file or not.
  state->file.reset(sf_open_fd(fd, SFM_READ, &information, owned ? SF_TRUE : SF_FALSE));
  if (state->file == nullptr) {
    return corrupt(std::string("is no sound that can be read: ") + sf_strerror(nullptr), name);
  }
  TARN_RETURN_IF_ERROR(check_container(information.format, fd, name));
  if (information.channels < 1 || information.channels > kMaxChannels) {
    return corrupt("has " + std::to_string(information.channels) + " channels, wanted 1 to " +
                       std::to_string(kMaxChannels),
                   name);
  }
  return SoundReader(std::move(state));
}

Status SoundReader::expect_rate(int64_t rate) const {
  if (sample_rate() == rate) return {};
  return invalid_argument("has " + std::to_string(sample_rate()) +
                              " samples per second, the model takes " + std::to_string(rate),
                          state_->name);
}

Result<std::vector<float>> SoundReader::read_all(int64_t max_samples) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::vector<float> samples;
  for (int64_t got = kPiece; got == kPiece;) {
    const size_t size = samples.size();
    samples.resize(size + kPiece);
    TARN_ASSIGN(got, read(std::span(samples).subspan(size)));
    samples.resize(size + static_cast<size_t>(got));
    if (static_cast<int64_t>(samples.size()) > max_samples) {
      return Error{ErrorCode::kResource,
                   "has more than " + std::to_string(max_samples) + " samples", state_->name};
    }
  }
  samples.shrink_to_fit();  // data sets keep thousands of short ones
  return samples;
}

Result<int64_t> SoundReader::read(std::span<float> samples) {
  State& state = *state_;
  const auto channels = static_cast<size_t>(state.information.channels);
  float* into = samples.data();
  if (channels > 1) {
    state.several.resize(samples.size() * channels);
    into = state.several.data();
  }
  const sf_count_t got =
      sf_readf_float(state.file.get(), into, static_cast<sf_count_t>(samples.size()));
  if (sf_error(state.file.get()) != SF_ERR_NO_ERROR) {
    return corrupt(std::string("cannot be decoded: ") + sf_strerror(state.file.get()), state.name);
  }
  for (size_t i = 0; i < static_cast<size_t>(got) * channels; ++i) {
    if (std::isfinite(into[i])) continue;
    return corrupt("sample " + std::to_string(state.read + static_cast<int64_t>(i / channels)) +
                       " is not a finite number",
                   state.name);
  }
  for (size_t i = 0; channels > 1 && i < static_cast<size_t>(got); ++i) {
    double sum = 0.0;
    for (size_t c = 0; c < channels; ++c) sum += static_cast<double>(into[i * channels + c]);
    samples[i] = static_cast<float>(sum / static_cast<double>(channels));
  }
  state.read += got;
  const int64_t promised = state.information.frames;
  const bool at_end = got < static_cast<sf_count_t>(samples.size());
  if (at_end && promised * static_cast<int64_t>(channels) < kOpenLength && state.read < promised) {
    return corrupt("is cut off: has " + std::to_string(state.read) +
                       " samples, its header promises " + std::to_string(promised),
                   state.name);
  }
  return got;
}

}  // namespace tarn::audio
