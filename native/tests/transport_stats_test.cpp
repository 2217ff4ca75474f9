#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "transport/ofl_server_stats.h"

using ofl::Histogram;

TEST_CASE("stats: buckets grow with the value and stay within 4 percent of it") {
    std::size_t last = 0;
    for (double value = 1; value < 4e18; value *= 1.01) {
        const auto ns = static_cast<std::uint64_t>(value);
        const std::size_t bucket = Histogram::bucket_of(ns);
        REQUIRE(bucket >= last);
        last = bucket;
        const double middle = Histogram::bucket_middle(bucket);
        REQUIRE(std::abs(middle - static_cast<double>(ns)) <= 0.04 * static_cast<double>(ns));
    }
}

TEST_CASE("stats: quantiles of known durations") {
    Histogram histogram;
    CHECK(histogram.stats().count == 0);
    CHECK(histogram.stats().p99_us == 0);
    for (int i = 1; i <= 1000; ++i) histogram.add(std::chrono::microseconds(i));
    const auto stats = histogram.stats();
    CHECK(stats.count == 1000);
    CHECK(stats.p50_us == doctest::Approx(500).epsilon(0.04));
    CHECK(stats.p99_us == doctest::Approx(990).epsilon(0.04));
    CHECK(stats.mean_us == doctest::Approx(500.5));
    CHECK(stats.max_us == doctest::Approx(1000));
}

TEST_CASE("stats: one slow gather shows in max, not in p50; nonsense is kept out") {
    Histogram histogram;
    for (int i = 0; i < 99; ++i) histogram.add(std::chrono::microseconds(20));
    histogram.add(std::chrono::seconds(3));
    histogram.add(std::chrono::nanoseconds(-5));
    const auto stats = histogram.stats();
    CHECK(stats.p50_us == doctest::Approx(20).epsilon(0.04));
    CHECK(stats.max_us == doctest::Approx(3e6));
    CHECK(stats.count == 101);
}

TEST_CASE("stats: refusals are counted by code, and only refusals") {
    ofl::Counters counters;
    counters.count_refusal(ofl::Code::kRefusalIdentity);
    counters.count_refusal(ofl::Code::kRefusalTransport);
    counters.count_refusal(ofl::Code::kRefusalTransport);
    counters.count_refusal(ofl::Code::kTimeout);
    counters.count_refusal(static_cast<ofl::Code>(-115));
    const auto stats = counters.snapshot();
    CHECK(stats.refusals_total == 3);
    CHECK(stats.refusals_by_code == std::map<std::int32_t, std::uint64_t>{{-101, 1}, {-114, 2}});
    const auto json = nlohmann::json::parse(ofl::stats_json(stats));
    CHECK(json["refusals"]["total"] == 3);
    CHECK(json["refusals"]["by_code"]["-114"] == 2);
}
