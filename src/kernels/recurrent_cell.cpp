#include "kernels/recurrent_cell.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/buffer.h"
#include "kernels/cpu/recurrent_rows.h"

namespace tarn::kernels {
namespace {

/// Sequences from the longest to the shortest, dealt to teams like cards: a team's unfinished
/// sequences are then always its first ones, and its length is much like the others'.
struct Teams {
  Teams(const RecurrentProblem& problem, Arena& arena)
      : sequences(problem.sequences), order(arena.alloc<int64_t>(sequences.count)) {
    const int64_t threads = problem.pool != nullptr ? problem.pool->num_threads() : 1;
    count = std::min(threads, sequences.count);
    for (int64_t i = 0; i < sequences.count; ++i) order[i] = i;
    std::sort(order, order + sequences.count, [this](int64_t a, int64_t b) {
      const int64_t* length = sequences.length;
      return length[a] != length[b] ? length[a] > length[b] : a < b;
    });
  }
  int64_t size(int64_t team) const { return (sequences.count - team + count - 1) / count; }
  int64_t sequence(int64_t team, int64_t member) const { return order[team + member * count]; }
  /// Members with more than `t` tokens.
  int64_t active(int64_t team, int64_t t) const {
    int64_t members = size(team);
    while (members > 0 && sequences.length[sequence(team, members - 1)] <= t) --members;
    return members;
  }
  int64_t longest(int64_t team) const { return sequences.length[sequence(team, 0)]; }
  /// Floats of memory that lie before a team's, at `width` per member.
  int64_t offset(int64_t team, int64_t width) const {
    int64_t members = 0;
    for (int64_t i = 0; i < team; ++i) members += size(i);
    return members * width;
  }

  Sequences sequences;
  int64_t* order;
  int64_t count;
};

/// A state's vector, or zeros.
template <class T>
void load_state(T* const* state, int64_t sequence, int64_t size, float* to) {
  if (state != nullptr) {
    std::copy_n(state[sequence], size, to);
  } else {
    std::fill_n(to, size, 0.0f);
  }
}

/// The next token's rows come from memory during the product: in each sequence they lie elsewhere.
template <class T>
void prefetch_row(Rows<T> rows, int64_t row, int64_t size) {
  constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
  if (!rows) return;
  for (int64_t i = 0; i < size; i += kLine) {
    __builtin_prefetch(rows.at(row) + i, std::is_const_v<T> ? 0 : 1, 2);
  }
}

struct Forward {
  const RecurrentProblem& problem;
  Rows<const float> gates;
  const PackedOperand& weight;
  const float* bias;
  RecurrentState<float> state;
  Rows<float> out, saved;
  const Teams& teams;
  float* memory;  ///< h, c and W·h + b of every sequence
  void (*cell)(const CellRow&);

  int64_t floats() const { return 2 * problem.hidden_dim + problem.gates_dim(); }

  void run(int64_t team) const {
    const int64_t E = problem.hidden_dim;
    const int64_t size = teams.size(team);
    const bool has_c = problem.cell == RecurrentCell::kLstm;
    float* h = memory + teams.offset(team, floats());
    float* c = h + size * E;
    float* recurrent = c + size * E;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t sequence = teams.sequence(team, i);
      load_state(state.h, sequence, E, h + i * E);
      if (has_c) load_state(state.h != nullptr ? state.c : nullptr, sequence, E, c + i * E);
    }
    for (int64_t t = 0; t < teams.longest(team); ++t) {
      const int64_t active = teams.active(team, t);
      multiply_rows(weight, {.rows = active,
                             .a = h,
                             .a_stride = E,
                             .bias = bias,
                             .out = recurrent,
                             .out_stride = problem.gates_dim()});
      for (int64_t i = 0; i < active; ++i) {
        const int64_t sequence = teams.sequence(team, i);
        const int64_t row = problem.sequences.begin[sequence] + t;
        cell({E, gates.at(row), recurrent + i * problem.gates_dim(), h + i * E, c + i * E,
              out.at(row), saved ? saved.at(row) : nullptr});
        if (t + 1 == problem.sequences.length[sequence]) continue;
        prefetch_row(gates, row + 1, problem.gates_dim());
        prefetch_row(saved, row + 1, problem.saved_dim());
      }
    }
    if (state.h == nullptr) return;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t sequence = teams.sequence(team, i);
      std::copy_n(h + i * E, E, state.h[sequence]);
      if (has_c) std::copy_n(c + i * E, E, state.c[sequence]);
    }
  }
};

