#include "kernels/softmax_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

struct Shape {
  std::vector<int64_t> queries;  // length of each sequence
  std::vector<int64_t> keys;
  int64_t num_heads = 2;
  int64_t num_kv_heads = 2;
  int64_t key_dim = 8;
  int64_t value_dim = 8;
  bool causal = true;
  float range = 1.0f;  // q and k are uniform in ±range
};

/// Inputs of one problem. q, and k and v, are column slices of wide rows; between two sequences
/// lie rows of NaN that nobody may read. With `own_storage` each sequence's keys and values have
/// memory of their own, as in a cache.
class Attention {
 public:
  explicit Attention(const Shape& shape, bool own_storage = false)
      : shape_(shape),
        query_begin_(begins(shape.queries)),
        key_begin_(begins(shape.keys)),
        q_(rows_of(shape.queries), shape.num_heads * shape.key_dim),
        kv_(rows_of(shape.keys), shape.num_kv_heads * (shape.key_dim + shape.value_dim)) {
    fill(shape.queries, query_begin_, q_, 11, shape.num_heads * shape.key_dim);
    fill(shape.keys, key_begin_, kv_, 12, shape.num_kv_heads * shape.key_dim);
    for (size_t i = 0; i < shape.keys.size(); ++i) {
      k_pointers_.push_back(kv_.row(key_begin_[i]));
      v_pointers_.push_back(kv_.row(key_begin_[i]) + v_offset());
    }
    problem_.queries = {count(), query_begin_.data(), shape_.queries.data()};
    problem_.keys = {count(), key_begin_.data(), shape_.keys.data()};
    problem_.num_heads = shape.num_heads;
    problem_.num_kv_heads = shape.num_kv_heads;
    problem_.key_dim = shape.key_dim;
    problem_.value_dim = shape.value_dim;
    problem_.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
    problem_.causal = shape.causal;
    k = rows(k_pointers_.data(), kv_.data(), shape.key_dim, own_storage);
    v = rows(v_pointers_.data(), kv_.data() + v_offset(), shape.value_dim, own_storage);
    q = {q_.data(), q_.stride(), shape.key_dim};
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  int64_t count() const { return static_cast<int64_t>(shape_.queries.size()); }
  const Shape& shape() const { return shape_; }
  SoftmaxProblem& problem() { return problem_; }
  const std::vector<int64_t>& query_begin() const { return query_begin_; }
  int64_t query_rows() const { return q_.rows(); }
  int64_t key_rows() const { return kv_.rows(); }
  int64_t v_offset() const { return shape_.num_kv_heads * shape_.key_dim; }
  TestRows& q_matrix() { return q_; }
  TestRows& kv_matrix() { return kv_; }

  TestRows empty_output() const {
    return TestRows(query_rows(), shape_.num_heads * shape_.value_dim);
  }
  Heads<float> heads_of(TestRows& out, int64_t dim) const {
    return {out.data(), out.stride(), dim};
  }

  TestRows forward(std::vector<float>* log_sum = nullptr) {
    TestRows out = empty_output();
    if (log_sum != nullptr) {
      log_sum->assign(static_cast<size_t>(query_rows() * shape_.num_heads), std::nanf(""));
    }
    softmax_forward(problem_, q, k, v, heads_of(out, shape_.value_dim),
                    log_sum != nullptr ? log_sum->data() : nullptr, arena_);
    return out;
  }

  Heads<const float> q;
  KeyRows<const float> k;
  KeyRows<const float> v;

 private:
  static constexpr int64_t kGap = 2;  // rows between sequences

  static std::vector<int64_t> begins(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> result;
    int64_t row = 1;
    for (int64_t length : lengths) {
      result.push_back(row);
      row += length + kGap;
    }
    return result;
  }
  static int64_t rows_of(const std::vector<int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{1}) +
           kGap * static_cast<int64_t>(lengths.size());
  }
  void fill(const std::vector<int64_t>& lengths, const std::vector<int64_t>& begin, TestRows& to,
            uint64_t seed, int64_t wide) const {
    for (size_t i = 0; i < lengths.size(); ++i) {
      const TestRows values = TestRows::uniform(lengths[i], to.dim(), seed + 100 * i);
      for (int64_t r = 0; r < lengths[i]; ++r) {
        for (int64_t c = 0; c < to.dim(); ++c) {
          to.row(begin[i] + r)[c] = values.row(r)[c] * (c < wide ? shape_.range : 1.0f);
        }
      }
    }
  }
  KeyRows<const float> rows(const float* const* pointers, const float* shared, int64_t dim,
                            bool own_storage) const {
    KeyRows<const float> result;
    if (own_storage) {
      result.data = pointers;
      result.row_stride = kv_.stride();
      result.head_stride = dim;
    } else {
      result.shared = {shared, kv_.stride(), dim};
    }
    return result;
  }

