#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "transport/ofl.h"
#include "transport/ofl_server_listen.h"

using ofl::Code;
using ofl::Endpoint;
using ofl::Scheme;

TEST_CASE("endpoint: what the documentation names is understood") {
    struct Case {
        std::string text;
        Scheme scheme;
        std::string host;
        std::uint16_t port;
        std::string local;
    };
    const std::vector<Case> cases{
        {"tcp://127.0.0.1:18610", Scheme::kTcp, "127.0.0.1", 18610, ""},
        {"tcp://10.0.0.1:1@10.0.0.2", Scheme::kTcp, "10.0.0.1", 1, "10.0.0.2"},
        {"tcp://table-host:65535", Scheme::kTcp, "table-host", 65535, ""},
        {"tcp://[fd00::1]:18610@[fd00::2]", Scheme::kTcp, "fd00::1", 18610, "fd00::2"},
        {"tcp://[fe80::1%eth0]:5@[fe80::2%eth0]", Scheme::kTcp, "fe80::1%eth0", 5, "fe80::2%eth0"},
        {"rdma://10.0.0.1:18610@10.0.0.2", Scheme::kRdma, "10.0.0.1", 18610, "10.0.0.2"},
    };
    for (const Case& expected : cases) {
        CAPTURE(expected.text);
        Endpoint endpoint;
        const ofl::Status status = ofl::parse_endpoint(expected.text, endpoint);
        REQUIRE_MESSAGE(status.ok(), status.reason);
        CHECK(endpoint.scheme == expected.scheme);
        CHECK(endpoint.host == expected.host);
        CHECK(endpoint.port == expected.port);
        CHECK(endpoint.local == expected.local);
        CHECK(endpoint.text == expected.text);
    }
}

TEST_CASE("endpoint: what is wrong is named, and the output is left alone") {
    const std::vector<std::pair<std::string, std::string>> cases{
        {"", "expected tcp://"},
        {"http://a:1", "expected tcp://"},
        {"127.0.0.1:18610", "expected tcp://"},
        {"tcp://", "host is missing"},
        {"tcp://:1", "host is missing"},
        {"tcp://a", "port is missing"},
        {"tcp://a:", "no number"},
        {"tcp://a:0", "no number"},
        {"tcp://a:65536", "no number"},
        {"tcp://a:12x", "no number"},
        {"tcp://a:-1", "no number"},
        {"tcp://a:1/", "have no place"},
        {"tcp://a b:1", "have no place"},
        {"tcp://a:1\n", "have no place"},
        {"tcp://fd00::1:18610", "needs brackets"},
        {"tcp://[fd00::1:18610", "without ']'"},
        {"tcp://[fd00::1]", "port is missing"},
        {"tcp://[10.0.0.1]:1", "brackets are for IPv6"},
        {"tcp://a:1@", "local address after '@' is missing"},
        {"tcp://a:1@name", "no IPv4 or IPv6 address"},
        {"tcp://a:1@10.0.0.2:5", "without a port"},
        {"tcp://a:1@fd00::2", "need brackets"},
        {"tcp://a:1@10.0.0.2@10.0.0.3", "without a port"},
        {"rdma://10.0.0.1:18610", "needs the local address"},
    };
    for (const auto& [text, why] : cases) {
        CAPTURE(text);
        Endpoint endpoint;
        endpoint.host = "before";
        const ofl::Status status = ofl::parse_endpoint(text, endpoint);
        CHECK(status.code == Code::kInvalid);
        CHECK_MESSAGE(status.reason.find(why) != std::string::npos, status.reason);
        CHECK(endpoint.host == "before");
    }
}

TEST_CASE("endpoint: rdma is refused with the endpoint that would work") {
    Endpoint endpoint;
    REQUIRE(ofl::parse_endpoint("rdma://10.0.0.1:18610@10.0.0.2", endpoint).ok());
    std::byte memory[ofl::kRowBytes];
    std::unique_ptr<ofl::Channel> channel;
    const ofl::Status status =
        ofl::connect(endpoint, {.end = 10, .max_rows = 1}, {memory, memory, 1}, ofl::Clock::now(), channel);
    CHECK(status.code == Code::kUnsupported);
    CHECK(status.reason.find("use tcp://10.0.0.1:18610@10.0.0.2") != std::string::npos);
    CHECK(channel == nullptr);
}

