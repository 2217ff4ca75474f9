#include "transport/ofl_tcp.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "transport/ofl_auth.h"
#include "transport/ofl_socket.h"
#include "transport/ofl_wire.h"

namespace ofl {
namespace {

using net::Io;

constexpr std::chrono::seconds kDeadAfter{10};  // a silent server is given up after this, lookup or not
constexpr std::size_t kRowsHead = wire::kHeaderBytes + wire::kRowsPrefixBytes;

// A reason comes from the other side and goes into logs: one line, no control characters.
std::string printable(std::string_view text) {
    std::string line(text);
    std::replace_if(line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7F; }, '?');
    return line;
}

class TcpChannel final : public Channel {
  public:
    TcpChannel(net::Fd fd, const Endpoint& endpoint, const OpenRequest& request, const Staging& staging)
        : fd_(std::move(fd)), server_(endpoint.text), request_(request), staging_(staging) {}
    ~TcpChannel() override { retire(); }

    Status handshake(Deadline deadline);

    Status lookup(std::uint64_t epoch, std::span<const std::uint32_t> ids, Deadline deadline) override;
    void retire() noexcept override;
    [[nodiscard]] int liveness_fd() const noexcept override { return fd_.get(); }
    [[nodiscard]] const ChannelInfo& info() const noexcept override { return info_; }

  private:
    Status check_ids(std::span<const std::uint32_t> ids) const;
    Status receive_rows(std::uint64_t epoch, std::uint32_t wanted, Deadline deadline);
    // Reads on to the end of a frame whose first bytes (header included) are in `head`.
    Status refusal(const wire::Header& header, wire::Bytes head, Deadline deadline);
    Status send(std::span<iovec> parts, Deadline deadline, const char* what);
    template <std::size_t N>
    Status ask(wire::Type type, const std::array<std::byte, N>& payload, Deadline deadline);
    Status answer(wire::Type type, std::span<std::byte> payload, Deadline deadline);

    // Closing the socket is the fence: nothing but this thread's receive calls writes to staging.
    Status fail(Code code, const std::string& what) {
        fd_.reset();
        return {code, server_ + ": " + what};
    }
    Status fail(Io io, const std::string& during);

    net::Fd fd_;
    std::string server_;
    OpenRequest request_;
    Staging staging_;
    ChannelInfo info_;
    std::uint32_t chunk_rows_ = 0;
};

Status TcpChannel::fail(Io io, const std::string& during) {
    const int error = errno;
    switch (io) {
        case Io::kDeadline:
            return fail(Code::kTimeout, "no answer in time, " + during);
        case Io::kFailed:
            return fail(Code::kDisconnected, net::errno_text(error) + ", " + during);
        case Io::kDone:
        case Io::kStopped:
        case Io::kClosed:
            break;
    }
    return fail(Code::kDisconnected, "the server closed the connection, " + during);
}

Status TcpChannel::send(std::span<iovec> parts, Deadline deadline, const char* what) {
    const Io io = net::send_all(fd_.get(), parts, {.deadline = deadline});
    // A server that refuses and closes may be faster than our frame: its reason is still there to read.
    if (io == Io::kFailed && (errno == EPIPE || errno == ECONNRESET)) return {};
    return io == Io::kDone ? Status{} : fail(io, std::string("sending ") + what);
}

template <std::size_t N>
Status TcpChannel::ask(wire::Type type, const std::array<std::byte, N>& payload, Deadline deadline) {
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = type, .length = N}, header);
    std::array<iovec, 2> parts{net::part(std::span<const std::byte>(header)),
                               net::part(std::span<const std::byte>(payload))};
    return send(parts, deadline, wire::type_name(type));
}

Status TcpChannel::answer(wire::Type type, std::span<std::byte> payload, Deadline deadline) {
    const std::string during = std::string("waiting for ") + wire::type_name(type);
    std::array<std::byte, wire::kHeaderBytes> head;
    std::array<iovec, 1> parts{net::part(std::span<std::byte>(head))};
    std::size_t got = 0;
    Io io = net::receive(fd_.get(), parts, head.size(), {.deadline = deadline}, got);
    if (io != Io::kDone) return fail(io, during);
    wire::Header header;
    if (const auto verdict = wire::decode_header(head, header); !verdict.ok()) {
        return fail(Code::kProtocol, verdict.why + (", " + during));
    }
    if (const auto verdict = wire::check_reply(header, 1); !verdict.ok()) {
        return fail(Code::kProtocol, verdict.why + (", " + during));
    }
    if (header.type == wire::Type::kRefusal) return refusal(header, head, deadline);
    if (header.type == wire::Type::kClose) return fail(Code::kDisconnected, "the server ended the session, " + during);
    if (header.type != type || header.seq != 0) {
        return fail(Code::kProtocol, std::string("unexpected ") + wire::type_name(header.type) + ", " + during);
    }
    parts = {net::part(payload)};
    io = net::receive(fd_.get(), parts, payload.size(), {.deadline = deadline}, got);
    if (io != Io::kDone) return fail(io, during);
    return {};
}