  Shape shape_;
  std::vector<int64_t> query_begin_;
  std::vector<int64_t> key_begin_;
  TestRows q_;
  TestRows kv_;
  std::vector<const float*> k_pointers_;
  std::vector<const float*> v_pointers_;
  SoftmaxProblem problem_;
  Arena arena_;
};

/// The same problem in double, by the definition.
class DoubleAttention {
 public:
  explicit DoubleAttention(Attention& source)
      : source_(source), q(copy(source.q_matrix())), kv(copy(source.kv_matrix())) {}

  /// [query rows, num_heads·value_dim]
  std::vector<double> forward() const {
    const Shape& shape = source_.shape();
    const int64_t width = shape.num_heads * shape.value_dim;
    std::vector<double> out(static_cast<size_t>(source_.query_rows() * width), 0.0);
    const int64_t kv_width = shape.num_kv_heads * (shape.key_dim + shape.value_dim);
    KeyRows<const double> k, v;
    k.shared = {kv.data(), kv_width, shape.key_dim};
    v.shared = {kv.data() + source_.v_offset(), kv_width, shape.value_dim};
    reference::softmax_attention(source_.problem(),
                                 {q.data(), shape.num_heads * shape.key_dim, shape.key_dim}, k, v,
                                 {out.data(), width, shape.value_dim});
    return out;
  }
  double loss(const std::vector<double>& weights) const {
    const std::vector<double> out = forward();
    return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0);
  }

 private:
  static std::vector<double> copy(const TestRows& rows) {
    std::vector<double> result;
    for (int64_t r = 0; r < rows.rows(); ++r) {
      result.insert(result.end(), rows.row(r), rows.row(r) + rows.dim());
    }
    return result;
  }
  Attention& source_;

 public:
  std::vector<double> q;   // [query rows, num_heads·key_dim]
  std::vector<double> kv;  // [key rows, num_kv_heads·(key_dim + value_dim)]
};

/// Rounding of the scores (a sum of key_dim products of size range²) moves each weight by that
/// much relative to itself; sums over keys add a term of their own. |v| ≤ 1.
double output_tolerance(const Shape& shape) {
  const double steps = std::sqrt(static_cast<double>(shape.key_dim));
  const double score = static_cast<double>(shape.range) * shape.range * steps;
  const int64_t keys =
      shape.keys.empty() ? 0 : *std::max_element(shape.keys.begin(), shape.keys.end());
  return kEps * (4.0 * (score + 1.0) + std::sqrt(static_cast<double>(keys)) + 8.0);
}

