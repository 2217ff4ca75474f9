// The server against clients that break the rules, by mistake or on purpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "transport_fixture.h"

using namespace transport_test;

namespace {

// The server still serves: what every hostile client must leave behind.
void check_serves(const Running& running) {
    Planes planes(10);
    const auto channel = running.channel(planes, 10);
    const auto ids = some_ids(10);
    const ofl::Status status = channel->lookup(1, ids, in(milliseconds(5000)));
    CHECK_MESSAGE(status.ok(), status.reason);
    CHECK(planes.holds(ids));
}

std::vector<std::byte> header_bytes(const wire::Header& header) {
    std::vector<std::byte> bytes(wire::kHeaderBytes);
    wire::encode_header(header, std::span(bytes).first<wire::kHeaderBytes>());
    return bytes;
}

// LOOKUP with a payload that says what it likes.
std::vector<std::byte> lookup_payload(std::uint32_t count, std::uint32_t reserved, std::size_t ids) {
    std::vector<std::byte> payload(wire::kLookupPrefixBytes + 4 * ids);
    const std::array<std::uint32_t, 2> words{count, reserved};
    std::copy_n(std::as_bytes(std::span(words)).begin(), 8, payload.begin());
    return payload;
}

}  // namespace

TEST_CASE("refusal: an OPEN that asks for the wrong thing is refused with its code and closed") {
    Running running;
    struct Case {
        Code code;
        std::function<void(wire::Open&)> change;
    };
    const std::vector<Case> cases{
        {Code::kRefusalIdentity, [](wire::Open& open) { open.identity[31] ^= 0x80; }},
        {Code::kRefusalLayer, [](wire::Open& open) { open.layer = 2; }},
        {Code::kRefusalRange, [](wire::Open& open) { open.start = open.end; }},
        {Code::kRefusalRange, [](wire::Open& open) { std::swap(open.start, open.end); }},
        {Code::kRefusalRange, [](wire::Open& open) { open.end = kTableRows + 1; }},
        {Code::kRefusalRange, [](wire::Open& open) { open.end = ~std::uint64_t{0}; }},
        {Code::kRefusalFormat, [](wire::Open& open) { open.row_bytes = 256; }},
        {Code::kRefusalFormat, [](wire::Open& open) { open.format = 2; }},
        {Code::kRefusalTransport, [](wire::Open& open) { open.transport = 1; }},
        {Code::kRefusalTransport, [](wire::Open& open) { open.transport = 9; }},
        {Code::kRefusalMalformed, [](wire::Open& open) { open.max_rows = 0; }},
    };
    for (const Case& wrong : cases) {
        CAPTURE(static_cast<int>(wrong.code));
        auto peer = RawPeer::dial(running.address());
        const std::uint64_t before = running.refusals(wrong.code);
        REQUIRE(peer.open(wrong.change));
        CHECK(peer.refused(wrong.code));
        CHECK(peer.closed());
        CHECK(running.refusals(wrong.code) == before + 1);
    }
    running.rows.ready = false;
    auto early = RawPeer::dial(running.address());
    REQUIRE(early.open());
    CHECK(early.refused(Code::kRefusalNotReady));
    CHECK(early.closed());
    running.rows.ready = true;
    CHECK(running.server.stats().opens_total == 0);
    CHECK(running.rows.gathers == 0);
    check_serves(running);
}

TEST_CASE("refusal: who holds no key learns nothing about the tables") {
    Running running({.key = "secret"});
    auto peer = RawPeer::dial(running.address());
    REQUIRE(peer.open([](wire::Open& open) { open.layer = 99; }));
    CHECK(peer.refused(Code::kRefusalAuth));
    CHECK(peer.closed());
    auto guess = RawPeer::dial(running.address());
    REQUIRE(guess.open([](wire::Open& open) { open.mac[0] = 1; }));
    CHECK(guess.refused(Code::kRefusalAuth));
    CHECK(guess.closed());
}

