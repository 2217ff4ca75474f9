// What an operating system does to both ends: signals, lack of descriptors, floods of connections, failing connects.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <thread>

#include "transport/ofl_server_listen.h"
#include "transport_fixture.h"

using namespace transport_test;

namespace {

std::string refusal_reason(RawPeer& peer) {
    const auto frame = peer.receive_frame();
    wire::Refusal refusal;
    if (!frame || frame->header.type != wire::Type::kRefusal || !wire::decode_refusal(frame->payload, refusal).ok()) {
        return {};
    }
    return std::string(refusal.reason);
}

double process_cpu_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Leaves room for exactly `room` more descriptors while it lives.
class FewDescriptors {
  public:
    explicit FewDescriptors(unsigned room) {
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
        std::vector<ofl::net::Fd> free;
        for (unsigned i = 0; i <= room; ++i) free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        rlimit now = before_;
        now.rlim_cur = static_cast<rlim_t>(free.back().get());
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
    }
    ~FewDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;

  private:
    rlimit before_{};
};

}  // namespace

TEST_CASE("refusal: reasons name what was asked and what is served") {
    Running running({.max_rows = 100});
    struct Case {
        std::string asked, served;
        std::function<bool(RawPeer&)> act;
    };
    const auto opening = [](std::function<void(wire::Open&)> change) {
        return [change = std::move(change)](RawPeer& peer) { return peer.open(change); };
    };
    const auto header = [](const wire::Header& what) {
        return [what](RawPeer& peer) {
            std::array<std::byte, wire::kHeaderBytes> bytes;
            wire::encode_header(what, bytes);
            return peer.send(bytes);
        };
    };
    const auto looking_up = [](std::vector<std::uint32_t> ids) {
        return [ids = std::move(ids)](RawPeer& peer) { return peer.opened() && peer.send_lookup(1, ids); };
    };
    const std::vector<Case> cases{
        {"272 bytes of format 3", "264 bytes of format 1", opening([](wire::Open& open) {
             open.row_bytes = 272;
             open.format = 3;
         })},
        {"asks for 1", "transport 0", opening([](wire::Open& open) { open.transport = 1; })},
        {"5 to 9", "version 1", [](RawPeer& peer) { return peer.hello({.min_version = 5, .max_version = 9}); }},
        {"version: 7", "speaks 1", header({.version = 7, .type = wire::Type::kHello, .length = 40})},
        {"4088 bytes", "up to 408 bytes", header({.type = wire::Type::kLookup, .length = 4088})},
        // More than this connection takes, less than the server's frames may hold: so the count is read.
        {"51 rows", "1 to 50",
         [](RawPeer& peer) {
             return peer.open([](wire::Open& open) { open.max_rows = 50; }) && peer.receive_frame() &&
                    peer.send_lookup(1, std::vector<std::uint32_t>(51));
         }},
        {"row id 1000000", "[0, 1000000)", looking_up({5, 1000000})},
    };
    for (const Case& wrong : cases) {
        CAPTURE(wrong.asked);
        auto peer = RawPeer::dial(running.address());
        REQUIRE(wrong.act(peer));
        const std::string reason = refusal_reason(peer);
        CHECK_MESSAGE(reason.find(wrong.asked) != std::string::npos, reason);
        CHECK_MESSAGE(reason.find(wrong.served) != std::string::npos, reason);
    }
}

