#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unit/serve/places.h"

namespace tarn::serve {

inline constexpr uint64_t kModel = 0x1234567890abcdef;

/// A place of the parameter's kind and a store on it; the clock is a test's own.
class StoreTest : public testing::TestWithParam<PlaceKind> {
 protected:
  void SetUp() override {
    std::string why_not;
    place_ = GetParam().make(&why_not);
    if (place_ == nullptr) GTEST_SKIP() << GetParam().name << " store NOT TESTED: " << why_not;
    options_.sync = false;
    options_.now_ms = [this] { return clock_.now(); };
    reopen();
  }

  void reopen() {
    store_.reset();
    store_ = place_->store(options_);
  }

  static SaveRequest request(std::string_view id, std::string_view payload, int64_t expected_seq,
                             int64_t fencing_token = 0) {
    SaveRequest request;
    request.id = id;
    request.payload = payload;
    request.expected_seq = expected_seq;
    request.fencing_token = fencing_token;
    request.token_count = static_cast<int64_t>(payload.size());
    request.model_fingerprint = kModel;
    return request;
  }

  /// A save that must succeed; returns the new number.
  int64_t save(std::string_view id, std::string_view payload, int64_t expected_seq,
               int64_t fencing_token = 0) {
    const auto saved = store_->save(request(id, payload, expected_seq, fencing_token));
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    return saved.ok() ? saved->seq : -1;
  }

  /// The payload of a version that must be there.
  std::string load(std::string_view id, std::optional<int64_t> seq = {}) {
    const auto record = store_->load(id, kModel, seq);
    EXPECT_TRUE(record.ok()) << record.error().to_string();
    return record.ok() ? record->payload : "nothing was loaded";
  }

  /// The error of loading a version that must not load.
  Error load_error(std::string_view id, std::optional<int64_t> seq = {}) {
    const auto record = store_->load(id, kModel, seq);
    EXPECT_FALSE(record.ok());
    return record.ok() ? Error{} : record.error();
  }

  /// Names and values of one kind of object, past the store.
  std::vector<NamedValue> objects(const std::string& prefix) {
    auto raw = place_->objects(options_);
    if (!raw.ok()) return {};
    auto rows = (*raw)->scan(prefix, prefix, 1'000'000);
    EXPECT_TRUE(rows.ok());
    return rows.ok() ? *rows : std::vector<NamedValue>();
  }

  /// Changes one object past the store.
  void tamper(const std::string& name, std::optional<std::string> value) {
    if (raw_ == nullptr) {
      auto raw = place_->objects(options_);
      ASSERT_TRUE(raw.ok());
      raw_ = std::move(*raw);
    }
    const Status status = raw_->update([&](PlanReader&) -> Result<Plan> {
      Plan plan;
      plan.commit = Change{name, std::move(value)};
      return plan;
    });
    ASSERT_TRUE(status.ok()) << status.error().to_string();
  }

  TestClock clock_;
  StoreOptions options_;
  std::unique_ptr<Place> place_;
  std::unique_ptr<SessionStore> store_;
  std::unique_ptr<Objects> raw_;
};

inline std::string kind_name(const testing::TestParamInfo<PlaceKind>& kind) {
  return kind.param.name;
}

#define TARN_FOR_EVERY_STORE(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Stores, suite, testing::ValuesIn(place_kinds()), kind_name); \
  INSTANTIATE_TEST_SUITE_P(Servers, suite, testing::ValuesIn(server_kinds()), kind_name)

}  // namespace tarn::serve