Status TcpChannel::refusal(const wire::Header& header, wire::Bytes head, Deadline deadline) {
    std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> payload;
    const wire::Bytes begun = head.subspan(wire::kHeaderBytes);
    std::copy(begun.begin(), begun.end(), payload.begin());
    const std::span<std::byte> rest = std::span(payload).first(header.length).subspan(begun.size());
    std::array<iovec, 1> parts{net::part(rest)};
    std::size_t got = 0;
    const Io io = net::receive(fd_.get(), parts, rest.size(), {.deadline = deadline}, got);
    if (io != Io::kDone) return fail(io, "inside a refusal");
    wire::Refusal said;
    if (const auto verdict = wire::decode_refusal(wire::Bytes(payload).first(header.length), said); !verdict.ok()) {
        return fail(Code::kProtocol, verdict.why);
    }
    // These two concern one lookup; every other refusal ends the connection.
    const bool goes_on = said.code == Code::kRefusalRowId || said.code == Code::kRefusalCount;
    if (!goes_on || info_.session == 0) fd_.reset();
    return {said.code, printable(said.reason)};
}

Status TcpChannel::handshake(Deadline deadline) {
    wire::Hello hello;
    if (!auth::random_bytes(hello.nonce)) return fail(Code::kDisconnected, "the kernel gives no random bytes");
    std::array<std::byte, wire::kHelloBytes> hello_bytes;
    wire::encode_hello(hello, hello_bytes);
    if (Status status = ask(wire::Type::kHello, hello_bytes, deadline); !status.ok()) return status;

    std::array<std::byte, wire::kHelloAckBytes> hello_ack_bytes;
    if (Status status = answer(wire::Type::kHelloAck, hello_ack_bytes, deadline); !status.ok()) return status;
    wire::HelloAck hello_ack;
    if (const auto verdict = wire::decode_hello_ack(hello_ack_bytes, hello_ack); !verdict.ok()) {
        return fail(Code::kProtocol, verdict.why);
    }
    if (hello_ack.version != wire::kVersion) return fail(Code::kProtocol, "the server chose a version not offered");
    const bool keyed = !request_.key.empty();
    if (keyed && !hello_ack.auth_required) {
        return fail(Code::kProtocol,
                    "this side has a shared key and the server has none: give the server its --key-file");
    }

    wire::Open open{.layer = request_.layer,
                    .start = request_.start,
                    .end = request_.end,
                    .identity = request_.identity,
                    .max_rows = request_.max_rows,
                    .generation = request_.generation};
    std::array<std::byte, wire::kOpenBytes> open_bytes;
    wire::encode_open(open, open_bytes);
    if (keyed) {
        const wire::Bytes message = wire::Bytes(open_bytes).first(wire::kOpenBytes - wire::kMacBytes);
        open.mac = auth::handshake_mac(request_.key, hello.nonce, hello_ack.nonce, "open", message);
        wire::encode_open(open, open_bytes);
    }
    if (Status status = ask(wire::Type::kOpen, open_bytes, deadline); !status.ok()) return status;

    std::array<std::byte, wire::kOpenAckBytes> ack_bytes;
    if (Status status = answer(wire::Type::kOpenAck, ack_bytes, deadline); !status.ok()) return status;
    wire::OpenAck ack;
    if (const auto verdict = wire::decode_open_ack(ack_bytes, ack); !verdict.ok()) {
        return fail(Code::kProtocol, verdict.why);
    }
    if (keyed) {
        const wire::Bytes message = wire::Bytes(ack_bytes).first(wire::kOpenAckBytes - wire::kMacBytes);
        if (!auth::equal(ack.mac, auth::handshake_mac(request_.key, hello.nonce, hello_ack.nonce, "ack", message))) {
            return fail(Code::kProtocol, "the server could not prove that it holds the shared key");
        }
    }
    if (ack.identity != request_.identity) return fail(Code::kProtocol, "the server opened another identity");
    if (ack.table_rows < request_.end) return fail(Code::kProtocol, "the server's table ends before the opened range");
    if (ack.session == 0) return fail(Code::kProtocol, "the server gave no session number");
    chunk_rows_ = ack.chunk_rows;
    info_ = {.mode = "tcp, direct placement",
             .local = net::address_text(net::local_address(fd_.get())),
             .peer = net::address_text(net::peer_address(fd_.get())),
             .table_rows = ack.table_rows,
             .max_rows = std::min(ack.max_rows, request_.max_rows),
             .session = ack.session};
    return {};
}