struct Backward {
  const RecurrentProblem& problem;
  const PackedOperand& weight;
  Rows<const float> out, saved;
  RecurrentState<const float> initial;
  Rows<const float> dout;
  RecurrentState<const float> dfinal;
  RecurrentGradients gradients;
  const Teams& teams;
  float* memory;         ///< dh, dc, the state before a token and dr of every sequence
  float* candidates;     ///< GRU: the gradient of r_n [tokens of all sequences, E]
  const int64_t* place;  ///< per sequence: its first row there
  void (*cell)(const CellRowGradient&);

  int64_t floats() const { return 3 * problem.hidden_dim + problem.gates_dim(); }

  /// c (LSTM) or h (GRU) before token `t` of a sequence; `space` receives an initial one.
  const float* before(int64_t sequence, int64_t t, float* space) const {
    const int64_t E = problem.hidden_dim;
    const int64_t row = problem.sequences.begin[sequence] + t - 1;
    const bool has_c = problem.cell == RecurrentCell::kLstm;
    if (t > 0) return has_c ? saved.at(row) + 4 * E : out.at(row);
    load_state(initial.h != nullptr && has_c ? initial.c : initial.h, sequence, E, space);
    return space;
  }

  void run(int64_t team) const {
    const int64_t E = problem.hidden_dim;
    const int64_t size = teams.size(team);
    const bool has_c = problem.cell == RecurrentCell::kLstm;
    float* dh = memory + teams.offset(team, floats());
    float* dc = dh + size * E;
    float* space = dc + size * E;
    float* drecurrent = space + size * E;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t sequence = teams.sequence(team, i);
      load_state(dfinal.h, sequence, E, dh + i * E);
      if (has_c) load_state(dfinal.h != nullptr ? dfinal.c : nullptr, sequence, E, dc + i * E);
    }
    for (int64_t t = teams.longest(team) - 1; t >= 0; --t) {
      const int64_t active = teams.active(team, t);
      for (int64_t i = 0; i < active; ++i) {
        const int64_t sequence = teams.sequence(team, i);
        const int64_t row = problem.sequences.begin[sequence] + t;
        float* dr = drecurrent + i * problem.gates_dim();
        cell({E, saved.at(row), before(sequence, t, space + i * E), dout.at(row), dh + i * E,
              dc + i * E, gradients.dgates.at(row), dr});
        if (!has_c) std::copy_n(dr + 2 * E, E, candidates + (place[sequence] + t) * E);
      }
      multiply_rows(weight, {.rows = active,
                             .a = drecurrent,
                             .a_stride = problem.gates_dim(),
                             .addend = dh,
                             .addend_stride = E,
                             .out = dh,
                             .out_stride = E});
    }
    if (gradients.dinitial.h == nullptr) return;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t sequence = teams.sequence(team, i);
      std::copy_n(dh + i * E, E, gradients.dinitial.h[sequence]);
      if (has_c) std::copy_n(dc + i * E, E, gradients.dinitial.c[sequence]);
    }
  }
};

/// Every team on a thread; the closure is one pointer, so that the function needs no memory.
template <class Call>
void run_teams(const Call& call) {
  parallel_for(call.problem.pool, call.teams.count, [&call](int64_t begin, int64_t end, int) {
    for (int64_t team = begin; team < end; ++team) call.run(team);
  });
}