TEST_CASE("endpoint: connect refuses arguments that cannot work before it opens a socket") {
    Endpoint endpoint;
    REQUIRE(ofl::parse_endpoint("tcp://127.0.0.1:1", endpoint).ok());
    std::byte memory[ofl::kRowBytes];
    std::unique_ptr<ofl::Channel> channel;
    const auto code = [&](const ofl::OpenRequest& request, const ofl::Staging& staging) {
        return ofl::connect(endpoint, request, staging, ofl::Clock::now(), channel).code;
    };
    CHECK(code({.start = 5, .end = 5, .max_rows = 1}, {memory, memory, 1}) == Code::kInvalid);
    CHECK(code({.end = 5, .max_rows = 0}, {memory, memory, 1}) == Code::kInvalid);
    CHECK(code({.end = 5, .max_rows = 0xFFFFFFFF}, {memory, memory, 0xFFFFFFFF}) == Code::kInvalid);
    CHECK(code({.end = 5, .max_rows = 2}, {memory, memory, 1}) == Code::kInvalid);
    CHECK(code({.end = 5, .max_rows = 1}, {nullptr, memory, 1}) == Code::kInvalid);
    CHECK(code({.end = 5, .max_rows = 1}, {memory, nullptr, 1}) == Code::kInvalid);
}

TEST_CASE("endpoint: a wildcard is no address to connect to or from") {
    std::byte memory[ofl::kRowBytes];
    std::unique_ptr<ofl::Channel> channel;
    for (const std::string text : {"tcp://0.0.0.0:1", "tcp://0:1", "tcp://[::]:1", "tcp://[::ffff:0.0.0.0]:1",
                                   "tcp://*:1", "tcp://127.0.0.1:1@0.0.0.0", "tcp://[::1]:1@[::]"}) {
        CAPTURE(text);
        Endpoint endpoint;
        REQUIRE(ofl::parse_endpoint(text, endpoint).ok());
        const ofl::Status status =
            ofl::connect(endpoint, {.end = 10, .max_rows = 1}, {memory, memory, 1}, ofl::Clock::now(), channel);
        CHECK((status.code == Code::kInvalid || text == "tcp://*:1"));
        CHECK_FALSE(status.ok());
        CHECK((status.reason.find("wildcard") != std::string::npos ||
               status.reason.find("no host") != std::string::npos));
    }
}

TEST_CASE("endpoint: every code has a name of its own") {
    std::vector<std::string> names;
    for (int code = -114; code <= 0; ++code) {
        const std::string name = ofl::code_name(static_cast<Code>(code));
        if (code < -6 && code > -101) {
            CHECK(name == "unknown code");
            continue;
        }
        CHECK(std::find(names.begin(), names.end(), name) == names.end());
        names.push_back(name);
    }
}

TEST_CASE("listen address: exact addresses pass, everything else is named") {
    std::string host;
    std::uint16_t port = 1;
    REQUIRE(ofl::split_listen_address("127.0.0.1:0", host, port).ok());
    CHECK(host == "127.0.0.1");
    CHECK(port == 0);
    REQUIRE(ofl::split_listen_address("[::1]:18610", host, port).ok());
    CHECK(host == "::1");
    CHECK(port == 18610);
    for (const std::string text :
         {"", "127.0.0.1", ":1", "[]:1", "::1:1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:"}) {
        CAPTURE(text);
        CHECK(ofl::split_listen_address(text, host, port).code == Code::kInvalid);
    }
}

TEST_CASE("listen address: no spelling of 'every interface' is taken") {
    for (const std::string text : {"0.0.0.0:0", "0:0", "0.0:0", "0x0:0", "[::]:0", "[0::0]:0", "[::ffff:0.0.0.0]:0",
                                   "[::0.0.0.0]:0", "*:0", "localhost:0", "127.1:0", "0177.0.0.1:0"}) {
        CAPTURE(text);
        ofl::net::Fd fd;
        std::string bound;
        CHECK(ofl::open_listener(text, fd, bound).code == Code::kInvalid);
        CHECK_FALSE(fd.open());
    }
}

TEST_CASE("listen address: a port in use is named with the system's reason") {
    ofl::net::Fd first;
    ofl::net::Fd second;
    std::string bound;
    REQUIRE(ofl::open_listener("127.0.0.1:0", first, bound).ok());
    const ofl::Status status = ofl::open_listener(bound, second, bound);
    CHECK(status.code == Code::kUnreachable);
    CHECK(status.reason == "bind " + bound + ": Address already in use");
}
