// The reader's channel against servers that lie, stall or die.
#include <doctest/doctest.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <random>

#include "transport_liar.h"

using namespace transport_test;

namespace {

ofl::Status connect_to(const Liar& liar, Planes& planes, std::unique_ptr<ofl::Channel>& out,
                       const std::string& key = {}, milliseconds within = milliseconds(3000)) {
    auto request = request_for(128);
    request.key = key;
    return ofl::connect(endpoint_of(liar.address()), request, planes.staging(), in(within), out);
}

// One lookup of 100 rows as epoch 7, against a server that greets well and then follows the script.
ofl::Status look_up(const Script& script, Planes& planes, milliseconds within = milliseconds(3000)) {
    const Liar liar([&](RawPeer& peer) {
        greet(peer);
        if (peer.receive_frame()) script(peer);
    });
    std::unique_ptr<ofl::Channel> channel;
    const ofl::Status opened = connect_to(liar, planes, channel);
    REQUIRE_MESSAGE(opened.ok(), opened.reason);
    const ofl::Status status = channel->lookup(7, ids(), in(within));
    if (!status.ok() && status.code != Code::kRefusalRowId && status.code != Code::kRefusalCount) {
        CHECK(channel->liveness_fd() == -1);
        CHECK(channel->lookup(8, ids(), in(milliseconds(10))).code == Code::kDisconnected);
    }
    return status;
}

}  // namespace

TEST_CASE("client: chunks of any size in pieces of any size make whole rows") {
    std::mt19937 random(5);
    for (int round = 0; round < 40; ++round) {
        Planes planes(128);
        const ofl::Status status = look_up(
            [&](RawPeer& peer) {
                std::vector<std::byte> stream;
                for (std::uint32_t first = 0; first < 100;) {
                    const auto count =
                        std::min<std::uint32_t>(1 + static_cast<std::uint32_t>(random() % 64), 100 - first);
                    const auto frame = rows_frame(7, first, part_of(first, count), first + count == 100);
                    stream.insert(stream.end(), frame.begin(), frame.end());
                    first += count;
                }
                const std::size_t largest = round % 2 == 0 ? 40 : 9000;
                for (std::size_t at = 0; at < stream.size();) {
                    const std::size_t size = std::min<std::size_t>(1 + random() % largest, stream.size() - at);
                    peer.send(wire::Bytes(stream).subspan(at, size));
                    at += size;
                }
                peer.closed();
            },
            planes);
        REQUIRE_MESSAGE(status.ok(), status.reason);
        REQUIRE(planes.holds(ids()));
    }
}

TEST_CASE("client: what breaks the protocol is named, and places no row") {
    const auto last36 = rows_frame(7, 64, part_of(64, 36), true);
    struct Case {
        std::string why;
        std::vector<std::byte> bytes;
    };
    auto oversize = rows_frame(7, 0, part_of(0, 65), false);
    auto bad_magic = rows_frame(7, 0, part_of(0, 64), false);
    bad_magic[1] = std::byte{0};
    const std::vector<Case> cases{
        {"does not begin with OFL1", std::vector<std::byte>(4000, std::byte{0x5A})},
        {"does not begin with OFL1", bad_magic},
        {"a frame of epoch 6 in epoch 7", rows_frame(6, 0, part_of(0, 64), false)},
        {"not the chunk that is due", last36},
        {"outside the agreed chunk", oversize},
        {"marked last", rows_frame(7, 0, part_of(0, 64), true)},
        {"another length than count",
         frame_bytes({.type = wire::Type::kRows, .length = wire::rows_bytes(2), .seq = 7},
                     wire::Bytes(rows_payload(0, part_of(0, 3))).first(wire::rows_bytes(2)))},
        {"unexpected STATS_ACK",
         frame_bytes({.type = wire::Type::kStatsAck, .length = 8, .seq = 7}, std::array<std::byte, 8>{})},
        {"only a client sends", frame_bytes({.type = wire::Type::kStats, .seq = 7}, {})},
        {"unknown type", frame_bytes({.type = static_cast<wire::Type>(77), .seq = 7}, {})},
        {"unknown flags", frame_bytes({.type = wire::Type::kRows, .length = 272, .flags = 2, .seq = 7}, {})},
        {"version", frame_bytes({.version = 3, .type = wire::Type::kRows, .length = 272, .seq = 7}, {})},
        {"code that is none", refusal_frame(Code::kTimeout, "?", 7)},
    };
    for (const Case& lie : cases) {
        CAPTURE(lie.why);
        Planes planes(128);
        const ofl::Status status = look_up(
            [&](RawPeer& peer) {
                peer.send(lie.bytes);
                peer.closed();
            },
            planes);
        CHECK(status.code == Code::kProtocol);
        CHECK_MESSAGE(status.reason.find(lie.why) != std::string::npos, status.reason);
        CHECK(planes.untouched());
    }
}

