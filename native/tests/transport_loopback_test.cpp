#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "transport_fixture.h"

using namespace transport_test;

namespace {

double process_cpu_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void check_lookup(ofl::Channel& channel, Planes& planes, std::uint64_t epoch, std::span<const std::uint32_t> ids) {
    const ofl::Status status = channel.lookup(epoch, ids, in(milliseconds(20000)));
    REQUIRE_MESSAGE(status.ok(), status.reason);
    CHECK(planes.holds(ids));
}

}  // namespace

TEST_CASE("loopback: rows arrive byte for byte, whatever the number") {
    Running running;
    Planes planes(65536);
    const auto channel = running.channel(planes, 65536);
    CHECK(channel->info().mode == "tcp, direct placement");
    CHECK(channel->info().peer == running.address());
    CHECK(channel->info().table_rows == kTableRows);
    CHECK(channel->info().max_rows == 65536);
    std::uint64_t epoch = 0;
    std::uint64_t total = 0;
    for (const std::size_t count : {1U, 2U, 288U, 2047U, 2048U, 2049U, 4096U, 49152U, 65536U}) {
        CAPTURE(count);
        planes.wipe();
        check_lookup(*channel, planes, ++epoch, some_ids(count));
        total += count;
    }
    const auto stats = running.server.stats();
    CHECK(stats.lookups == 9);
    CHECK(stats.rows == total);
    CHECK(stats.bytes == total * 264);
    CHECK(stats.gather.count == 9);
    CHECK(stats.gather.p50_us > 0);
    CHECK(stats.gather.p99_us >= stats.gather.p50_us);
    REQUIRE(stats.sessions.size() == 1);
    CHECK(stats.sessions.front().lookups == 9);
    CHECK(stats.sessions.front().rows == total);
    CHECK(stats.sessions.front().layer == kLayer);
    CHECK(stats.sessions.front().end == kTableRows);
    CHECK(stats.sessions.front().peer == channel->info().local);
}

TEST_CASE("loopback: repeated ids, any chunk size, any epoch") {
    for (const std::uint32_t chunk_rows : {1U, 7U, 100U, 1000U, 100000U}) {
        CAPTURE(chunk_rows);
        Running running({.max_rows = 1000, .chunk_rows = chunk_rows});
        Planes planes(4096);
        const auto channel = running.channel(planes);
        CHECK(channel->info().max_rows == 1000);
        for (const std::uint64_t epoch : {~std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{77}}) {
            check_lookup(*channel, planes, epoch, some_ids(1000, 0, 40));
        }
    }
}

TEST_CASE("loopback: nothing is written past the rows that were asked for") {
    Running running;
    Planes planes(300);
    const auto channel = running.channel(planes, 300);
    const auto ids = some_ids(288);
    check_lookup(*channel, planes, 1, ids);
    CHECK(std::all_of(planes.weights.begin() + 288 * 256, planes.weights.end(),
                      [](std::byte byte) { return byte == std::byte{0xA5}; }));
    CHECK(std::all_of(planes.scales.begin() + 288 * 8, planes.scales.end(),
                      [](std::byte byte) { return byte == std::byte{0xA5}; }));
}

TEST_CASE("loopback: IPv6 and a chosen local address") {
    Running v6({}, "[::1]:0");
    Planes planes(10);
    check_lookup(*v6.channel(planes, 10), planes, 1, some_ids(10));

    Running v4;
    ofl::Endpoint endpoint;
    REQUIRE(ofl::parse_endpoint("tcp://" + v4.address() + "@127.0.0.2", endpoint).ok());
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(ofl::connect(endpoint, request_for(10), planes.staging(), in(milliseconds(5000)), channel).ok());
    CHECK(channel->info().local.starts_with("127.0.0.2:"));
    REQUIRE(ofl::parse_endpoint("tcp://" + v4.address() + "@[::1]", endpoint).ok());
    CHECK(ofl::connect(endpoint, request_for(10), planes.staging(), in(milliseconds(5000)), channel).code ==
          Code::kInvalid);
}

TEST_CASE("loopback: bad arguments are refused here and leave the channel usable") {
    Running running;
    Planes planes(100);
    auto request = request_for(100);
    request.start = 1000;
    request.end = 2000;
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(running.connect(request, planes, channel).ok());
    const auto code = [&](const std::vector<std::uint32_t>& ids) {
        return channel->lookup(1, ids, in(milliseconds(1000))).code;
    };
    CHECK(code({}) == Code::kInvalid);
    CHECK(code(std::vector<std::uint32_t>(101, 1500)) == Code::kInvalid);
    CHECK(code({1500, 999}) == Code::kInvalid);
    CHECK(code({2000, 1500}) == Code::kInvalid);
    CHECK(planes.untouched());
    CHECK(running.rows.gathers == 0);
    check_lookup(*channel, planes, 2, some_ids(100, 1000, 2000));
}