void check_forward(const Shape& shape, bool own_storage = false) {
  SCOPED_TRACE(::testing::Message()
               << "T " << shape.queries[0] << "/" << shape.keys[0] << " K " << shape.key_dim
               << " V " << shape.value_dim << " heads " << shape.num_heads << ":"
               << shape.num_kv_heads << (shape.causal ? " causal" : " full"));
  Attention attention(shape, own_storage);
  const TestRows out = attention.forward();
  EXPECT_TRUE(out.padding_is_intact());
  const std::vector<double> expected = DoubleAttention(attention).forward();
  const double bound = output_tolerance(shape);
  std::vector<bool> is_query(static_cast<size_t>(attention.query_rows()), false);
  for (size_t i = 0; i < shape.queries.size(); ++i) {
    for (int64_t r = 0; r < shape.queries[i]; ++r) {
      is_query[static_cast<size_t>(attention.query_begin()[i] + r)] = true;
    }
  }
  for (int64_t r = 0; r < out.rows(); ++r) {
    for (int64_t c = 0; c < out.dim(); ++c) {
      if (is_query[static_cast<size_t>(r)]) {
        ASSERT_NEAR(out.row(r)[c], expected[static_cast<size_t>(r * out.dim() + c)], bound)
            << "row " << r << " column " << c;
      } else {
        ASSERT_TRUE(std::isnan(out.row(r)[c])) << "padding row " << r << " was written";
      }
    }
  }
}

constexpr int64_t kLengths[] = {0, 1, 2, 63, 64, 65, 127};

TEST(Softmax, MatchesReferenceForAwkwardShapes) {
  for_each_target([] {
    for (bool causal : {true, false}) {
      for (int64_t length : kLengths) {
        check_forward({{length}, {length}, 2, 2, 33, 8, causal});
      }
      for (int64_t dim : {1, 3, 33, 72, 96, 128, 300}) {
        check_forward({{65}, {65}, 1, 1, dim, 300 - dim + 1, causal});
        check_forward({{1}, {70}, 1, 1, dim, 300 - dim + 1, causal});
      }
      check_forward({{70, 0, 1, 5}, {70, 3, 130, 5}, 4, 1, 16, 5, causal});
      check_forward({{70, 0, 1, 5}, {70, 3, 130, 5}, 6, 2, 5, 32, causal});
    }
  });
}

TEST(Softmax, CachedKeysAlignTheLastQueryWithTheLastKey) {
  for_each_target([] {
    for (bool own_storage : {true, false}) {
      for (int64_t keys : {1, 63, 64, 65, 129, 200}) {
        check_forward({{1, 1}, {keys, keys + 1}, 4, 2, 16, 24, true}, own_storage);
        check_forward({{7}, {keys}, 2, 1, 16, 24, true}, own_storage);
        check_forward({{66}, {keys}, 2, 2, 16, 24, true}, own_storage);
      }
    }
  });
}

TEST(Softmax, QueriesWithoutKeysGiveZeros) {
  for (int64_t keys : {0, 3, 70}) {
    Attention attention({{100, 1}, {keys, 0}, 2, 2, 8, 5, true});
    std::vector<float> log_sum;
    const TestRows out = attention.forward(&log_sum);
    const auto expect_zero = [&](int64_t row) {
      for (int64_t c = 0; c < out.dim(); ++c) ASSERT_EQ(out.row(row)[c], 0.0f);
      ASSERT_EQ(log_sum[static_cast<size_t>(row * 2)], -INFINITY);
    };
    for (int64_t r = 0; r < 100 - keys; ++r) expect_zero(attention.query_begin()[0] + r);
    expect_zero(attention.query_begin()[1]);
    if (keys > 0) {
      EXPECT_NE(out.row(attention.query_begin()[0] + 100 - keys)[0], 0.0f);
    }
  }
}

TEST(Softmax, HugeScoresNeitherOverflowNorVanish) {
  for_each_target([] {
    // Scores up to ±1e4: range²·sqrt(key_dim) = 1e4 for key_dim 16.
    for (int64_t queries : {1, 70}) {
      check_forward({{queries}, {130}, 2, 2, 16, 8, true, 50.0f});
      check_forward({{queries}, {130}, 2, 2, 16, 8, false, 50.0f});
    }
  });
}