TEST_CASE("refusal: versions that do not meet") {
    Running running;
    for (const auto& [low, high] : {std::pair<std::uint16_t, std::uint16_t>{2, 7}, {0, 0}}) {
        auto peer = RawPeer::dial(running.address());
        REQUIRE(peer.hello({.min_version = low, .max_version = high}));
        CHECK(peer.refused(Code::kRefusalVersion));
        CHECK(peer.closed());
    }
    auto newer = RawPeer::dial(running.address());
    REQUIRE(newer.hello({.min_version = 1, .max_version = 9}));
    const auto ack = newer.receive_frame();
    REQUIRE(ack);
    CHECK(ack->header.type == wire::Type::kHelloAck);
    auto framed = RawPeer::dial(running.address());
    REQUIRE(framed.send(header_bytes({.version = 2, .type = wire::Type::kHello, .length = 40})));
    CHECK(framed.refused(Code::kRefusalVersion));
    CHECK(framed.closed());
}

TEST_CASE("refusal: malformed frames before and after OPEN") {
    Running running({.max_rows = 100});
    auto magic = header_bytes({.type = wire::Type::kHello, .length = 40});
    magic[0] = std::byte{'X'};
    const std::vector<std::vector<std::byte>> anywhere{
        magic,
        header_bytes({.type = static_cast<wire::Type>(0)}),
        header_bytes({.type = static_cast<wire::Type>(999)}),
        header_bytes({.type = wire::Type::kRows, .length = 272}),
        header_bytes({.type = wire::Type::kHelloAck, .length = 40}),
        header_bytes({.type = wire::Type::kHello, .length = 39}),
        header_bytes({.type = wire::Type::kOpen, .length = 0xFFFFFFFF}),
        header_bytes({.type = wire::Type::kLookup, .length = 0xFFFFFFFC}),
        header_bytes({.type = wire::Type::kLookup, .length = 8 + 4 * 101}),
        header_bytes({.type = wire::Type::kLookup, .length = 11}),
        header_bytes({.type = wire::Type::kLookup, .length = 12, .flags = 1}),
        header_bytes({.type = wire::Type::kStats, .length = 8}),
    };
    for (std::size_t i = 0; i < anywhere.size(); ++i) {
        CAPTURE(i);
        for (const bool opened : {false, true}) {
            auto peer = RawPeer::dial(running.address());
            if (opened) REQUIRE(peer.opened());
            REQUIRE(peer.send(anywhere[i]));
            CHECK(peer.refused(Code::kRefusalMalformed));
            CHECK(peer.closed());
        }
    }
    for (const auto& payload : {lookup_payload(2, 0, 1), lookup_payload(0, 0, 1), lookup_payload(1, 1, 1),
                                lookup_payload(0xFFFFFFFF, 0, 1), lookup_payload(0x40000001, 0, 1)}) {
        auto peer = RawPeer::dial(running.address());
        REQUIRE(peer.opened());
        REQUIRE(peer.send_frame(wire::Type::kLookup, payload));
        CHECK(peer.refused(Code::kRefusalMalformed));
        CHECK(peer.closed());
    }
    CHECK(running.rows.gathers == 0);
    check_serves(running);
}

TEST_CASE("refusal: frames in the wrong order") {
    Running running;
    const std::vector<std::uint32_t> one{1};
    auto lookup_first = RawPeer::dial(running.address());
    REQUIRE(lookup_first.send_lookup(1, one));
    CHECK(lookup_first.refused(Code::kRefusalNotOpen));
    CHECK(lookup_first.closed());

    for (const auto type : {wire::Type::kLookup, wire::Type::kStats}) {
        auto greeted = RawPeer::dial(running.address());
        REQUIRE(greeted.hello());
        REQUIRE(greeted.receive_frame());
        REQUIRE((type == wire::Type::kLookup ? greeted.send_lookup(1, one) : greeted.send_frame(type, {})));
        CHECK(greeted.refused(Code::kRefusalNotOpen));
        CHECK(greeted.closed());
    }
    std::array<std::byte, wire::kOpenBytes> open;
    wire::encode_open({.max_rows = 1}, open);
    auto no_hello = RawPeer::dial(running.address());
    REQUIRE(no_hello.send_frame(wire::Type::kOpen, open));
    CHECK(no_hello.refused(Code::kRefusalMalformed));
    CHECK(no_hello.closed());

    auto twice = RawPeer::dial(running.address());
    REQUIRE(twice.opened());
    REQUIRE(twice.send_frame(wire::Type::kOpen, open));
    CHECK(twice.refused(Code::kRefusalSecondOpen));
    CHECK(twice.closed());

    auto greets_again = RawPeer::dial(running.address());
    REQUIRE(greets_again.opened());
    REQUIRE(greets_again.hello());
    CHECK(greets_again.refused(Code::kRefusalMalformed));
    CHECK(greets_again.closed());

    auto leaves = RawPeer::dial(running.address());
    REQUIRE(leaves.opened());
    REQUIRE(leaves.send_frame(wire::Type::kClose, {}));
    CHECK(leaves.closed());
}