TEST_CASE("robust: signals interrupt neither side") {
    Running running;
    struct sigaction quiet{};
    struct sigaction before{};
    quiet.sa_handler = [](int) {};  // and no SA_RESTART: every call may return EINTR
    REQUIRE(::sigaction(SIGUSR1, &quiet, &before) == 0);
    std::atomic<bool> done{false};
    int wrong = 0;
    std::thread reader([&] {
        Planes planes(20000);
        for (std::uint32_t round = 1; round <= 10; ++round) {
            std::unique_ptr<ofl::Channel> channel;
            if (!running.connect(request_for(20000), planes, channel).ok()) ++wrong;
            const auto ids = some_ids(20000, 0, kTableRows, round);
            if (!channel || !channel->lookup(round, ids, in(milliseconds(20000))).ok() || !planes.holds(ids)) ++wrong;
        }
        done = true;
    });
    const auto reader_thread = reader.native_handle();
    while (!done) {
        (void)::kill(::getpid(), SIGUSR1);  // to any thread, the server's among them
        (void)::pthread_kill(reader_thread, SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    reader.join();
    REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
    CHECK(wrong == 0);
}

TEST_CASE("robust: out of descriptors the server waits without spinning, then serves") {
    Running running;
    std::optional<RawPeer> peer;
    {
        const FewDescriptors none(1);
        peer.emplace(RawPeer::dial(running.address()));  // takes the last one; the server has none for its end
        const double before = process_cpu_seconds();
        std::this_thread::sleep_for(milliseconds(400));
        CHECK(process_cpu_seconds() - before < 0.1);
        CHECK(running.server.stats().connections == 0);
    }
    CHECK(peer->opened());
}

TEST_CASE("robust: stop ends a server that is being flooded with connections") {
    auto running = std::make_unique<Running>();
    ofl::net::Address address;
    const ofl::Endpoint endpoint = endpoint_of(running->address());
    REQUIRE(ofl::net::numeric_address(endpoint.host, endpoint.port, address).ok());
    std::atomic<bool> done{false};
    std::vector<std::thread> flood;
    for (int i = 0; i < 3; ++i) {
        flood.emplace_back([&] {
            while (!done) {
                const ofl::net::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
                (void)::connect(fd.get(), address.get(), address.length);
            }
        });
    }
    std::this_thread::sleep_for(milliseconds(200));
    const auto before = Clock::now();
    running->server.stop();
    CHECK(Clock::now() - before < milliseconds(1500));
    done = true;
    for (std::thread& thread : flood) thread.join();
}

TEST_CASE("robust: a connect that fails leaves no descriptor, whatever the reason") {
    Running running({.key = "secret"});
    Planes planes(10);
    std::string nobody;
    ofl::net::Fd silent;
    std::string silent_address;
    {
        ofl::net::Fd gone;
        REQUIRE(ofl::open_listener("127.0.0.1:0", gone, nobody).ok());
        REQUIRE(ofl::open_listener("127.0.0.1:0", silent, silent_address).ok());
    }
    const std::size_t fds = open_fds();
    auto request = request_for(10);
    request.key = "another";
    std::unique_ptr<ofl::Channel> channel;
    for (int round = 0; round < 5; ++round) {
        for (const std::string& text :
             {running.address(), nobody, silent_address, nobody + "@192.0.2.1", nobody + "@[::1]"}) {
            ofl::Endpoint endpoint;
            REQUIRE(ofl::parse_endpoint("tcp://" + text, endpoint).ok());
            CHECK_FALSE(ofl::connect(endpoint, request, planes.staging(), in(milliseconds(20)), channel).ok());
        }
    }
    CHECK(channel == nullptr);
    CHECK(eventually([&] { return open_fds() <= fds; }));
}

TEST_CASE("hostile client: header and payload of a request share one time limit") {
    Running running({.frame_timeout = milliseconds(400)});
    auto slow = RawPeer::dial(running.address());
    REQUIRE(slow.opened());
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = wire::Type::kLookup, .length = wire::lookup_bytes(100)}, header);
    const auto before = Clock::now();
    REQUIRE(slow.send(wire::Bytes(header).first(1)));
    std::this_thread::sleep_for(milliseconds(250));
    REQUIRE(slow.send(wire::Bytes(header).subspan(1)));
    CHECK(slow.closed(milliseconds(3000)));
    CHECK(Clock::now() - before < milliseconds(600));
}
