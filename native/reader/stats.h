// Counters of one table and the lines that show them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace engram_remote {

// Counts since the table was opened; times in microseconds over the remote lookups.
struct Counters {
    std::uint64_t remote_lookups = 0;
    std::uint64_t rows = 0;   // distinct rows that came over the wire
    std::uint64_t bytes = 0;  // of those rows
    double mean_us = 0;
    double p50_us = 0;  // of the last 4096
    double max_us = 0;
    std::uint64_t fallbacks = 0;      // lookups that the local shard answered
    std::uint64_t fallback_rows = 0;  // distinct rows of those
    std::uint64_t transport_errors = 0;
    std::uint64_t refusals = 0;
    std::uint64_t reconnects = 0;  // attaches after the first
    bool connected = false;
};

// "remote_lookups=.. rows=.. MB=.. ..." as the log shows them.
[[nodiscard]] std::string counters_text(const Counters& counters);

class Stats {
  public:
    void remote(std::size_t rows, double microseconds);
    void fallback(std::size_t rows);
    void transport_error();
    void refusal();
    void attached();
    void detached();
    [[nodiscard]] Counters read() const;
    // Lookups so far, however they were answered.
    [[nodiscard]] std::uint64_t lookups() const;

  private:
    static constexpr std::size_t kWindow = 4096;

    mutable std::mutex mutex_;
    Counters counters_;
    double total_us_ = 0;
    std::uint64_t attaches_ = 0;
    std::array<float, kWindow> window_{};
};

}  // namespace engram_remote