TEST(Softmax, LogSumIsTheLogOfTheSum) {
  for_each_target([] {
    for (int64_t queries : {1, 90}) {
      const Shape shape{{queries}, {130}, 2, 1, 16, 8, true, 2.0f};
      Attention attention(shape);
      std::vector<float> log_sum;
      attention.forward(&log_sum);
      const DoubleAttention reference(attention);
      const int64_t kv_width = 24;
      for (int64_t t = 0; t < queries; ++t) {
        for (int64_t h = 0; h < 2; ++h) {
          double sum = 0.0;
          for (int64_t j = 0; j <= 130 - queries + t; ++j) {
            double dot = 0.0;
            for (int64_t c = 0; c < 16; ++c) {
              dot += reference.q[static_cast<size_t>((1 + t) * 32 + h * 16 + c)] *
                     reference.kv[static_cast<size_t>((1 + j) * kv_width + c)];
            }
            sum += std::exp(dot / 4.0);
          }
          ASSERT_NEAR(log_sum[static_cast<size_t>((1 + t) * 2 + h)], std::log(sum),
                      output_tolerance(shape));
        }
      }
    }
  });
}

TEST(Softmax, BitsDependNeitherOnBatchMatesNorOnThreads) {
  const Shape batch{{1, 5, 70, 1, 130, 2}, {90, 9, 70, 1, 131, 66}, 6, 2, 24, 20, true};
  for_each_target([&] {
    Attention all(batch);
    const TestRows expected = all.forward();
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      all.problem().pool = &pool;
      const TestRows out = all.forward();
      for (size_t i = 0; i < batch.queries.size(); ++i) {
        for (int64_t r = 0; r < batch.queries[i]; ++r) {
          const int64_t row = all.query_begin()[i] + r;
          ASSERT_TRUE(out.same_bits(row, expected, row)) << threads << " threads, row " << row;
        }
      }
    }
    all.problem().pool = nullptr;
    for (size_t i = 0; i < batch.queries.size(); ++i) {
      // The same problem, of which only sequence i is asked for.
      Attention alone(batch);
      TestRows out = alone.empty_output();
      const float* k_rows = alone.kv_matrix().row(alone.problem().keys.begin[i]);
      const float* v_rows = k_rows + alone.v_offset();
      KeyRows<const float> k, v;
      k = {&k_rows, {}, alone.kv_matrix().stride(), batch.key_dim};
      v = {&v_rows, {}, alone.kv_matrix().stride(), batch.value_dim};
      SoftmaxProblem one = alone.problem();
      one.queries = {1, one.queries.begin + i, one.queries.length + i};
      one.keys = {1, one.keys.begin + i, one.keys.length + i};
      Arena arena;
      softmax_forward(one, alone.q, k, v, alone.heads_of(out, batch.value_dim), nullptr, arena);
      for (int64_t r = 0; r < batch.queries[i]; ++r) {
        const int64_t row = all.query_begin()[i] + r;
        ASSERT_TRUE(out.same_bits(row, expected, row)) << "sequence " << i << " alone";
      }
    }
  });
}

TEST(Softmax, FutureKeysDoNotReachThePast) {
  const Shape shape{{100}, {100}, 1, 1, 16, 16, true};
  Attention before(shape);
  Attention after(shape);
  for (int64_t c = 0; c < 32; ++c) after.kv_matrix().row(1 + 70)[c] = 3.0f;
  const TestRows first = before.forward();
  const TestRows second = after.forward();
  for (int64_t r = 0; r < 70; ++r) ASSERT_TRUE(first.same_bits(1 + r, second, 1 + r));
  EXPECT_FALSE(first.same_bits(1 + 70, second, 1 + 70));
}

TEST(Softmax, NanScoresShow) {
  for (int64_t queries : {1, 4}) {
    Attention attention({{queries}, {20}, 1, 1, 8, 8, false});
    attention.q_matrix().row(1)[3] = std::nanf("");
    const TestRows out = attention.forward();
    EXPECT_TRUE(std::isnan(out.row(1)[0]));
  }
}

