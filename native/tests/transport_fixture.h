// What the transport tests share: rows that follow from their ids, a server on loopback, and a client that may
// misbehave.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/ofl.h"
#include "transport/ofl_server.h"
#include "transport/ofl_socket.h"
#include "transport/ofl_wire.h"

namespace transport_test {

using ofl::Clock;
using ofl::Code;
namespace wire = ofl::wire;
using std::chrono::milliseconds;

inline constexpr std::uint64_t kTableRows = 1'000'000;
inline constexpr std::uint32_t kLayer = 14;

[[nodiscard]] ofl::Identity identity();
[[nodiscard]] std::byte weight_of(std::uint32_t id, std::size_t at);
[[nodiscard]] std::byte scale_of(std::uint32_t id, std::size_t at);

class FakeRows final : public ofl::RowSource {
  public:
    ofl::Status admit(const ofl::OpenRequest& request, std::uint64_t& table_rows) override;
    void gather(std::uint32_t layer, std::span<const std::uint32_t> ids, std::byte* weights,
                std::byte* scales) override;

    std::atomic<bool> ready{true};
    std::atomic<std::uint64_t> gathers{0};
    std::atomic<bool> throws{false};
};

// A staging area filled with a pattern that no row has.
struct Planes {
    explicit Planes(std::uint32_t max_rows);
    [[nodiscard]] ofl::Staging staging();
    [[nodiscard]] bool holds(std::span<const std::uint32_t> ids) const;
    [[nodiscard]] bool untouched() const;
    void wipe();

    std::vector<std::byte> weights;
    std::vector<std::byte> scales;
};

[[nodiscard]] std::vector<std::uint32_t> some_ids(std::size_t count, std::uint64_t start = 0,
                                                  std::uint64_t end = kTableRows, std::uint32_t seed = 1);
[[nodiscard]] ofl::OpenRequest request_for(std::uint32_t max_rows = 4096);
[[nodiscard]] ofl::Endpoint endpoint_of(const std::string& address);
[[nodiscard]] inline ofl::Deadline in(milliseconds time) {
    return Clock::now() + time;
}
bool eventually(const std::function<bool()>& holds, milliseconds within = milliseconds(5000));
[[nodiscard]] std::size_t open_fds();
[[nodiscard]] std::size_t own_threads();

struct Running {
    explicit Running(ofl::ServerOptions options = {}, const std::string& address = "127.0.0.1:0");
    [[nodiscard]] std::string address() const { return server.listeners().front(); }
    ofl::Status connect(const ofl::OpenRequest& request, Planes& planes, std::unique_ptr<ofl::Channel>& out) const;
    // A connection that works; fails the test if there is none.
    std::unique_ptr<ofl::Channel> channel(Planes& planes, std::uint32_t max_rows = 4096) const;
    [[nodiscard]] std::uint64_t refusals(Code code) const;

    FakeRows rows;
    ofl::Server server;
};

struct Frame {
    wire::Header header;
    std::vector<std::byte> payload;
};

// Speaks frames and anything else; every wait ends.
class RawPeer {
  public:
    explicit RawPeer(ofl::net::Fd fd) : fd_(std::move(fd)) {}
    static RawPeer dial(const std::string& address);

    bool send(wire::Bytes bytes);
    bool send_frame(wire::Type type, wire::Bytes payload, std::uint64_t seq = 0, std::uint32_t flags = 0);
    bool send_lookup(std::uint64_t epoch, std::span<const std::uint32_t> ids);
    std::optional<Frame> receive_frame(milliseconds within = milliseconds(5000));
    // The connection ends without another byte.
    bool closed(milliseconds within = milliseconds(5000));
    // A REFUSAL of this code comes next.
    bool refused(Code code);
    bool hello(const wire::Hello& hello = {});
    // HELLO and OPEN, with whatever `change` does to the OPEN; no answer to OPEN is read.
    bool open(const std::function<void(wire::Open&)>& change = {});
    bool opened();  // open(), and OPEN_ACK came
    void close() { fd_.reset(); }
    void end_sending();
    void reset_on_close();
    [[nodiscard]] int fd() const { return fd_.get(); }

  private:
    ofl::net::Fd fd_;
};

}  // namespace transport_test
