#include "reader/stats.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "transport/ofl.h"

namespace engram_remote {

std::string counters_text(const Counters& counters) {
    const auto count = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    std::array<char, 512> text{};
    const int length = std::snprintf(
        text.data(), text.size(),
        "remote_lookups=%llu rows=%llu MB=%.3f mean_us=%.1f p50_us=%.1f max_us=%.1f fallbacks=%llu fallback_rows=%llu "
        "transport_errors=%llu refusals=%llu reconnects=%llu",
        count(counters.remote_lookups), count(counters.rows), static_cast<double>(counters.bytes) / 1e6,
        counters.mean_us, counters.p50_us, counters.max_us, count(counters.fallbacks), count(counters.fallback_rows),
        count(counters.transport_errors), count(counters.refusals), count(counters.reconnects));
    return {text.data(), static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(text.size()) - 1))};
}

void Stats::remote(std::size_t rows, double microseconds) {
    const std::lock_guard lock(mutex_);
    window_[counters_.remote_lookups % kWindow] = static_cast<float>(microseconds);
    ++counters_.remote_lookups;
    counters_.rows += rows;
    counters_.bytes += rows * ofl::kRowBytes;
    total_us_ += microseconds;
    counters_.max_us = std::max(counters_.max_us, microseconds);
}

void Stats::fallback(std::size_t rows) {
    const std::lock_guard lock(mutex_);
    ++counters_.fallbacks;
    counters_.fallback_rows += rows;
}

void Stats::transport_error() {
    const std::lock_guard lock(mutex_);
    ++counters_.transport_errors;
}

void Stats::refusal() {
    const std::lock_guard lock(mutex_);
    ++counters_.refusals;
}

void Stats::attached() {
    const std::lock_guard lock(mutex_);
    if (attaches_++ > 0) ++counters_.reconnects;
    counters_.connected = true;
}

void Stats::detached() {
    const std::lock_guard lock(mutex_);
    counters_.connected = false;
}

std::uint64_t Stats::lookups() const {
    const std::lock_guard lock(mutex_);
    return counters_.remote_lookups + counters_.fallbacks;
}

Counters Stats::read() const {
    std::vector<float> times;
    Counters result;
    {
        const std::lock_guard lock(mutex_);
        result = counters_;
        times.assign(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                                                            counters_.remote_lookups, kWindow)));
        if (result.remote_lookups > 0) result.mean_us = total_us_ / static_cast<double>(result.remote_lookups);
    }
    if (!times.empty()) {
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        result.p50_us = static_cast<double>(*middle);
    }
    return result;
}

}  // namespace engram_remote
