#include "transport/ofl.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "transport/ofl_socket.h"
#include "transport/ofl_tcp.h"
#include "transport/ofl_wire.h"

namespace ofl {
namespace {

constexpr std::string_view kTcpPrefix = "tcp://";
constexpr std::string_view kRdmaPrefix = "rdma://";

Status invalid(std::string_view text, const std::string& why) {
    return {Code::kInvalid, "'" + std::string(text) + "': " + why};
}

// Takes HOST or [HOST] off the front of `rest`. Returns what is wrong, or an empty string.
std::string take_host(std::string_view& rest, std::string& host) {
    if (rest.starts_with('[')) {
        const std::size_t close = rest.find(']');
        if (close == std::string_view::npos) return "'[' without ']'";
        host = rest.substr(1, close - 1);
        rest.remove_prefix(close + 1);
        if (host.find(':') == std::string::npos) return "brackets are for IPv6 addresses";
    } else {
        const std::size_t end = std::min(rest.find_first_of(":@"), rest.size());
        host = rest.substr(0, end);
        rest.remove_prefix(end);
    }
    if (host.empty()) return "the host is missing";
    return {};
}

bool take_port(std::string_view text, std::uint16_t& port) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    return error == std::errc{} && end == text.data() + text.size() && port != 0;
}

std::string take_local(std::string_view text, std::string& local) {
    std::string_view rest = text;
    if (!text.starts_with('[') && std::count(text.begin(), text.end(), ':') > 1) {
        return "IPv6 addresses need brackets: [" + std::string(text) + "]";
    }
    if (std::string why = take_host(rest, local); !why.empty()) {
        return why == "the host is missing" ? "the local address after '@' is missing" : why;
    }
    if (!rest.empty()) return "only an address may follow '@', without a port";
    if (!net::is_numeric(local)) return "the local end '" + local + "' is no IPv4 or IPv6 address";
    return {};
}

}  // namespace

const char* code_name(Code code) noexcept {
    switch (code) {
        case Code::kOk:
            return "ok";
        case Code::kTimeout:
            return "timeout";
        case Code::kDisconnected:
            return "disconnected";
        case Code::kProtocol:
            return "protocol error";
        case Code::kUnreachable:
            return "unreachable";
        case Code::kInvalid:
            return "invalid argument";
        case Code::kUnsupported:
            return "unsupported";
        case Code::kRefusalIdentity:
            return "identity";
        case Code::kRefusalLayer:
            return "unknown layer";
        case Code::kRefusalRange:
            return "range";
        case Code::kRefusalFormat:
            return "row format";
        case Code::kRefusalVersion:
            return "version";
        case Code::kRefusalAuth:
            return "authentication";
        case Code::kRefusalNotReady:
            return "table not ready";
        case Code::kRefusalBusy:
            return "too many connections";
        case Code::kRefusalMalformed:
            return "malformed frame";
        case Code::kRefusalNotOpen:
            return "not open";
        case Code::kRefusalRowId:
            return "row id";
        case Code::kRefusalCount:
            return "row count";
        case Code::kRefusalSecondOpen:
            return "second OPEN";
        case Code::kRefusalTransport:
            return "transport not offered";
    }
    return "unknown code";
}

Status parse_endpoint(std::string_view text, Endpoint& out) {
    Endpoint endpoint;
    endpoint.text = text;
    std::string_view rest = text;
    if (rest.starts_with(kTcpPrefix)) {
        endpoint.scheme = Scheme::kTcp;
        rest.remove_prefix(kTcpPrefix.size());
    } else if (rest.starts_with(kRdmaPrefix)) {
        endpoint.scheme = Scheme::kRdma;
        rest.remove_prefix(kRdmaPrefix.size());
    } else {
        return invalid(text, "expected tcp://HOST:PORT[@LOCAL] or rdma://HOST:PORT@LOCAL");
    }
    const auto foreign = [](unsigned char c) { return c <= ' ' || c == 0x7F || c == '/' || c == '?' || c == '#'; };
    if (std::any_of(rest.begin(), rest.end(), foreign)) {
        return invalid(text, "blanks, '/', '?' and '#' have no place in HOST:PORT[@LOCAL]");
    }
    const std::size_t at = rest.find('@');
    std::string_view remote = rest.substr(0, at);
    if (!remote.starts_with('[') && std::count(remote.begin(), remote.end(), ':') > 1) {
        return invalid(text, "an IPv6 host needs brackets: [HOST]:PORT");
    }
    if (const std::string why = take_host(remote, endpoint.host); !why.empty()) return invalid(text, why);
    if (!remote.starts_with(':')) return invalid(text, "the port is missing: HOST:PORT");
    remote.remove_prefix(1);
    if (!take_port(remote, endpoint.port)) {
        return invalid(text, "the port '" + std::string(remote) + "' is no number from 1 to 65535");
    }
    if (at != std::string_view::npos) {
        if (const std::string why = take_local(rest.substr(at + 1), endpoint.local); !why.empty()) {
            return invalid(text, why);
        }
    } else if (endpoint.scheme == Scheme::kRdma) {
        return invalid(text, "rdma:// needs the local address, it chooses device and GID: rdma://HOST:PORT@LOCAL");
    }
    out = std::move(endpoint);
    return {};
}

Status connect(const Endpoint& endpoint, const OpenRequest& request, const Staging& staging, Deadline deadline,
               std::unique_ptr<Channel>& out) {
    if (request.start >= request.end) return {Code::kInvalid, "the row range is empty or reversed"};
    if (request.max_rows == 0 || request.max_rows > wire::kMaxRowsCeiling) {
        return {Code::kInvalid, "max_rows " + std::to_string(request.max_rows) + " is not in 1.." +
                                    std::to_string(wire::kMaxRowsCeiling)};
    }
    if (staging.weights == nullptr || staging.scales == nullptr || staging.max_rows < request.max_rows) {
        return {Code::kInvalid, "staging is smaller than the largest lookup"};
    }
    switch (endpoint.scheme) {
        case Scheme::kTcp:
            return connect_tcp(endpoint, request, staging, deadline, out);
        case Scheme::kRdma:
            break;
    }
    return {Code::kUnsupported, endpoint.text + ": this build has no RDMA backend; use tcp://" +
                                    endpoint.text.substr(std::min(kRdmaPrefix.size(), endpoint.text.size()))};
}

}  // namespace ofl
