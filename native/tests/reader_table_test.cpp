#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/reader_fixture.h"

namespace {

using engram_remote::milliseconds;
using engram_remote::RemoteTable;
using reader_test::Lines;
using reader_test::looks_up;
using reader_test::Shard;
using transport_test::Running;

constexpr const char* kNobody = "127.0.0.1:9";  // the discard port, where nobody listens

}  // namespace

TEST_CASE("reader table: rows come from the server") {
    const Shard shard;
    Lines lines;
    const Running running;
    for (const bool bounce : {false, true}) {
        auto options = reader_test::options(shard, running.address(), lines);
        options.required = true;
        options.bounce = bounce;
        RemoteTable table(options);
        for (std::uint32_t seed = 0; seed < 20; ++seed) REQUIRE(looks_up(table, seed));
        CHECK(table.stats().remote_lookups == 20);
        CHECK(table.stats().fallbacks == 0);
        CHECK(table.mode() == (bounce ? "tcp, bounce copy" : "tcp, direct placement"));
    }
    CHECK(lines.has("Engram table rows from the remote (layer 14)"));
}

TEST_CASE("reader table: a server that goes and comes back") {
    const Shard shard;
    Lines lines;
    auto running = std::make_unique<Running>();
    const std::string address = running->address();
    RemoteTable table(reader_test::options(shard, address, lines));
    REQUIRE(looks_up(table, 1));
    running.reset();
    for (std::uint32_t seed = 0; seed < 5; ++seed) REQUIRE(looks_up(table, seed));
    CHECK(table.stats().fallbacks == 5);
    CHECK_FALSE(table.stats().connected);
    CHECK(lines.has("fallback: layer 14 rank 0: "));
    running = std::make_unique<Running>(ofl::ServerOptions{}, address);
    REQUIRE(transport_test::eventually([&] { return table.stats().reconnects == 1; }));
    REQUIRE(looks_up(table, 9));
    CHECK(transport_test::eventually([&] {
        REQUIRE(looks_up(table, 10));
        return table.stats().remote_lookups >= 2;
    }));
}

TEST_CASE("reader table: what a broken server sends never stays in staging") {
    const Shard shard;
    Lines lines;
    ofl::ServerOptions serving;
    SUBCASE("slow") {
        serving.faults.delay_ms = 60;
    }
    SUBCASE("half a frame") {
        serving.faults.half_frame = 2;
    }
    SUBCASE("garbage") {
        serving.faults.garbage = 2;
    }
    SUBCASE("gather throws") {}
    const bool slow = serving.faults.delay_ms > 0;
    const bool throws = !slow && serving.faults.half_frame == 0 && serving.faults.garbage == 0;
    Running running(serving);
    auto options = reader_test::options(shard, running.address(), lines);
    if (slow) options.timeout = milliseconds(20);
    RemoteTable table(options);
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
        running.rows.throws = throws && seed == 3;
        const auto wanted = reader_test::ids(700, seed);
        table.enqueue(wanted);
        table.wait();
        REQUIRE(reader_test::exact(table.staging(), wanted));
        if (!slow) continue;
        // The late answer was due long ago: had it a way in, it would show.
        std::this_thread::sleep_for(milliseconds(80));
        REQUIRE(reader_test::exact(table.staging(), wanted));
    }
    const auto stats = table.stats();
    CHECK(stats.fallbacks >= 1);
    CHECK(stats.remote_lookups + stats.fallbacks == 12);
    CHECK(stats.transport_errors + stats.refusals >= 1);
    if (slow) CHECK(stats.remote_lookups == 0);
}

TEST_CASE("reader table: required means attached, or an error in time") {
    const Shard shard;
    Lines lines;
    auto options = reader_test::options(shard, kNobody, lines);
    options.required = true;
    options.required_limit = milliseconds(400);
    const auto begun = ofl::Clock::now();
    CHECK_THROWS_WITH_AS(RemoteTable{options}, doctest::Contains("Connection refused"), std::runtime_error);
    CHECK(ofl::Clock::now() - begun < milliseconds(2000));
    const Running running;
    options = reader_test::options(shard, running.address(), lines);
    options.required = true;
    options.identity[0] ^= 1;
    CHECK_THROWS_WITH_AS(RemoteTable{options}, doctest::Contains("OPEN refused by the server, status -101: "),
                         std::runtime_error);
}

TEST_CASE("reader table: not required, it boots on the local shard and attaches later") {
    const Shard shard;
    Lines lines;
    std::string address;
    {
        const Running running;  // takes a port that is free afterwards
        address = running.address();
    }
    RemoteTable table(reader_test::options(shard, address, lines));
    REQUIRE(looks_up(table, 1));
    CHECK(table.stats().fallbacks == 1);
    const Running running({}, address);
    CHECK(transport_test::eventually([&] {
        REQUIRE(looks_up(table, 2));
        return table.stats().remote_lookups > 0;
    }));
    CHECK(table.stats().reconnects == 0);
}

TEST_CASE("reader table: neither side has the rows, and the lookup fails") {
    const Shard shard;
    Lines lines;
    RemoteTable table(reader_test::options(shard, kNobody, lines));
    std::filesystem::resize_file(shard.path, Shard::kWeightAt);
    const auto wanted = reader_test::ids(10, 1);
    table.enqueue(wanted);
    CHECK_THROWS_WITH_AS(table.wait(), doctest::Contains("none from the local shard"), std::runtime_error);
}

TEST_CASE("reader table: one lookup at a time, and none after close") {
    const Shard shard;
    Lines lines;
    const Running running;
    RemoteTable table(reader_test::options(shard, running.address(), lines));
    const auto wanted = reader_test::ids(10, 1);
    CHECK_THROWS_AS(table.wait(), std::runtime_error);
    table.enqueue(wanted);
    CHECK_THROWS_AS(table.enqueue(wanted), std::runtime_error);
    table.close();
    table.wait();  // it was answered
    CHECK(reader_test::exact(table.staging(), wanted));
    CHECK_THROWS_AS(table.enqueue(wanted), std::runtime_error);
    table.close();
    CHECK(lines.has("remote_lookups=1 "));
}

TEST_CASE("reader table: opened and closed often, nothing is left") {
    const Shard shard;
    Lines lines;
    const Running running;
    {
        const RemoteTable first(reader_test::options(shard, running.address(), lines));
    }
    REQUIRE(transport_test::eventually([&] { return running.server.stats().connections == 0; }));
    const auto fds = transport_test::open_fds();
    const auto threads = transport_test::own_threads();
    for (int round = 0; round < 60; ++round) {
        RemoteTable table(reader_test::options(shard, running.address(), lines));
        if (round % 2 == 0) REQUIRE(looks_up(table, 1));
    }
    CHECK(transport_test::eventually(
        [&] { return transport_test::open_fds() <= fds && transport_test::own_threads() <= threads; }));
}