TEST_CASE("refusal: a bad lookup moves no row and leaves the connection open") {
    Running running;
    auto peer = RawPeer::dial(running.address());
    REQUIRE(peer.open([](wire::Open& open) {
        open.start = 1000;
        open.end = 2000;
        open.max_rows = 8;
    }));
    REQUIRE(peer.receive_frame());
    struct Case {
        Code code;
        std::vector<std::uint32_t> ids;
    };
    const std::vector<Case> cases{{Code::kRefusalRowId, {999}},
                                  {Code::kRefusalRowId, {1000, 1999, 2000}},
                                  {Code::kRefusalRowId, {1500, 0xFFFFFFFF}},
                                  {Code::kRefusalCount, {}},
                                  {Code::kRefusalCount, std::vector<std::uint32_t>(9, 1500)},
                                  {Code::kRefusalCount, std::vector<std::uint32_t>(5000, 1500)}};
    std::uint64_t epoch = 100;
    for (const Case& wrong : cases) {
        const std::uint64_t gathers = running.rows.gathers;
        REQUIRE(peer.send_lookup(++epoch, wrong.ids));
        const auto answer = peer.receive_frame();
        REQUIRE(answer);
        wire::Refusal refusal;
        REQUIRE(wire::decode_refusal(answer->payload, refusal).ok());
        CHECK(refusal.code == wrong.code);
        CHECK(answer->header.seq == epoch);
        CHECK(running.rows.gathers == gathers);
        REQUIRE(peer.send_lookup(++epoch, std::vector<std::uint32_t>{1000, 1999}));
        const auto rows = peer.receive_frame();
        REQUIRE(rows);
        CHECK(rows->header.type == wire::Type::kRows);
        CHECK(rows->header.seq == epoch);
        CHECK(rows->header.flags == wire::kFlagLast);
        CHECK(rows->payload.size() == 8 + 2 * 264);
        CHECK(rows->payload[8] == weight_of(1000, 0));
        CHECK(rows->payload[8 + 2 * 256 + 8] == scale_of(1999, 0));
    }
}

TEST_CASE("refusal: requests sent in one go are answered one by one, in order") {
    Running running;
    auto peer = RawPeer::dial(running.address());
    REQUIRE(peer.opened());
    std::vector<std::byte> burst;
    for (std::uint64_t epoch = 1; epoch <= 50; ++epoch) {
        const auto header = header_bytes({.type = wire::Type::kLookup, .length = 12, .seq = epoch});
        const auto payload = lookup_payload(1, 0, 1);
        burst.insert(burst.end(), header.begin(), header.end());
        burst.insert(burst.end(), payload.begin(), payload.end());
    }
    // In pieces that end anywhere.
    std::mt19937 random(3);
    for (std::size_t at = 0; at < burst.size();) {
        const std::size_t size = std::min<std::size_t>(1 + random() % 90, burst.size() - at);
        REQUIRE(peer.send(wire::Bytes(burst).subspan(at, size)));
        at += size;
    }
    for (std::uint64_t epoch = 1; epoch <= 50; ++epoch) {
        const auto frame = peer.receive_frame();
        REQUIRE(frame);
        CHECK(frame->header.seq == epoch);
        CHECK(frame->header.type == wire::Type::kRows);
    }
}

