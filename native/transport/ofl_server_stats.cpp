#include "transport/ofl_server_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

namespace ofl {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr unsigned kSubBits = 4;
constexpr std::uint64_t kSub = 1U << kSubBits;

std::string number(double value) {
    std::array<char, 64> text{};
    (void)std::snprintf(text.data(), text.size(), "%.3f", value);
    return text.data();
}

}  // namespace

std::size_t Histogram::bucket_of(std::uint64_t ns) noexcept {
    if (ns < kSub) return static_cast<std::size_t>(ns);
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - 1 - kSubBits;
    return static_cast<std::size_t>((std::uint64_t{shift} + 1) * kSub + ((ns >> shift) - kSub));
}

double Histogram::bucket_middle(std::size_t bucket) noexcept {
    if (bucket < kSub) return static_cast<double>(bucket);
    const auto shift = static_cast<int>(bucket / kSub) - 1;
    return std::ldexp(static_cast<double>(kSub + bucket % kSub) + 0.5, shift);
}

void Histogram::add(std::chrono::nanoseconds duration) noexcept {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(0, duration.count()));
    buckets_[std::min(bucket_of(ns), kBuckets - 1)].fetch_add(1, kRelaxed);
    sum_ns_.fetch_add(ns, kRelaxed);
    std::uint64_t seen = max_ns_.load(kRelaxed);
    while (seen < ns && !max_ns_.compare_exchange_weak(seen, ns, kRelaxed)) {
    }
}

GatherStats Histogram::stats() const {
    std::array<std::uint64_t, kBuckets> counts;
    GatherStats out;
    for (std::size_t i = 0; i < kBuckets; ++i) out.count += counts[i] = buckets_[i].load(kRelaxed);
    if (out.count == 0) return out;
    out.max_us = static_cast<double>(max_ns_.load(kRelaxed)) / 1000;
    out.mean_us = static_cast<double>(sum_ns_.load(kRelaxed)) / 1000 / static_cast<double>(out.count);
    const auto quantile = [&](double share) {
        const auto rank = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(out.count)));
        std::uint64_t below = 0;
        std::size_t bucket = 0;
        while (bucket + 1 < kBuckets && (below += counts[bucket]) < rank) ++bucket;
        return std::min(bucket_middle(bucket) / 1000, out.max_us);
    };
    out.p50_us = quantile(0.50);
    out.p99_us = quantile(0.99);
    return out;
}

void Counters::count_refusal(Code code) noexcept {
    const std::int32_t value = static_cast<std::int32_t>(code);
    if (value > kFirstRefusal || value < kLastRefusal) return;
    refusals[static_cast<std::size_t>(kFirstRefusal - value)].fetch_add(1, kRelaxed);
}

ServerStats Counters::snapshot() const {
    ServerStats out;
    out.connections = connections.load(kRelaxed);
    out.opens_current = opens_current.load(kRelaxed);
    out.opens_total = opens_total.load(kRelaxed);
    out.lookups = lookups.load(kRelaxed);
    out.rows = rows.load(kRelaxed);
    out.bytes = out.rows * kRowBytes;
    for (std::size_t i = 0; i < refusals.size(); ++i) {
        const std::uint64_t count = refusals[i].load(kRelaxed);
        if (count == 0) continue;
        out.refusals_total += count;
        out.refusals_by_code[kFirstRefusal - static_cast<std::int32_t>(i)] = count;
    }
    out.gather = gather.stats();
    return out;
}

std::string stats_json(const ServerStats& stats) {
    std::string by_code;
    for (const auto& [code, count] : stats.refusals_by_code) {
        by_code += (by_code.empty() ? "\"" : ",\"") + std::to_string(code) + "\":" + std::to_string(count);
    }
    const GatherStats& gather = stats.gather;
    return "{\"schema\":1,\"connections\":" + std::to_string(stats.connections) +
           ",\"opens\":{\"current\":" + std::to_string(stats.opens_current) +
           ",\"total\":" + std::to_string(stats.opens_total) + "},\"lookups\":" + std::to_string(stats.lookups) +
           ",\"rows\":" + std::to_string(stats.rows) + ",\"bytes\":" + std::to_string(stats.bytes) +
           ",\"refusals\":{\"total\":" + std::to_string(stats.refusals_total) + ",\"by_code\":{" + by_code +
           "}},\"gather_us\":{\"count\":" + std::to_string(gather.count) + ",\"p50\":" + number(gather.p50_us) +
           ",\"p99\":" + number(gather.p99_us) + ",\"mean\":" + number(gather.mean_us) +
           ",\"max\":" + number(gather.max_us) + "}}";
}

}  // namespace ofl