Status TcpChannel::check_ids(std::span<const std::uint32_t> ids) const {
    if (ids.empty() || ids.size() > info_.max_rows) {
        return {Code::kInvalid, std::to_string(ids.size()) + " rows in one lookup, the channel takes 1 to " +
                                    std::to_string(info_.max_rows)};
    }
    std::uint32_t low = ids.front();
    std::uint32_t high = ids.front();
    for (const std::uint32_t id : ids) {
        low = std::min(low, id);
        high = std::max(high, id);
    }
    if (low >= request_.start && high < request_.end) return {};
    return {Code::kInvalid, "row id " + std::to_string(low < request_.start ? low : high) + " is outside [" +
                                std::to_string(request_.start) + ", " + std::to_string(request_.end) + ")"};
}

Status TcpChannel::lookup(std::uint64_t epoch, std::span<const std::uint32_t> ids, Deadline deadline) {
    if (!fd_.open()) return {Code::kDisconnected, server_ + ": the channel is retired"};
    if (Status status = check_ids(ids); !status.ok()) return status;
    const auto count = static_cast<std::uint32_t>(ids.size());
    std::array<std::byte, wire::kHeaderBytes + wire::kLookupPrefixBytes> head;
    const std::span<std::byte, head.size()> all(head);
    wire::encode_header({.type = wire::Type::kLookup, .length = wire::lookup_bytes(count), .seq = epoch},
                        all.first<wire::kHeaderBytes>());
    wire::encode_lookup_prefix(count, all.last<wire::kLookupPrefixBytes>());
    std::array<iovec, 2> parts{net::part(std::span<const std::byte>(head)), net::part(std::as_bytes(ids))};
    if (Status status = send(parts, deadline, "LOOKUP"); !status.ok()) return status;
    return receive_rows(epoch, count, deadline);
}

Status TcpChannel::receive_rows(std::uint64_t epoch, std::uint32_t wanted, Deadline deadline) {
    const net::Limits limits{.deadline = deadline, .spin = net::spin_time()};
    std::array<std::byte, kRowsHead> head;
    std::size_t have = 0;  // bytes of the next frame's head that came with the rows before it
    std::uint32_t due = 0;
    const auto during = [&] { return std::to_string(due) + " of " + std::to_string(wanted) + " rows received"; };
    for (;;) {
        // A CLOSE is a bare header, so no more than that may be waited for at first.
        std::size_t got = 0;
        std::array<iovec, 1> head_part{net::part(std::span(head).subspan(have))};
        if (have < wire::kHeaderBytes) {
            const Io io = net::receive(fd_.get(), head_part, wire::kHeaderBytes - have, limits, got);
            if (io != Io::kDone) return fail(io, during());
            have += got;
        }
        wire::Header header;
        auto verdict = wire::decode_header(wire::Bytes(head).first(have), header);
        if (verdict.ok()) verdict = wire::check_reply(header, chunk_rows_);
        if (!verdict.ok()) return fail(Code::kProtocol, verdict.why + (", " + during()));
        if (header.type == wire::Type::kClose)
            return fail(Code::kDisconnected, "the server ended the session, " + during());
        if (header.seq != epoch) {
            return fail(Code::kProtocol, "a frame of epoch " + std::to_string(header.seq) + " in epoch " +
                                             std::to_string(epoch) + ", " + during());
        }
        if (header.type == wire::Type::kRefusal && due == 0)
            return refusal(header, wire::Bytes(head).first(have), deadline);
        if (header.type != wire::Type::kRows) {
            return fail(Code::kProtocol, std::string("unexpected ") + wire::type_name(header.type) + ", " + during());
        }
        if (have < head.size()) {
            head_part = {net::part(std::span(head).subspan(have))};
            const Io io = net::receive(fd_.get(), head_part, head.size() - have, limits, got);
            if (io != Io::kDone) return fail(io, during());
        }
        wire::RowsPrefix rows;
        verdict = wire::decode_rows_prefix(wire::Bytes(head).subspan(wire::kHeaderBytes), header, due, wanted, rows);
        if (!verdict.ok()) return fail(Code::kProtocol, verdict.why + (", " + during()));

        // The header is known good: rows go where they belong, and the next head comes along in the same call.
        const std::size_t weight_bytes = std::size_t{rows.count} * kWeightBytes;
        const std::size_t scale_bytes = std::size_t{rows.count} * kScaleBytes;
        const bool last = rows.first + rows.count == wanted;
        std::array<iovec, 3> parts{{{staging_.weights + std::size_t{due} * kWeightBytes, weight_bytes},
                                    {staging_.scales + std::size_t{due} * kScaleBytes, scale_bytes},
                                    {head.data(), last ? 0 : head.size()}}};
        const std::size_t row_bytes = weight_bytes + scale_bytes;
        const Io io = net::receive(fd_.get(), parts, row_bytes, limits, got);
        if (io != Io::kDone) return fail(io, during());
        due += rows.count;
        if (last) return {};
        have = got - row_bytes;
    }
}