TEST_CASE("client: more rows than asked for never leave the staging area") {
    Planes planes(128);
    const ofl::Status status = look_up(
        [&](RawPeer& peer) {
            peer.send(rows_frame(7, 0, part_of(0, 64), false));
            peer.send(rows_frame(7, 64, part_of(0, 64), true));  // 28 rows too many
            peer.closed();
        },
        planes);
    CHECK(status.code == Code::kProtocol);
    CHECK(status.reason.find("more rows than were asked for") != std::string::npos);
    CHECK(std::all_of(planes.weights.begin() + 64 * 256, planes.weights.end(),
                      [](std::byte byte) { return byte == std::byte{0xA5}; }));
}

TEST_CASE("client: a frame cut in half by a dying server is a disconnect") {
    for (const std::size_t size : {10U, 24U, 31U, 32U, 5000U}) {
        CAPTURE(size);
        Planes planes(128);
        const ofl::Status status =
            look_up([&](RawPeer& peer) { peer.send(wire::Bytes(rows_frame(7, 0, part_of(0, 64), false)).first(size)); },
                    planes);
        CHECK(status.code == Code::kDisconnected);
    }
}

TEST_CASE("client: a server that is silent, stalls or dribbles is given up at the deadline") {
    const std::vector<Script> scripts{[](RawPeer& peer) { peer.closed(); },
                                      [](RawPeer& peer) {
                                          peer.send(wire::Bytes(rows_frame(7, 0, part_of(0, 64), false)).first(3000));
                                          peer.closed();
                                      },
                                      [](RawPeer& peer) {
                                          const auto frame = rows_frame(7, 0, part_of(0, 64), false);
                                          for (const std::byte& byte : frame) {
                                              if (!peer.send(std::span(&byte, 1)) || peer.closed(milliseconds(5)))
                                                  return;
                                          }
                                      }};
    for (const Script& script : scripts) {
        Planes planes(128);
        const auto before = Clock::now();
        const ofl::Status status = look_up(script, planes, milliseconds(100));
        CHECK_MESSAGE(status.code == Code::kTimeout, status.reason);
        CHECK(status.reason.find("rows received") != std::string::npos);
        CHECK(Clock::now() - before > milliseconds(95));
        CHECK(Clock::now() - before < milliseconds(1500));
    }
}

TEST_CASE("client: rows that come after a timeout do not reach staging") {
    std::atomic<bool> timed_out{false};
    std::atomic<bool> sent{false};
    Planes planes(128);
    const Liar liar([&](RawPeer& peer) {
        greet(peer);
        peer.receive_frame();
        eventually([&] { return timed_out.load(); });
        peer.send(rows_frame(7, 0, part_of(0, 64), false));
        peer.send(rows_frame(7, 64, part_of(64, 36), true));
        sent = true;
    });
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(connect_to(liar, planes, channel).ok());
    CHECK(channel->lookup(7, ids(), in(milliseconds(50))).code == Code::kTimeout);
    channel->retire();
    timed_out = true;
    CHECK(eventually([&] { return sent.load(); }));
    CHECK(planes.untouched());
}

