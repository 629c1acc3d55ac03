#include "model/decoder.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "kernels/norm.h"
#include "model/embedding.h"

namespace tarn::model {
namespace {

using mixers::StateRefs;

constexpr int64_t kGroupRows = 1024;  // rows of activations held at once, longer sequences apart
constexpr int64_t kMlpRows = 128;     // rows whose hidden layer is held at once: stays in cache

/// What all groups of one call share.
struct Call {
  const ModelConfig& config;
  const DecoderWeights& weights;
  const TokenBatch& batch;
  LayerStates states;
  mixers::Form form;
  Outputs outputs;
  float* output;
};

/// Sequences [first, end) of the call, packed into rows of their own.
struct Group {
  int64_t first = 0;
  int64_t end = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

void apply_norm(const ModelConfig& config, const NormWeights& norm, int64_t rows, const float* x,
                float* out) {
  const int64_t dim = config.model_dim;
  if (config.norm == NormKind::kLayerNorm) {
    kernels::layer_norm(rows, dim, x, dim, norm.weight.data(), norm.bias.data(), config.norm_eps,
                        out, dim);
  } else {
    kernels::rms_norm(rows, dim, x, dim, norm.weight.data(), config.norm_eps, out, dim);
  }
}

void add(int64_t count, const float* a, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += a[i];
}

/// Norms and sums of rows that a pool may share.
void parallel_norm(const ModelConfig& config, const NormWeights& norm, int64_t rows,
                   const float* addend, const float* x, float* out, ThreadPool* pool) {
  const int64_t dim = config.model_dim;
  const auto body = [&](int64_t begin, int64_t end, int) {
    float* target = out + begin * dim;
    const float* source = x + begin * dim;
    if (addend != nullptr) {
      TARN_DCHECK(x == out);
      add((end - begin) * dim, addend + begin * dim, target);
    }
    apply_norm(config, norm, end - begin, source, target);
  };
  // Below this the threads' wake-up costs more than the work.
  // By reference: a std::function of the closure itself would allocate at every call.
  parallel_for(rows * dim < 65'536 ? nullptr : pool, rows, std::ref(body));
}

/// x += mlp(x) or mlp(norm(x)), in blocks of rows whose hidden layer stays in the cache.
void add_mlp(const Call& call, const LayerConfig& layer, const BlockWeights& block, int64_t rows,
             float* x, ThreadPool* pool, Arena& arena) {
  const ModelConfig& config = call.config;
  const int64_t dim = config.model_dim;
  const int64_t hidden_dim = layer.mlp_hidden_dim;
  const bool pre = config.placement == NormPlacement::kPre;
  const int64_t threads = pool != nullptr ? pool->num_threads() : 1;
  const int64_t block_rows = std::min(rows, kMlpRows * threads);
  ArenaScope scope(arena);
  float* hidden = arena.alloc<float>(block_rows * hidden_dim);
  float* normed = pre ? arena.alloc<float>(block_rows * dim) : nullptr;
  for (int64_t begin = 0; begin < rows; begin += block_rows) {
    const int64_t count = std::min(block_rows, rows - begin);
    float* part = x + begin * dim;
    if (pre) parallel_norm(config, block.norm2, count, nullptr, part, normed, pool);
    block.up.multiply(count, pre ? normed : part, dim, hidden, hidden_dim, layer.mlp_activation,
                      false, pool);
    block.down.multiply(count, hidden, hidden_dim, part, dim, kernels::Activation::kNone, true,
                        pool);
  }
}

/// The group's view of a layer's state: pointer arrays that begin at its first sequence.
StateRefs<float> group_state(const StateRefs<float>& state, const Group& group, Arena& arena) {
  const size_t count = state.tensors.size();
  auto* shifted = arena.alloc<float* const*>(static_cast<int64_t>(count));
  for (size_t j = 0; j < count; ++j) shifted[j] = state.tensors[j] + group.first;
  return {{shifted, count}};
}

void run_block(const Call& call, size_t index, mixers::LayerArgs& args, int64_t rows, float* x,
               float* normed, float* mixed, float* handed_on) {
  const LayerConfig& layer = call.config.layers[index];
  const BlockWeights& block = call.weights.blocks[index];
  const bool pre = call.config.placement == NormPlacement::kPre;
  const int64_t size = rows * call.config.model_dim;
  if (pre) parallel_norm(call.config, block.norm1, rows, nullptr, x, normed, args.pool);
  args.config = layer.mixer_config.get();
  args.weights = block.mixer.get();
  args.x = pre ? normed : x;
  args.out = mixed;
  args.received = layer.rows.received > 0 ? handed_on : nullptr;
  args.handed_on = layer.rows.handed_on > 0 ? handed_on : nullptr;
  mixers::run_layer(*layer.mixer, args);
  if (pre) {
    add(size, mixed, x);
  } else {
    parallel_norm(call.config, block.norm1, rows, mixed, x, x, args.pool);
  }
  if (!layer.has_mlp()) return;
  add_mlp(call, layer, block, rows, x, args.pool, *args.arena);
  if (!pre) parallel_norm(call.config, block.norm2, rows, nullptr, x, x, args.pool);
}

/// Final norm and head for the rows that are wanted.
void write_outputs(const Call& call, const Group& group, float* x, ThreadPool* pool, Arena& arena) {
  const ModelConfig& config = call.config;
  const int64_t dim = config.model_dim;
  const int64_t width = config.head.output_dim();
  const kernels::Sequences& sequences = call.batch.sequences;
  ArenaScope scope(arena);
  const auto emit = [&](int64_t rows, float* wanted, float* output) {
    if (config.final_norm) {
      parallel_norm(config, call.weights.final_norm, rows, nullptr, wanted, wanted, pool);
    }
    call.weights.head.multiply(rows, wanted, dim, output, width, kernels::Activation::kNone, false,
                               pool);
  };
  if (call.outputs == Outputs::kAllRows) {
    emit(group.rows, x, call.output + group.first_row * width);
    return;
  }
  // Runs of non-empty sequences: the output row of an empty one stays as it is.
  float* last = arena.alloc<float>((group.end - group.first) * dim);
  int64_t i = group.first;
  while (i < group.end) {
    int64_t count = 0;
    for (; i + count < group.end && sequences.length[i + count] > 0; ++count) {
      const int64_t row = sequences.begin[i + count] + sequences.length[i + count] - 1;
      std::memcpy(last + count * dim, x + (row - group.first_row) * dim,
                  static_cast<size_t>(dim) * sizeof(float));
    }
    if (count > 0) emit(count, last, call.output + i * width);
    i += std::max<int64_t>(count, 1);
  }
}

void run_group(const Call& call, const Group& group, ThreadPool* pool, Arena& arena) {
  if (group.rows == 0) return;
  ArenaScope scope(arena);
  const int64_t size = group.rows * call.config.model_dim;
  const int64_t count = group.end - group.first;
  float* x = arena.alloc<float>(size);
  float* mixed = arena.alloc<float>(size);
  float* normed = call.config.placement == NormPlacement::kPre ? arena.alloc<float>(size) : nullptr;
  const int64_t handed_on_width = call.config.handed_on_width();
  float* handed_on =
      handed_on_width > 0 ? arena.alloc<float>(group.rows * handed_on_width) : nullptr;
  int64_t* begin = arena.alloc<int64_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    begin[i] = call.batch.sequences.begin[group.first + i] - group.first_row;
  }
  mixers::LayerArgs args;
  args.sequences = {count, begin, call.batch.sequences.length + group.first};
  args.positions = call.batch.positions != nullptr ? call.batch.positions + group.first : nullptr;
  args.form = call.form;
  args.pool = pool;
  args.arena = &arena;
  float* const* history =
      call.states.size() > call.config.layers.size() ? call.states.back().tensors[0] : nullptr;
  embed(call.config, call.weights, call.batch, history, group.first, group.end, x, pool);
  if (history != nullptr) {
    update_history(call.config, call.batch, history, group.first, group.end);
  }
  if (call.config.embedding_norm) {
    parallel_norm(call.config, call.weights.embedding_norm, group.rows, nullptr, x, x, pool);
  }
  for (size_t layer = 0; layer < call.config.layers.size(); ++layer) {
    ArenaScope layer_scope(arena);
    args.state =
        call.states.empty() ? StateRefs<float>{} : group_state(call.states[layer], group, arena);
    run_block(call, layer, args, group.rows, x, normed, mixed, handed_on);
  }
  if (call.outputs != Outputs::kNone) write_outputs(call, group, x, pool, arena);
}

/// Runs sequences [first, end) group by group. With states, sequences of one token and longer ones
/// never share a group: mixers choose their form by that, and the choice may not depend on
/// batch mates.
void run_sequences(const Call& call, int64_t first, int64_t end, ThreadPool* pool, Arena& arena) {
  const kernels::Sequences& sequences = call.batch.sequences;
  const auto single = [&](int64_t i) { return sequences.length[i] == 1; };
  int64_t i = first;
  while (i < end) {
    Group group{i, i + 1, sequences.begin[i], sequences.length[i]};
    while (group.end < end && group.rows + sequences.length[group.end] <= kGroupRows &&
           (call.states.empty() || single(group.end) == single(i))) {
      group.rows += sequences.length[group.end++];
    }
    run_group(call, group, pool, arena);
    i = group.end;
  }
}

/// The first sequence of piece `piece` of `pieces` with about equal numbers of rows.
int64_t piece_start(const kernels::Sequences& sequences, int64_t piece, int64_t pieces) {
  if (piece == pieces) return sequences.count;
  const int64_t last = sequences.count - 1;
  const int64_t rows = sequences.begin[last] + sequences.length[last];
  const int64_t* found =
      std::lower_bound(sequences.begin, sequences.begin + sequences.count, rows * piece / pieces);
  return found - sequences.begin;
}

}  // namespace

void run_decoder(const ModelConfig& config, const DecoderWeights& weights, const TokenBatch& batch,
                 LayerStates states, mixers::Form form, Outputs outputs, float* output,
                 ThreadPool* pool, Arena& arena) noexcept {
  TARN_DCHECK(states.empty() ||
              states.size() == config.layers.size() + (config.embedding_lags.empty() ? 0 : 1));
  const int64_t count = batch.sequences.count;
  if (count == 0) return;
  const Call call{config, weights, batch, states, form, outputs, output};
  const int threads = pool != nullptr ? pool->num_threads() : 1;
  if (threads == 1 || count < threads) {
    run_sequences(call, 0, count, threads == 1 ? nullptr : pool, arena);
    return;
  }
  pool->parallel_for(threads, [&call, threads](int64_t begin, int64_t end, int) {
    // Model::forward is shared by callers, so scratch of the workers is theirs, not the model's.
    thread_local Arena own;
    const kernels::Sequences& sequences = call.batch.sequences;
    run_sequences(call, piece_start(sequences, begin, threads),
                  piece_start(sequences, end, threads), nullptr, own);
  });
}

}  // namespace tarn::model