TEST_CASE("refusal: one connection too many is told so, and a freed place is given again") {
    Running running({.max_connections = 2});
    Planes planes(10);
    auto first = running.channel(planes, 10);
    const auto second = running.channel(planes, 10);
    for (int round = 0; round < 20; ++round) {
        std::unique_ptr<ofl::Channel> third;
        const ofl::Status status = running.connect(request_for(10), planes, third);
        CHECK_MESSAGE(status.code == Code::kRefusalBusy, status.reason);
        CHECK(status.reason.find("2 connections") != std::string::npos);
    }
    CHECK(running.refusals(Code::kRefusalBusy) == 20);
    first.reset();
    REQUIRE(eventually([&] { return running.server.stats().connections == 1; }));
    const auto fourth = running.channel(planes, 10);
    CHECK(fourth->lookup(1, some_ids(10), in(milliseconds(2000))).ok());
    CHECK(second->lookup(1, some_ids(10), in(milliseconds(2000))).ok());
}

TEST_CASE("hostile client: a handshake that dribbles or stays silent is cut off") {
    Running running({.handshake_timeout = milliseconds(250)});
    auto silent = RawPeer::dial(running.address());
    auto slow = RawPeer::dial(running.address());
    const auto hello = header_bytes({.type = wire::Type::kHello, .length = 40});
    const auto before = Clock::now();
    for (const std::byte byte : hello) {
        if (!slow.send(std::span(&byte, 1))) break;
        std::this_thread::sleep_for(milliseconds(20));
    }
    CHECK(silent.closed(milliseconds(2000)));
    CHECK(slow.closed(milliseconds(2000)));
    CHECK(Clock::now() - before < milliseconds(1500));
    CHECK(eventually([&] { return running.server.stats().connections == 0; }));
}

TEST_CASE("hostile client: a request that never ends is cut off, an idle connection is not") {
    Running running({.frame_timeout = milliseconds(200)});
    auto idle = RawPeer::dial(running.address());
    REQUIRE(idle.opened());
    auto slow = RawPeer::dial(running.address());
    REQUIRE(slow.opened());
    const auto lookup = header_bytes({.type = wire::Type::kLookup, .length = 8 + 400});
    for (const std::byte byte : lookup) {
        if (!slow.send(std::span(&byte, 1))) break;
        std::this_thread::sleep_for(milliseconds(20));
    }
    CHECK(slow.closed(milliseconds(2000)));
    CHECK_FALSE(idle.closed(milliseconds(1)));
    REQUIRE(idle.send_lookup(1, std::vector<std::uint32_t>{1}));
    CHECK(idle.receive_frame());
}

TEST_CASE("hostile client: one that reads nothing is dropped") {
    Running running({.send_timeout = milliseconds(300)});
    auto peer = RawPeer::dial(running.address());
    REQUIRE(peer.opened());
    const auto ids = some_ids(4096);
    for (int i = 0; i < 40 && peer.send_lookup(1, ids); ++i) {
    }
    CHECK(eventually([&] { return running.server.stats().connections == 0; }));
    check_serves(running);
}

TEST_CASE("hostile client: random bytes, before and after the handshake, never stop the server") {
    Running running({.max_rows = 256, .handshake_timeout = milliseconds(100), .frame_timeout = milliseconds(100)});
    std::mt19937 random(11);
    for (int round = 0; round < 150; ++round) {
        auto peer = RawPeer::dial(running.address());
        if (round % 3 == 1 && !peer.opened()) continue;  // the server may be out of places for a moment
        std::vector<std::byte> noise(1 + random() % 600);
        for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
        if (round % 3 == 2) {
            const auto header = header_bytes({.type = static_cast<wire::Type>(1 + random() % 10),
                                              .length = static_cast<std::uint32_t>(noise.size())});
            std::copy_n(header.begin(), std::min(header.size(), noise.size()), noise.begin());
        }
        peer.send(noise);
        if (round % 2 == 0) peer.end_sending();
    }
    REQUIRE(eventually([&] { return running.server.stats().connections == 0; }));
    check_serves(running);
}