TEST_CASE("loopback: keys right, wrong, missing on either side") {
    Planes planes(10);
    Running keyed({.key = "secret"});
    Running open;
    struct Case {
        const Running& server;
        std::string key;
        Code code;
    };
    for (const auto& [server, key, code] :
         {Case{keyed, "secret", Code::kOk}, Case{keyed, "Secret", Code::kRefusalAuth},
          Case{keyed, "", Code::kRefusalAuth}, Case{open, "secret", Code::kProtocol}, Case{open, "", Code::kOk}}) {
        CAPTURE(key);
        auto request = request_for(10);
        request.key = key;
        std::unique_ptr<ofl::Channel> channel;
        const ofl::Status status = server.connect(request, planes, channel);
        CHECK_MESSAGE(status.code == code, status.reason);
        CHECK(status.ok() == (channel != nullptr));
        if (channel) check_lookup(*channel, planes, 1, some_ids(10));
    }
    CHECK(keyed.refusals(Code::kRefusalAuth) == 2);
}

TEST_CASE("loopback: refusals reach the reader with the server's words") {
    Running running;
    Planes planes(10);
    std::unique_ptr<ofl::Channel> channel;
    auto request = request_for(10);
    request.identity[3] ^= 1;
    ofl::Status status = running.connect(request, planes, channel);
    CHECK(status.code == Code::kRefusalIdentity);
    CHECK(status.reason == "another table");
    running.rows.ready = false;
    status = running.connect(request_for(10), planes, channel);
    CHECK(status.code == Code::kRefusalNotReady);
    CHECK(status.reason == "still loading");
    running.rows.ready = true;
    check_lookup(*running.channel(planes, 10), planes, 1, some_ids(10));
}

TEST_CASE("loopback: four clients at once") {
    Running running;
    std::vector<std::thread> clients;
    std::atomic<int> wrong{0};
    for (std::uint32_t client = 0; client < 4; ++client) {
        clients.emplace_back([&, client] {
            Planes planes(4096);
            std::unique_ptr<ofl::Channel> channel;
            if (!running.connect(request_for(4096), planes, channel).ok()) ++wrong;
            for (std::uint32_t round = 1; channel && round <= 20; ++round) {
                const auto ids = some_ids(1 + round * 190, 0, kTableRows, client * 1000 + round);
                if (!channel->lookup(round, ids, in(milliseconds(20000))).ok() || !planes.holds(ids)) ++wrong;
            }
        });
    }
    for (std::thread& client : clients) client.join();
    CHECK(wrong == 0);
    CHECK(running.server.stats().lookups == 80);
    CHECK(running.server.stats().opens_total == 4);
    CHECK(eventually([&] { return running.server.stats().opens_current == 0; }));
}

TEST_CASE("loopback: 10,000 connections of every kind leave no descriptor and no thread behind") {
    Running running;
    Planes planes(10);
    check_lookup(*running.channel(planes, 10), planes, 1, some_ids(10));
    // This thread, the acceptor, a sanitizer's own; or the first session's, not joined yet.
    const auto quiet = [&] { return running.server.stats().connections == 0 && own_threads() <= 3; };
    REQUIRE(eventually(quiet));
    const std::size_t fds = open_fds();
    std::size_t most_threads = 0;
    std::size_t most_fds = 0;
    const std::vector<std::byte> noise(100, std::byte{0x5A});
    for (std::uint32_t round = 0; round < 10'000; ++round) {
        if (round % 20 == 0) {
            const auto channel = running.channel(planes, 10);
            check_lookup(*channel, planes, round, some_ids(10));
            if (round % 40 == 0) channel->retire();
            most_threads = std::max(most_threads, own_threads());
            most_fds = std::max(most_fds, open_fds());
            continue;
        }
        auto peer = RawPeer::dial(running.address());
        switch (round % 4) {
            case 0:  // says nothing
                break;
            case 1:  // resets in the middle of the handshake
                peer.hello();
                peer.reset_on_close();
                break;
            case 2:  // is refused
                peer.send(noise);
                break;
            default:  // opens, and leaves without a word. Waiting for the answer also keeps us from racing ahead.
                peer.opened();
        }
    }
    CHECK(eventually([&] { return quiet() && open_fds() <= fds; }));
    CHECK(running.server.stats().opens_current == 0);
    CHECK(running.server.stats().opens_total > 500);
    CHECK(most_threads <= 3 + 64 + 8);
    CHECK(most_fds <= fds + 64 + 64 + 8);
}

TEST_CASE("loopback: a retired channel is closed for good") {
    Running running;
    Planes planes(10);
    const auto channel = running.channel(planes, 10);
    CHECK(channel->liveness_fd() >= 0);
    channel->retire();
    channel->retire();
    CHECK(channel->liveness_fd() == -1);
    CHECK(channel->lookup(1, some_ids(10), in(milliseconds(100))).code == Code::kDisconnected);
    CHECK(planes.untouched());
    CHECK(eventually([&] { return running.server.stats().connections == 0; }));
}