TEST_CASE("client: rows that are there when the deadline has passed are taken") {
    Planes planes(128);
    const Liar liar([&](RawPeer& peer) {
        greet(peer, 128);
        peer.send(rows_frame(7, 0, ids(), true));
        peer.closed();
    });
    std::unique_ptr<ofl::Channel> channel;
    REQUIRE(connect_to(liar, planes, channel).ok());
    int queued = 0;
    const int whole = static_cast<int>(wire::kHeaderBytes + wire::rows_bytes(100));
    REQUIRE(eventually([&] { return ::ioctl(channel->liveness_fd(), FIONREAD, &queued) == 0 && queued == whole; }));
    const ofl::Status status = channel->lookup(7, ids(), Clock::now() - milliseconds(50));
    CHECK_MESSAGE(status.ok(), status.reason);
    CHECK(planes.holds(ids()));
}

TEST_CASE("client: a refused lookup leaves the channel open, any other refusal ends it") {
    for (const Code code : {Code::kRefusalRowId, Code::kRefusalCount}) {
        Planes planes(128);
        const Liar liar([&](RawPeer& peer) {
            greet(peer);
            peer.receive_frame();
            peer.send(refusal_frame(code, "not that", 7));
            peer.receive_frame();
            peer.send(rows_frame(8, 0, part_of(0, 64), false));
            peer.send(rows_frame(8, 64, part_of(64, 36), true));
            peer.closed();
        });
        std::unique_ptr<ofl::Channel> channel;
        REQUIRE(connect_to(liar, planes, channel).ok());
        const ofl::Status refused = channel->lookup(7, ids(), in(milliseconds(3000)));
        CHECK(refused.code == code);
        CHECK(refused.reason == "not that");
        CHECK(planes.untouched());
        CHECK(channel->lookup(8, ids(), in(milliseconds(3000))).ok());
        CHECK(planes.holds(ids()));
    }
    Planes planes(128);
    CHECK(look_up([](RawPeer& peer) { peer.send(refusal_frame(Code::kRefusalNotReady, "gone", 7)); }, planes).code ==
          Code::kRefusalNotReady);
    CHECK(look_up([](RawPeer& peer) { peer.send(refusal_frame(Code::kRefusalRowId, "late", 6)); }, planes).code ==
          Code::kProtocol);
    CHECK(look_up([](RawPeer& peer) { peer.send(frame_bytes({.type = wire::Type::kClose}, {})); }, planes).code ==
          Code::kDisconnected);
    const ofl::Status torn = look_up(
        [](RawPeer& peer) {
            peer.send(rows_frame(7, 0, part_of(0, 64), false));
            peer.send(refusal_frame(Code::kRefusalRowId, "in the middle", 7));
            peer.closed();
        },
        planes);
    CHECK(torn.code == Code::kProtocol);
}

TEST_CASE("client: a reason of control characters does not reach the log as such") {
    Planes planes(128);
    const ofl::Status status =
        look_up([](RawPeer& peer) { peer.send(refusal_frame(Code::kRefusalBusy, "a\nb\x1b[31m\x7f", 7)); }, planes);
    CHECK(status.code == Code::kRefusalBusy);
    CHECK(status.reason == "a?b?[31m?");
}

