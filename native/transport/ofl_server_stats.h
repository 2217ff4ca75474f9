// The server's counters. Every session thread adds to them without a lock; readers see figures that only grow.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/ofl_server.h"

namespace ofl {

// Durations in buckets of a sixteenth of a power of two: quantiles are right within about 3 %.
class Histogram {
  public:
    void add(std::chrono::nanoseconds duration) noexcept;
    [[nodiscard]] GatherStats stats() const;

    // Pure, for tests: bucket_of() of every value between both ends of a bucket is that bucket.
    [[nodiscard]] static std::size_t bucket_of(std::uint64_t ns) noexcept;
    [[nodiscard]] static double bucket_middle(std::size_t bucket) noexcept;

  private:
    static constexpr std::size_t kBuckets = 61 * 16;
    std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
    std::atomic<std::uint64_t> sum_ns_{0};
    std::atomic<std::uint64_t> max_ns_{0};
};

struct Counters {
    static constexpr std::int32_t kFirstRefusal = static_cast<std::int32_t>(Code::kRefusalIdentity);
    static constexpr std::int32_t kLastRefusal = static_cast<std::int32_t>(Code::kRefusalTransport);

    std::atomic<std::uint64_t> connections{0};
    std::atomic<std::uint64_t> opens_current{0};
    std::atomic<std::uint64_t> opens_total{0};
    std::atomic<std::uint64_t> lookups{0};
    std::atomic<std::uint64_t> rows{0};
    std::array<std::atomic<std::uint64_t>, kFirstRefusal - kLastRefusal + 1> refusals{};
    Histogram gather;

    void count_refusal(Code code) noexcept;
    [[nodiscard]] ServerStats snapshot() const;
};

// The payload of STATS_ACK: totals, no other client's address.
[[nodiscard]] std::string stats_json(const ServerStats& stats);

}  // namespace ofl
