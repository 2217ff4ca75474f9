#include "transport/ofl_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

namespace ofl::net {
namespace {

constexpr std::chrono::microseconds kSpin{50};

struct FreeAddresses {
    void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

Status look_up(const std::string& host, std::uint16_t port, int flags, std::vector<Address>& out) {
    // getaddrinfo takes these two for "no host given", which means loopback.
    if (host.empty() || host == "*") return {Code::kInvalid, "'" + host + "' is no host"};
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    addrinfo* raw = nullptr;
    const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &raw);
    const std::unique_ptr<addrinfo, FreeAddresses> list(raw);
    if (result != 0) {
        const std::string text = result == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(result);
        return {Code::kInvalid, host + ": " + text};
    }
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
        Address address;
        if (entry->ai_addrlen > sizeof address.storage) continue;
        std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
        address.length = entry->ai_addrlen;
        out.push_back(address);
    }
    if (out.empty()) return {Code::kInvalid, host + ": no address"};
    return {};
}

void set_option(int fd, int level, int name, int value) noexcept {
    // Best effort: a socket that is no TCP socket (tests, fuzzing) works without.
    (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void consume(std::span<iovec>& parts, std::size_t bytes) noexcept {
    while (!parts.empty() && bytes >= parts.front().iov_len) {
        bytes -= parts.front().iov_len;
        parts = parts.subspan(1);
    }
    if (bytes == 0 || parts.empty()) return;
    parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + bytes;
    parts.front().iov_len -= bytes;
}

}  // namespace

void Fd::reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

std::string errno_text(int error) {
    return std::generic_category().message(error);
}

std::string host_port(const std::string& host, std::uint16_t port) {
    const bool bracket = host.find(':') != std::string::npos;
    return (bracket ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string address_text(const Address& address) {
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> service{};
    if (::getnameinfo(address.get(), address.length, host.data(), host.size(), service.data(), service.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return "unknown";
    }
    const bool bracket = std::strchr(host.data(), ':') != nullptr;
    return (bracket ? "[" + std::string(host.data()) + "]" : std::string(host.data())) + ":" + service.data();
}

bool is_wildcard(const Address& address) noexcept {
    if (address.storage.ss_family == AF_INET) {
        sockaddr_in v4{};
        std::memcpy(&v4, &address.storage, sizeof v4);
        return v4.sin_addr.s_addr == htonl(INADDR_ANY);
    }
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address.storage, sizeof v6);
    if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) return true;
    if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return false;
    const auto* tail = v6.sin6_addr.s6_addr + 12;
    return std::all_of(tail, tail + 4, [](std::uint8_t byte) { return byte == 0; });
}

bool is_numeric(const std::string& host) noexcept {
    const std::size_t scope = host.find('%');  // of a link-local address; getaddrinfo judges it
    in_addr v4{};
    in6_addr v6{};
    if (scope == std::string::npos && ::inet_pton(AF_INET, host.c_str(), &v4) == 1) return true;
    std::array<char, INET6_ADDRSTRLEN> bare{};
    const std::size_t size = std::min(scope, host.size());
    if (size >= bare.size()) return false;
    std::copy_n(host.data(), size, bare.data());
    return ::inet_pton(AF_INET6, bare.data(), &v6) == 1;
}

Status numeric_address(const std::string& host, std::uint16_t port, Address& out) {
    std::vector<Address> found;
    // getaddrinfo also takes 127.1, 0x7f000001 and 010.0.0.1, which is 8.0.0.1: too easily not what was meant.
    if (!is_numeric(host)) return {Code::kInvalid, "'" + host + "' is no numeric IPv4 or IPv6 address"};
    if (Status status = look_up(host, port, AI_NUMERICHOST, found); !status.ok()) {
        return {Code::kInvalid, "'" + host + "' is no numeric IPv4 or IPv6 address"};
    }
    out = found.front();
    return {};
}

Status resolve(const std::string& host, std::uint16_t port, std::vector<Address>& out) {
    Address numeric;
    if (numeric_address(host, port, numeric).ok()) {
        out.push_back(numeric);
        return {};
    }
    return look_up(host, port, AI_ADDRCONFIG, out);
}

Address local_address(int fd) noexcept {
    Address address;
    address.length = sizeof address.storage;
    if (::getsockname(fd, address.get(), &address.length) != 0) address.length = 0;
    return address;
}

Address peer_address(int fd) noexcept {
    Address address;
    address.length = sizeof address.storage;
    if (::getpeername(fd, address.get(), &address.length) != 0) address.length = 0;
    return address;
}

void tune(int fd, std::chrono::seconds dead_after) noexcept {
    const int seconds = static_cast<int>(dead_after.count());
    constexpr int kProbes = 3;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / (2 * kProbes)));
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

std::chrono::microseconds spin_time() noexcept {
    static const bool alone = std::thread::hardware_concurrency() < 2;
    return alone ? std::chrono::microseconds{0} : kSpin;
}

Io wait_io(int fd, short events, const Limits& limits) noexcept {
    for (;;) {
        std::array<pollfd, 2> waits{{{fd, events, 0}, {limits.stop_fd, POLLIN, 0}}};
        timespec timeout{};
        const bool forever = limits.deadline == Deadline::max();
        if (!forever) {
            const auto left = std::max(limits.deadline - Clock::now(), Clock::duration::zero());
            const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
            timeout.tv_sec = static_cast<time_t>(seconds.count());
            timeout.tv_nsec = static_cast<long>(std::chrono::nanoseconds(left - seconds).count());
        }
        const int ready = ::ppoll(waits.data(), waits.size(), forever ? nullptr : &timeout, nullptr);
        if (ready < 0) {
            if (errno == EINTR) continue;
            return Io::kFailed;
        }
        if (waits[1].revents != 0) return Io::kStopped;
        if (waits[0].revents != 0) return Io::kDone;  // an error condition too: the next call on fd tells which
        return Io::kDeadline;
    }
}

Io send_all(int fd, std::span<iovec> parts, const Limits& limits) noexcept {
    consume(parts, 0);
    while (!parts.empty()) {
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = parts.size();
        const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            consume(parts, static_cast<std::size_t>(sent));
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return Io::kFailed;
        if (const Io io = wait_io(fd, POLLOUT, limits); io != Io::kDone) return io;
    }
    return Io::kDone;
}

Io receive(int fd, std::span<iovec> parts, std::size_t at_least, const Limits& limits, std::size_t& got) noexcept {
    got = 0;
    bool expired = false;
    Deadline spin_until{};
    while (got < at_least) {
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = parts.size();
        const ssize_t bytes = ::recvmsg(fd, &message, MSG_DONTWAIT);
        if (bytes > 0) {
            got += static_cast<std::size_t>(bytes);
            consume(parts, static_cast<std::size_t>(bytes));
            spin_until = {};
            continue;
        }
        if (bytes == 0) return Io::kClosed;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return Io::kFailed;
        if (expired) return Io::kDeadline;
        const Deadline now = Clock::now();
        if (now >= limits.deadline) {
            // A thread that was off its core must not call rows late that lie in the socket: one more look.
            expired = true;
            continue;
        }
        if (spin_until == Deadline{}) spin_until = now + limits.spin;
        if (now < spin_until) continue;
        const Io io = wait_io(fd, POLLIN, limits);
        if (io == Io::kDeadline) {
            expired = true;
        } else if (io != Io::kDone) {
            return io;
        }
    }
    return Io::kDone;
}

}  // namespace ofl::net