/// Gradients of Σ out·w against central differences of the double reference, at every `stride`-th
/// element.
void check_gradients(const Shape& shape, int64_t stride) {
  SCOPED_TRACE(::testing::Message() << "T " << shape.queries[0] << "/" << shape.keys[0] << " K "
                                    << shape.key_dim << " V " << shape.value_dim << " heads "
                                    << shape.num_heads << ":" << shape.num_kv_heads);
  Attention attention(shape);
  std::vector<float> log_sum;
  TestRows out = attention.forward(&log_sum);
  const int64_t out_width = shape.num_heads * shape.value_dim;
  const TestRows dout = TestRows::uniform(attention.query_rows(), out_width, 77);
  TestRows dq(attention.query_rows(), shape.num_heads * shape.key_dim);
  TestRows dkv(attention.key_rows(), attention.kv_matrix().dim());
  KeyRows<float> dk, dv;
  dk.shared = {dkv.data(), dkv.stride(), shape.key_dim};
  dv.shared = {dkv.data() + attention.v_offset(), dkv.stride(), shape.value_dim};
  Arena arena;
  softmax_backward(attention.problem(), attention.q, attention.k, attention.v,
                   attention.heads_of(out, shape.value_dim), log_sum.data(),
                   {dout.data(), dout.stride(), shape.value_dim},
                   attention.heads_of(dq, shape.key_dim), dk, dv, arena);
  EXPECT_TRUE(dq.padding_is_intact());
  EXPECT_TRUE(dkv.padding_is_intact());

  DoubleAttention reference(attention);
  std::vector<double> weights;
  for (int64_t r = 0; r < dout.rows(); ++r) {
    weights.insert(weights.end(), dout.row(r), dout.row(r) + out_width);
  }
  // A gradient sums over up to `terms` queries or keys, each term of size |do||v| ≤ value_dim.
  const int64_t longest = std::max(*std::max_element(shape.queries.begin(), shape.queries.end()),
                                   *std::max_element(shape.keys.begin(), shape.keys.end()));
  const double terms = static_cast<double>(longest * shape.num_heads / shape.num_kv_heads);
  const double bound = output_tolerance(shape) *
                           (std::sqrt(terms) + std::sqrt(static_cast<double>(shape.value_dim))) +
                       1e-8;  // of the differences
  const auto compare = [&](std::vector<double>& values, const TestRows& gradient) {
    constexpr double kStep = 1e-5;
    for (size_t e = 0; e < values.size(); e += static_cast<size_t>(stride)) {
      const double value = values[e];
      if (std::isnan(value)) continue;  // padding
      values[e] = value + kStep;
      const double above = reference.loss(weights);
      values[e] = value - kStep;
      const double below = reference.loss(weights);
      values[e] = value;
      const int64_t row = static_cast<int64_t>(e) / gradient.dim();
      const int64_t column = static_cast<int64_t>(e) % gradient.dim();
      ASSERT_NEAR(gradient.row(row)[column], (above - below) / (2.0 * kStep), bound)
          << "row " << row << " column " << column;
    }
  };
  compare(reference.q, dq);
  compare(reference.kv, dkv);
}

TEST(Softmax, GradientsMatchFiniteDifferences) {
  for_each_target([] {
    for (bool causal : {true, false}) {
      check_gradients({{5, 0, 1}, {5, 2, 4}, 2, 2, 3, 4, causal}, 1);
      check_gradients({{4}, {9}, 4, 1, 5, 3, causal}, 1);
      check_gradients({{9}, {4}, 3, 1, 2, 1, causal}, 1);  // queries without keys
      check_gradients({{65}, {65}, 1, 1, 33, 17, causal, 2.0f}, 101);
      check_gradients({{70}, {130}, 3, 1, 8, 16, causal}, 101);
    }
  });
}