/// dweight and dbias of `rows` rows of a sequence that read the states x.
void add_weight_gradients(const Backward& call, DType format, int64_t sequence, int64_t t,
                          int64_t rows, const float* x, int64_t x_stride) {
  const RecurrentProblem& problem = call.problem;
  const RecurrentGradients& gradients = call.gradients;
  const int64_t E = problem.hidden_dim;
  const bool is_lstm = problem.cell == RecurrentCell::kLstm;
  WeightGradient gradient{format,
                          rows,
                          is_lstm ? 4 * E : 2 * E,
                          E,
                          gradients.dgates.at(problem.sequences.begin[sequence] + t),
                          gradients.dgates.stride,
                          x,
                          x_stride,
                          gradients.dweight,
                          gradients.dbias};
  add_weight_gradient(gradient, problem.pool);
  if (is_lstm) return;
  gradient.out_dim = E;
  gradient.dy = call.candidates + (call.place[sequence] + t) * E;
  gradient.dy_stride = E;
  gradient.dweight += 2 * E * E;
  if (gradient.dbias != nullptr) gradient.dbias += 2 * E;
  add_weight_gradient(gradient, problem.pool);
}

}  // namespace

PackedOperand pack_recurrent(const RecurrentProblem& problem, DType format, const float* weight,
                             Arena& arena) {
  return pack_operand(format, Layout::kTransposed, weight, problem.hidden_dim, problem.hidden_dim,
                      problem.gates_dim(), problem.pool, arena);
}

void recurrent_forward(const RecurrentProblem& problem, Rows<const float> gates,
                       const PackedOperand& weight, const float* bias, RecurrentState<float> state,
                       Rows<float> out, Rows<float> saved, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const Teams teams(problem, arena);
  Forward call{problem, gates, weight, bias,    state,
               out,     saved, teams,  nullptr, cell_row_kernels(problem.cell).forward};
  call.memory = arena.alloc<float>(problem.sequences.count * call.floats());
  run_teams(call);
}

void recurrent_step(const RecurrentProblem& problem, Rows<const float> gates,
                    const PackedOperand& weight, const float* bias, RecurrentState<float> state,
                    Rows<float> out, Arena& arena) noexcept {
  ArenaScope scope(arena);
  int64_t* ones = arena.alloc<int64_t>(problem.sequences.count);
  std::fill_n(ones, problem.sequences.count, int64_t{1});
  RecurrentProblem step = problem;
  step.sequences.length = ones;
  recurrent_forward(step, gates, weight, bias, state, out, {}, arena);
}

void recurrent_backward(const RecurrentProblem& problem, DType format, const float* weight,
                        Rows<const float> out, Rows<const float> saved,
                        RecurrentState<const float> initial, Rows<const float> dout,
                        RecurrentState<const float> dfinal, const RecurrentGradients& gradients,
                        Arena& arena) noexcept {
  ArenaScope scope(arena);
  const Sequences& sequences = problem.sequences;
  const int64_t E = problem.hidden_dim;
  const Teams teams(problem, arena);
  const PackedOperand packed =
      pack_operand(format, Layout::kPlain, weight, E, problem.gates_dim(), E, problem.pool, arena);
  int64_t* place = arena.alloc<int64_t>(sequences.count);
  int64_t tokens = 0;
  for (int64_t i = 0; i < sequences.count; ++i) {
    place[i] = tokens;
    tokens += sequences.length[i];
  }
  const bool is_lstm = problem.cell == RecurrentCell::kLstm;
  Backward call{problem,
                packed,
                out,
                saved,
                initial,
                dout,
                dfinal,
                gradients,
                teams,
                nullptr,
                is_lstm ? nullptr : arena.alloc<float>(tokens * E),
                place,
                cell_row_kernels(problem.cell).backward};
  call.memory = arena.alloc<float>(sequences.count * call.floats());
  run_teams(call);
  float* first = arena.alloc<float>(E);
  for (int64_t i = 0; i < sequences.count; ++i) {
    if (sequences.length[i] == 0) continue;
    load_state(initial.h, i, E, first);
    add_weight_gradients(call, format, i, 0, 1, first, E);
    add_weight_gradients(call, format, i, 1, sequences.length[i] - 1, out.at(sequences.begin[i]),
                         out.stride);
  }
}

}  // namespace tarn::kernels
