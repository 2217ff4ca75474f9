// Sockets for both ends of the offload link: ownership, addresses, and transfers that end by a deadline.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/ofl.h"

namespace ofl::net {

class Fd {
  public:
    Fd() noexcept = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~Fd() { reset(); }

    void reset() noexcept;
    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] bool open() const noexcept { return fd_ >= 0; }

  private:
    int fd_ = -1;
};

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
    [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
};

[[nodiscard]] std::string errno_text(int error);
// HOST:PORT, IPv6 in brackets.
[[nodiscard]] std::string host_port(const std::string& host, std::uint16_t port);
[[nodiscard]] std::string address_text(const Address& address);
[[nodiscard]] bool is_wildcard(const Address& address) noexcept;
// Four decimal numbers, or IPv6 with or without a scope.
[[nodiscard]] bool is_numeric(const std::string& host) noexcept;
// Numeric hosts only, no name service.
Status numeric_address(const std::string& host, std::uint16_t port, Address& out);
// Names too. The resolver's own timeouts apply, so a reader that must start in time is given an address.
Status resolve(const std::string& host, std::uint16_t port, std::vector<Address>& out);
[[nodiscard]] Address local_address(int fd) noexcept;
[[nodiscard]] Address peer_address(int fd) noexcept;

// No delay; and a silent death of the peer is noticed within about `dead_after`.
void tune(int fd, std::chrono::seconds dead_after) noexcept;

enum class Io : std::uint8_t {
    kDone,
    kDeadline,
    kStopped,  // stop_fd turned readable
    kClosed,   // the peer ended the stream
    kFailed,   // errno tells
};

struct Limits {
    Deadline deadline = Deadline::max();
    int stop_fd = -1;                   // readable: give up; -1: none
    std::chrono::microseconds spin{0};  // poll the socket this long before sleeping
};

// How long a transfer may spin: none where a spinning thread would keep the peer off the only core.
[[nodiscard]] std::chrono::microseconds spin_time() noexcept;

// Sleeps until `events` or an error condition shows on fd.
Io wait_io(int fd, short events, const Limits& limits) noexcept;
// Both consume `parts` as they go and never raise SIGPIPE. `got` counts in every outcome.
Io send_all(int fd, std::span<iovec> parts, const Limits& limits) noexcept;
// Fills parts until at least `at_least` bytes are there. What has arrived by the deadline is still taken.
Io receive(int fd, std::span<iovec> parts, std::size_t at_least, const Limits& limits, std::size_t& got) noexcept;

[[nodiscard]] inline iovec part(std::span<std::byte> bytes) noexcept {
    return {bytes.data(), bytes.size()};
}
// For sending only: the kernel does not write through it.
[[nodiscard]] inline iovec part(std::span<const std::byte> bytes) noexcept {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace ofl::net