TEST(Softmax, GradientBitsDoNotDependOnThreads) {
  const Shape shape{{70, 1, 40}, {70, 66, 40}, 6, 3, 24, 20, true};
  Attention attention(shape);
  std::vector<float> log_sum;
  TestRows out = attention.forward(&log_sum);
  const TestRows dout = TestRows::uniform(out.rows(), out.dim(), 77);
  std::vector<TestRows> results;
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    attention.problem().pool = &pool;
    TestRows dq(attention.query_rows(), 6 * 24);
    TestRows dkv(attention.key_rows(), 3 * 44);
    KeyRows<float> dk, dv;
    dk.shared = {dkv.data(), dkv.stride(), 24};
    dv.shared = {dkv.data() + 3 * 24, dkv.stride(), 20};
    Arena arena;
    softmax_backward(attention.problem(), attention.q, attention.k, attention.v,
                     attention.heads_of(out, 20), log_sum.data(), {dout.data(), dout.stride(), 20},
                     attention.heads_of(dq, 24), dk, dv, arena);
    results.push_back(std::move(dq));
    results.push_back(std::move(dkv));
  }
  for (size_t i = 2; i < results.size(); ++i) {
    for (int64_t r = 0; r < results[i].rows(); ++r) {
      ASSERT_TRUE(results[i].same_bits(r, results[i % 2], r));
    }
  }
}

TEST(Rotary, MatchesReferenceAndInverts) {
  const int64_t begin[] = {1, 8};
  const int64_t length[] = {5, 3};
  const int64_t first_position[] = {0, 100000};
  const Sequences sequences{2, begin, length};
  for (int64_t rotary_dim : {0, 2, 6, 8}) {
    const int64_t dim = 9;
    const TestRows x = TestRows::uniform(12, 2 * dim, 5);
    TestRows rotated = x;
    rotary(sequences, first_position, 2, rotary_dim, 10000.0, false,
           {rotated.data(), rotated.stride(), dim});
    EXPECT_TRUE(rotated.padding_is_intact());
    std::vector<double> expected;
    for (int64_t r = 0; r < 12; ++r) {
      expected.insert(expected.end(), x.row(r), x.row(r) + 2 * dim);
    }
    reference::rotary(sequences, first_position, 2, rotary_dim, 10000.0, false,
                      {expected.data(), 2 * dim, dim});
    for (int64_t r = 0; r < 12; ++r) {
      for (int64_t c = 0; c < 2 * dim; ++c) {
        // Two products of numbers ≤ 1 with a rounded sine and cosine.
        ASSERT_NEAR(rotated.row(r)[c], expected[static_cast<size_t>(r * 2 * dim + c)], 4.0 * kEps);
      }
    }
    TestRows back = rotated;
    rotary(sequences, first_position, 2, rotary_dim, 10000.0, true,
           {back.data(), back.stride(), dim});
    for (int64_t r = 0; r < 12; ++r) {
      for (int64_t c = 0; c < 2 * dim; ++c) ASSERT_NEAR(back.row(r)[c], x.row(r)[c], 8.0 * kEps);
    }
    if (rotary_dim > 0) {
      EXPECT_FALSE(rotated.same_bits(2, x, 2));
    }
    EXPECT_TRUE(rotated.same_bits(0, x, 0)) << "padding rows stay";
  }
}

TEST(Rotary, ScoresDependOnDistanceOnly) {
  const int64_t begin[] = {0};
  const int64_t length[] = {1};
  const Sequences one{1, begin, length};
  const auto score = [&](int64_t query_position, int64_t key_position) {
    TestRows q = TestRows::uniform(1, 32, 1);
    TestRows k = TestRows::uniform(1, 32, 2);
    rotary(one, &query_position, 1, 32, 10000.0, false, {q.data(), 0, 0});
    rotary(one, &key_position, 1, 32, 10000.0, false, {k.data(), 0, 0});
    return std::inner_product(q.row(0), q.row(0) + 32, k.row(0), 0.0);
  };
  EXPECT_NEAR(score(7, 3), score(1007, 1003), 32.0 * 4.0 * kEps);
}

