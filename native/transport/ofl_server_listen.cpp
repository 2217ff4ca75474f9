#include "transport/ofl_server_listen.h"

#include <cerrno>
#include <charconv>
#include <utility>

namespace ofl {
namespace {

constexpr int kBacklog = 128;

}  // namespace

Status split_listen_address(std::string_view text, std::string& host, std::uint16_t& port) {
    const auto invalid = [&](const char* why) -> Status {
        return {Code::kInvalid, "'" + std::string(text) + "': " + why};
    };
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return invalid("expected ADDRESS:PORT");
    std::string_view name = text.substr(0, colon);
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc{} || end != digits.data() + digits.size()) {
        return invalid("the port is no number from 0 to 65535");
    }
    if (name.size() >= 2 && name.front() == '[' && name.back() == ']') {
        name = name.substr(1, name.size() - 2);
    } else if (name.find(':') != std::string_view::npos) {
        return invalid("an IPv6 address needs brackets: [ADDRESS]:PORT");
    }
    if (name.empty()) return invalid("the address is missing; name the one that readers connect to");
    host = name;
    return {};
}

Status open_listener(const std::string& address, net::Fd& out, std::string& bound) {
    std::string host;
    std::uint16_t port = 0;
    if (Status status = split_listen_address(address, host, port); !status.ok()) return status;
    net::Address local;
    if (Status status = net::numeric_address(host, port, local); !status.ok()) return status;
    if (net::is_wildcard(local)) {
        return {Code::kInvalid, "'" + address + "' means every interface; name the address of the link instead"};
    }
    const auto failed = [&](const char* what) -> Status {
        return {Code::kUnreachable, std::string(what) + " " + address + ": " + net::errno_text(errno)};
    };
    net::Fd fd(::socket(local.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.open()) return failed("socket for");
    const int on = 1;
    // A restart must not wait for the last server's connections to age out.
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return failed("SO_REUSEADDR on");
    if (local.storage.ss_family == AF_INET6 && ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) {
        return failed("IPV6_V6ONLY on");
    }
    if (::bind(fd.get(), local.get(), local.length) != 0) return failed("bind");
    if (::listen(fd.get(), kBacklog) != 0) return failed("listen on");
    bound = net::address_text(net::local_address(fd.get()));
    out = std::move(fd);
    return {};
}

}  // namespace ofl