TEST_CASE("loopback: a stopped server is noticed, and another on the same address serves at once") {
    auto first = std::make_unique<Running>();
    const std::string address = first->address();
    Planes planes(10);
    const auto channel = first->channel(planes, 10);
    check_lookup(*channel, planes, 1, some_ids(10));
    first->server.stop();
    pollfd wait{channel->liveness_fd(), POLLIN, 0};
    CHECK(::poll(&wait, 1, 2000) == 1);
    CHECK(channel->lookup(2, some_ids(10), in(milliseconds(1000))).code == Code::kDisconnected);
    first.reset();
    Running second({}, address);
    check_lookup(*second.channel(planes, 10), planes, 1, some_ids(10));
}

TEST_CASE("loopback: stop ends idle, busy and half-open sessions within a second") {
    Running running;
    Planes idle_planes(10);
    const auto idle = running.channel(idle_planes, 10);
    auto silent = RawPeer::dial(running.address());
    auto stuck = RawPeer::dial(running.address());
    REQUIRE(stuck.opened());
    const auto ids = some_ids(4096);
    for (int i = 0; i < 40; ++i) stuck.send_lookup(1, ids);  // 40 MB that nobody reads
    std::atomic<std::uint64_t> rounds{0};
    std::thread busy([&] {
        Planes planes(288);
        std::unique_ptr<ofl::Channel> channel;
        if (!running.connect(request_for(288), planes, channel).ok()) return;
        const auto few = some_ids(288);
        while (channel->lookup(++rounds, few, in(milliseconds(5000))).ok()) {
        }
    });
    CHECK(eventually([&] { return rounds > 3 && running.server.stats().connections == 4; }));
    const auto before = Clock::now();
    running.server.stop();
    CHECK(Clock::now() - before < milliseconds(1500));
    running.server.stop();
    busy.join();
    CHECK(running.server.stats().connections == 0);
}

TEST_CASE("loopback: an open but idle connection costs no processor time") {
    Running running;
    Planes planes(10);
    const auto channel = running.channel(planes, 10);
    check_lookup(*channel, planes, 1, some_ids(10));
    const double before = process_cpu_seconds();
    std::this_thread::sleep_for(milliseconds(300));
    CHECK(process_cpu_seconds() - before < 0.03);
}

TEST_CASE("loopback: a row source that throws ends its connection only") {
    Running running;
    Planes planes(10);
    const auto first = running.channel(planes, 10);
    running.rows.throws = true;
    CHECK(first->lookup(1, some_ids(10), in(milliseconds(2000))).code == Code::kDisconnected);
    running.rows.throws = false;
    const auto second = running.channel(planes, 10);
    check_lookup(*second, planes, 1, some_ids(10));
    CHECK(eventually([&] { return running.server.stats().opens_current == 1; }));
}

TEST_CASE("loopback: STATS answers JSON with the server's counters") {
    Running running;
    auto peer = RawPeer::dial(running.address());
    REQUIRE(peer.opened());
    REQUIRE(peer.send_lookup(5, std::vector<std::uint32_t>{1, 2, 3}));
    REQUIRE(peer.receive_frame());
    REQUIRE(peer.send_lookup(6, std::vector<std::uint32_t>{}));
    REQUIRE(peer.refused(Code::kRefusalCount));
    REQUIRE(peer.send_frame(wire::Type::kStats, {}, 9));
    const auto frame = peer.receive_frame();
    REQUIRE(frame);
    CHECK(frame->header.type == wire::Type::kStatsAck);
    CHECK(frame->header.seq == 9);
    const auto* text = reinterpret_cast<const char*>(frame->payload.data());
    const auto json = nlohmann::json::parse(text, text + frame->payload.size());
    CHECK(json["schema"] == 1);
    CHECK(json["lookups"] == 1);
    CHECK(json["rows"] == 3);
    CHECK(json["bytes"] == 3 * 264);
    CHECK(json["opens"]["current"] == 1);
    CHECK(json["refusals"]["by_code"]["-112"] == 1);
    CHECK(json["gather_us"]["count"] == 1);
}

TEST_CASE("loopback: options that cannot work are refused at start") {
    FakeRows rows;
    for (const auto& options : {ofl::ServerOptions{.max_rows = 0}, ofl::ServerOptions{.max_rows = 0xFFFFFFFF},
                                ofl::ServerOptions{.max_connections = 0}, ofl::ServerOptions{.chunk_rows = 0}}) {
        ofl::Server server(options, rows);
        REQUIRE(server.listen("127.0.0.1:0").ok());
        CHECK(server.start().code == Code::kInvalid);
    }
    ofl::Server nowhere({}, rows);
    CHECK(nowhere.start().code == Code::kInvalid);
    Running running;
    CHECK(running.server.start().code == Code::kInvalid);
    CHECK(running.server.listen("127.0.0.1:0").code == Code::kInvalid);
    running.server.stop();
    CHECK(running.server.start().code == Code::kInvalid);
    CHECK(running.server.listen("127.0.0.1:0").code == Code::kInvalid);
}