/// Every query sees an interval of its own of each of two runs: even keys, then odd keys.
struct DrawnPattern final : KeyPattern {
  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    return (problem.queries.length[sequence] + 2) / 3;
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t head, int64_t index,
                QueryBlock& block) const final {
    // Blocks of every third query.
    const int64_t blocks = num_blocks(problem, sequence);
    block.first = index;
    block.step = blocks;
    block.count = (problem.queries.length[sequence] - index + blocks - 1) / blocks;
    for (int64_t odd = 0; odd < 2; ++odd) {
      const int64_t entries = (problem.keys.length[sequence] + 1 - odd) / 2;
      KeyRun& run = block.add_run(odd, 2, entries);
      for (int64_t r = 0; r < block.count; ++r) {
        const auto [from, to] = interval(index + r * blocks, head, odd, entries);
        run.from[r] = from;
        run.to[r] = to;
      }
    }
  }
  bool same_for_all_heads() const final { return false; }

  /// Some are empty.
  static std::pair<int32_t, int32_t> interval(int64_t query, int64_t head, int64_t odd,
                                              int64_t entries) {
    const int64_t from = (query * 7 + head * 5 + odd * 11) % (entries + 1);
    const int64_t size = (query * 13 + head) % 90;
    return {static_cast<int32_t>(from), static_cast<int32_t>(std::min(entries, from + size))};
  }
  static bool sees(int64_t query, int64_t head, int64_t key, int64_t num_keys) {
    const auto [from, to] = interval(query, head, key % 2, (num_keys + 1 - key % 2) / 2);
    return key / 2 >= from && key / 2 < to;
  }
};

/// What the reference gives query `t` of sequence 0 and one head when it may see `keys` only.
std::vector<double> seen_only(Attention& attention, int64_t t, int64_t head,
                              const std::vector<int64_t>& keys) {
  const Shape& shape = attention.shape();
  const SoftmaxProblem& all = attention.problem();
  std::vector<double> q, k, v, out(static_cast<size_t>(shape.value_dim));
  const float* query = attention.q.at(attention.query_begin()[0] + t, head);
  q.assign(query, query + shape.key_dim);
  for (const int64_t key : keys) {
    const float* key_row = attention.k.at(all.keys, 0, key, 0);
    const float* value_row = attention.v.at(all.keys, 0, key, 0);
    k.insert(k.end(), key_row, key_row + shape.key_dim);
    v.insert(v.end(), value_row, value_row + shape.value_dim);
  }
  const int64_t begin = 0, one = 1, count = static_cast<int64_t>(keys.size());
  SoftmaxProblem problem = all;
  problem.queries = {1, &begin, &one};
  problem.keys = {1, &begin, &count};
  problem.num_heads = problem.num_kv_heads = 1;
  KeyRows<const double> k_rows, v_rows;
  k_rows.shared = {k.data(), shape.key_dim, shape.key_dim};
  v_rows.shared = {v.data(), shape.value_dim, shape.value_dim};
  reference::softmax_attention(problem, {q.data(), shape.key_dim, shape.key_dim}, k_rows, v_rows,
                               {out.data(), shape.value_dim, shape.value_dim});
  return out;
}

TEST(SoftmaxPattern, EachQuerySeesItsIntervalsOnly) {
  for_each_target([] {
    for (const int64_t queries : {150, 1}) {
      Attention attention({.queries = {queries},
                           .keys = {171},
                           .num_heads = 3,
                           .num_kv_heads = 1,
                           .key_dim = 7,
                           .value_dim = 19});
      const DrawnPattern pattern;
      attention.problem().pattern = &pattern;
      TestRows got = attention.forward();
      for (int64_t t = 0; t < queries; ++t) {
        for (int64_t head = 0; head < 3; ++head) {
          std::vector<int64_t> keys;
          for (int64_t j = 0; j < 171; ++j) {
            if (DrawnPattern::sees(t, head, j, 171)) keys.push_back(j);
          }
          const std::vector<double> want = seen_only(attention, t, head, keys);
          const float* row = got.row(attention.query_begin()[0] + t) + head * 19;
          for (int64_t c = 0; c < 19; ++c) {
            ASSERT_NEAR(row[c], want[static_cast<size_t>(c)], 16 * kEps) << t << " " << head;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tarn::kernels