TEST_CASE("client: handshakes that lie are not taken") {
    const auto after_hello = [](std::function<void(wire::OpenAck&)> change) -> Script {
        return [change = std::move(change)](RawPeer& peer) {
            send_hello_ack(peer);
            auto ack = good_ack();
            change(ack);
            send_open_ack(peer, ack);
            peer.closed();
        };
    };
    struct Case {
        std::string why;
        Code code;
        Script script;
        std::string key;
    };
    const std::vector<Case> cases{
        {"closed the connection", Code::kDisconnected, [](RawPeer& peer) { peer.receive_frame(); }, ""},
        {"closed the connection", Code::kDisconnected,
         [](RawPeer& peer) {
             send_hello_ack(peer);
             peer.receive_frame();
         },
         ""},
        {"OFL1", Code::kProtocol,
         [](RawPeer& peer) {
             peer.send(std::as_bytes(std::span("HTTP/1.1 400 Bad Request\r\n\r\n")));
             peer.closed();
         },
         ""},
        {"version not offered", Code::kProtocol,
         [](RawPeer& peer) { send_hello_ack(peer, {.version = 2, .max_rows = 1}); }, ""},
        {"unexpected OPEN_ACK", Code::kProtocol, [](RawPeer& peer) { send_open_ack(peer, good_ack()); }, ""},
        {"another identity", Code::kProtocol, after_hello([](wire::OpenAck& ack) { ack.identity[0] ^= 1; }), ""},
        {"ends before", Code::kProtocol, after_hello([](wire::OpenAck& ack) { ack.table_rows = kTableRows - 1; }), ""},
        {"no session", Code::kProtocol, after_hello([](wire::OpenAck& ack) { ack.session = 0; }), ""},
        {"absurd chunk_rows", Code::kProtocol, after_hello([](wire::OpenAck& ack) { ack.chunk_rows = 5000; }), ""},
        {"server has none", Code::kProtocol, after_hello([](wire::OpenAck&) {}), "secret"},
        {"could not prove", Code::kProtocol,
         [](RawPeer& peer) {
             send_hello_ack(peer, {.auth_required = true, .max_rows = 4096});
             send_open_ack(peer, good_ack());
             peer.closed();
         },
         "secret"},
        {"full", Code::kRefusalBusy, [](RawPeer& peer) { peer.send(refusal_frame(Code::kRefusalBusy, "full", 0)); },
         ""},
    };
    for (const Case& lie : cases) {
        CAPTURE(lie.why);
        Planes planes(128);
        const Liar liar(lie.script);
        std::unique_ptr<ofl::Channel> channel;
        const ofl::Status status = connect_to(liar, planes, channel, lie.key);
        CHECK_MESSAGE(status.code == lie.code, status.reason);
        CHECK_MESSAGE(status.reason.find(lie.why) != std::string::npos, status.reason);
        CHECK(channel == nullptr);
    }
}

TEST_CASE("client: a server that accepts and says nothing is given up at the deadline") {
    Planes planes(128);
    const Liar liar([](RawPeer& peer) {
        peer.receive_frame();
        peer.closed();
    });
    std::unique_ptr<ofl::Channel> channel;
    const auto before = Clock::now();
    CHECK(connect_to(liar, planes, channel, {}, milliseconds(150)).code == Code::kTimeout);
    CHECK(Clock::now() - before < milliseconds(1500));
}

TEST_CASE("client: nobody there is unreachable, and the reason names the endpoint and the cause") {
    std::string address;
    {
        ofl::net::Fd listener;
        REQUIRE(ofl::open_listener("127.0.0.1:0", listener, address).ok());
    }
    Planes planes(128);
    std::unique_ptr<ofl::Channel> channel;
    const ofl::Status status =
        ofl::connect(endpoint_of(address), request_for(10), planes.staging(), in(milliseconds(1000)), channel);
    CHECK(status.code == Code::kUnreachable);
    CHECK(status.reason == "tcp://" + address + ": connect: Connection refused");
    ofl::Endpoint endpoint;
    REQUIRE(ofl::parse_endpoint("tcp://" + address + "@192.0.2.1", endpoint).ok());
    const ofl::Status bound =
        ofl::connect(endpoint, request_for(10), planes.staging(), in(milliseconds(1000)), channel);
    CHECK(bound.code == Code::kUnreachable);
    CHECK(bound.reason.find("bind of the local end") != std::string::npos);
}

TEST_CASE("client: a listener that never accepts more does not hold connect past its deadline") {
    ofl::net::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ofl::net::Address address;
    REQUIRE(ofl::net::numeric_address("127.0.0.1", 0, address).ok());
    REQUIRE(::bind(listener.get(), address.get(), address.length) == 0);
    REQUIRE(::listen(listener.get(), 0) == 0);
    const std::string text = ofl::net::address_text(ofl::net::local_address(listener.get()));
    std::vector<RawPeer> fillers;
    fillers.push_back(RawPeer::dial(text));
    Planes planes(128);
    for (int i = 0; i < 3; ++i) {
        std::unique_ptr<ofl::Channel> channel;
        const auto before = Clock::now();
        const ofl::Status status =
            ofl::connect(endpoint_of(text), request_for(10), planes.staging(), in(milliseconds(150)), channel);
        CHECK((status.code == Code::kUnreachable || status.code == Code::kTimeout));
        CHECK(Clock::now() - before < milliseconds(1500));
    }
}