void TcpChannel::retire() noexcept {
    if (!fd_.open()) return;
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode_header({.type = wire::Type::kClose}, header);
    std::array<iovec, 1> parts{net::part(std::span<const std::byte>(header))};
    // A courtesy, so it may not wait.
    (void)net::send_all(fd_.get(), parts, {.deadline = Clock::now()});
    fd_.reset();
}

Status try_address(const net::Address& address, const Endpoint& endpoint, Deadline deadline, net::Fd& out) {
    const auto failed = [&](const char* what, int error) -> Status {
        return {Code::kUnreachable, endpoint.text + ": " + what + ": " + net::errno_text(error)};
    };
    // The kernel takes a wildcard for this very host: never what an address of a table host means.
    if (net::is_wildcard(address)) return {Code::kInvalid, endpoint.text + ": a wildcard is no address to connect to"};
    net::Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.open()) return failed("socket", errno);
    if (!endpoint.local.empty()) {
        net::Address local;
        if (Status status = net::numeric_address(endpoint.local, 0, local); !status.ok()) return status;
        if (net::is_wildcard(local)) return {Code::kInvalid, endpoint.text + ": the local end is a wildcard"};
        if (local.storage.ss_family != address.storage.ss_family) {
            return {Code::kInvalid, endpoint.text + ": the two ends are not of one address family"};
        }
        // The port is chosen at connect, so that many readers of one host do not run out of them.
        const int on = 1;
        (void)::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (::bind(fd.get(), local.get(), local.length) != 0) return failed("bind of the local end", errno);
    }
    net::tune(fd.get(), kDeadAfter);
    if (::connect(fd.get(), address.get(), address.length) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) return failed("connect", errno);
        const Io io = net::wait_io(fd.get(), POLLOUT, {.deadline = deadline});
        if (io == Io::kDeadline) return {Code::kUnreachable, endpoint.text + ": connect: no answer in time"};
        if (io != Io::kDone) return failed("poll", errno);
        int error = 0;
        socklen_t size = sizeof error;
        if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return failed("connect", errno);
        if (error != 0) return failed("connect", error);
    }
    out = std::move(fd);
    return {};
}

}  // namespace

Status connect_tcp(const Endpoint& endpoint, const OpenRequest& request, const Staging& staging, Deadline deadline,
                   std::unique_ptr<Channel>& out) {
    std::vector<net::Address> addresses;
    if (Status status = net::resolve(endpoint.host, endpoint.port, addresses); !status.ok()) {
        return {Code::kUnreachable, endpoint.text + ": " + status.reason};
    }
    net::Fd fd;
    Status status;
    for (std::size_t i = 0; i < addresses.size() && !fd.open(); ++i) {
        // An address that swallows packets must leave time for those after it.
        const auto share = (deadline - Clock::now()) / static_cast<Clock::rep>(addresses.size() - i);
        const Deadline until = i + 1 == addresses.size() ? deadline : Clock::now() + share;
        Status tried = try_address(addresses[i], endpoint, until, fd);
        // Of several reasons the network's tells more than "wrong address family".
        if (i == 0 || tried.ok() || tried.code != Code::kInvalid) status = std::move(tried);
    }
    if (!status.ok()) return status;
    return open_tcp(std::move(fd), endpoint, request, staging, deadline, out);
}

Status open_tcp(net::Fd fd, const Endpoint& endpoint, const OpenRequest& request, const Staging& staging,
                Deadline deadline, std::unique_ptr<Channel>& out) {
    auto channel = std::make_unique<TcpChannel>(std::move(fd), endpoint, request, staging);
    if (Status status = channel->handshake(deadline); !status.ok()) return status;
    out = std::move(channel);
    return {};
}

}  // namespace ofl
