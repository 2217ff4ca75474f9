#include "transport_fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>
#include <stdexcept>

namespace transport_test {
namespace {

constexpr std::byte kPattern{0xA5};

std::uint32_t mix(std::uint32_t id, std::size_t at) {
    std::uint32_t x = id * 2654435761U + static_cast<std::uint32_t>(at) * 40503U + 12345U;
    x ^= x >> 15;
    return x * 2246822519U;
}

std::size_t entries(const char* directory) {
    const std::filesystem::directory_iterator all(directory);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

ofl::Identity identity() {
    ofl::Identity out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(i * 5 + 1);
    return out;
}

std::byte weight_of(std::uint32_t id, std::size_t at) {
    return static_cast<std::byte>(mix(id, at) >> 24);
}
std::byte scale_of(std::uint32_t id, std::size_t at) {
    return static_cast<std::byte>(mix(id, 1000 + at) >> 24);
}

ofl::Status FakeRows::admit(const ofl::OpenRequest& request, std::uint64_t& table_rows) {
    if (!ready) return {Code::kRefusalNotReady, "still loading"};
    if (request.layer != kLayer) return {Code::kRefusalLayer, "no such layer"};
    if (request.start >= request.end || request.end > kTableRows) return {Code::kRefusalRange, "no such range"};
    if (request.identity != identity()) return {Code::kRefusalIdentity, "another table"};
    table_rows = kTableRows;
    return {};
}

void FakeRows::gather(std::uint32_t, std::span<const std::uint32_t> ids, std::byte* weights, std::byte* scales) {
    ++gathers;
    if (throws) throw std::runtime_error("the table is gone");
    for (const std::uint32_t id : ids) {
        for (std::size_t at = 0; at < ofl::kWeightBytes; ++at) *weights++ = weight_of(id, at);
        for (std::size_t at = 0; at < ofl::kScaleBytes; ++at) *scales++ = scale_of(id, at);
    }
}

Planes::Planes(std::uint32_t max_rows)
    : weights(std::size_t{max_rows} * ofl::kWeightBytes, kPattern),
      scales(std::size_t{max_rows} * ofl::kScaleBytes, kPattern) {}

ofl::Staging Planes::staging() {
    return {weights.data(), scales.data(), static_cast<std::uint32_t>(scales.size() / ofl::kScaleBytes)};
}

bool Planes::holds(std::span<const std::uint32_t> ids) const {
    const std::byte* weight = weights.data();
    const std::byte* scale = scales.data();
    for (const std::uint32_t id : ids) {
        for (std::size_t at = 0; at < ofl::kWeightBytes; ++at) {
            if (*weight++ != weight_of(id, at)) return false;
        }
        for (std::size_t at = 0; at < ofl::kScaleBytes; ++at) {
            if (*scale++ != scale_of(id, at)) return false;
        }
    }
    return true;
}

bool Planes::untouched() const {
    const auto clean = [](std::byte byte) { return byte == kPattern; };
    return std::all_of(weights.begin(), weights.end(), clean) && std::all_of(scales.begin(), scales.end(), clean);
}

void Planes::wipe() {
    std::fill(weights.begin(), weights.end(), kPattern);
    std::fill(scales.begin(), scales.end(), kPattern);
}

std::vector<std::uint32_t> some_ids(std::size_t count, std::uint64_t start, std::uint64_t end, std::uint32_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint32_t> ids(count);
    for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(start + random() % (end - start));
    ids.front() = static_cast<std::uint32_t>(start);
    ids.back() = static_cast<std::uint32_t>(end - 1);
    return ids;
}

ofl::OpenRequest request_for(std::uint32_t max_rows) {
    ofl::OpenRequest request;
    request.layer = kLayer;
    request.end = kTableRows;
    request.identity = identity();
    request.max_rows = max_rows;
    return request;
}

ofl::Endpoint endpoint_of(const std::string& address) {
    ofl::Endpoint endpoint;
    const ofl::Status status = ofl::parse_endpoint("tcp://" + address, endpoint);
    REQUIRE_MESSAGE(status.ok(), status.reason);
    return endpoint;
}

bool eventually(const std::function<bool()>& holds, milliseconds within) {
    const auto until = in(within);
    while (!holds()) {
        if (Clock::now() > until) return false;
        std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
}

std::size_t open_fds() {
    return entries("/proc/self/fd");
}
std::size_t own_threads() {
    return entries("/proc/self/task");
}

Running::Running(ofl::ServerOptions options, const std::string& address) : server(std::move(options), rows) {
    const ofl::Status listening = server.listen(address);
    REQUIRE_MESSAGE(listening.ok(), listening.reason);
    const ofl::Status started = server.start();
    REQUIRE_MESSAGE(started.ok(), started.reason);
}

ofl::Status Running::connect(const ofl::OpenRequest& request, Planes& planes,
                             std::unique_ptr<ofl::Channel>& out) const {
    return ofl::connect(endpoint_of(address()), request, planes.staging(), in(milliseconds(5000)), out);
}

std::unique_ptr<ofl::Channel> Running::channel(Planes& planes, std::uint32_t max_rows) const {
    std::unique_ptr<ofl::Channel> out;
    const ofl::Status status = connect(request_for(max_rows), planes, out);
    REQUIRE_MESSAGE(status.ok(), status.reason);
    return out;
}

std::uint64_t Running::refusals(Code code) const {
    const auto by_code = server.stats().refusals_by_code;
    const auto found = by_code.find(static_cast<std::int32_t>(code));
    return found == by_code.end() ? 0 : found->second;
}

RawPeer RawPeer::dial(const std::string& address) {
    const ofl::Endpoint endpoint = endpoint_of(address);
    ofl::net::Address remote;
    REQUIRE(ofl::net::numeric_address(endpoint.host, endpoint.port, remote).ok());
    ofl::net::Fd fd(::socket(remote.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(fd.get(), remote.get(), remote.length) == 0);
    ofl::net::tune(fd.get(), std::chrono::seconds(10));
    return RawPeer(std::move(fd));
}

bool RawPeer::send(wire::Bytes bytes) {
    std::array<iovec, 1> parts{ofl::net::part(bytes)};
    return ofl::net::send_all(fd_.get(), parts, {.deadline = in(milliseconds(5000))}) == ofl::net::Io::kDone;
}

bool RawPeer::send_frame(wire::Type type, wire::Bytes payload, std::uint64_t seq, std::uint32_t flags) {
    std::vector<std::byte> bytes(wire::kHeaderBytes + payload.size());
    wire::encode_header(
        {.type = type, .length = static_cast<std::uint32_t>(payload.size()), .flags = flags, .seq = seq},
        std::span(bytes).first<wire::kHeaderBytes>());
    std::copy(payload.begin(), payload.end(), bytes.begin() + wire::kHeaderBytes);
    return send(bytes);
}

bool RawPeer::send_lookup(std::uint64_t epoch, std::span<const std::uint32_t> ids) {
    std::vector<std::byte> payload(wire::kLookupPrefixBytes);
    wire::encode_lookup_prefix(static_cast<std::uint32_t>(ids.size()),
                               std::span(payload).first<wire::kLookupPrefixBytes>());
    const wire::Bytes words = std::as_bytes(ids);
    payload.insert(payload.end(), words.begin(), words.end());
    return send_frame(wire::Type::kLookup, payload, epoch);
}

std::optional<Frame> RawPeer::receive_frame(milliseconds within) {
    const ofl::net::Limits limits{.deadline = in(within)};
    std::array<std::byte, wire::kHeaderBytes> bytes;
    std::array<iovec, 1> parts{ofl::net::part(std::span<std::byte>(bytes))};
    std::size_t got = 0;
    if (ofl::net::receive(fd_.get(), parts, bytes.size(), limits, got) != ofl::net::Io::kDone) return {};
    Frame frame;
    if (!wire::decode_header(bytes, frame.header).ok() || frame.header.length > (64U << 20)) return {};
    frame.payload.resize(frame.header.length);
    parts = {ofl::net::part(std::span<std::byte>(frame.payload))};
    if (ofl::net::receive(fd_.get(), parts, frame.payload.size(), limits, got) != ofl::net::Io::kDone) return {};
    return frame;
}

bool RawPeer::closed(milliseconds within) {
    std::array<std::byte, 1> byte;
    std::array<iovec, 1> parts{ofl::net::part(std::span<std::byte>(byte))};
    std::size_t got = 0;
    const auto io = ofl::net::receive(fd_.get(), parts, 1, {.deadline = in(within)}, got);
    return io == ofl::net::Io::kClosed || io == ofl::net::Io::kFailed;
}

bool RawPeer::refused(Code code) {
    const auto frame = receive_frame();
    if (!frame || frame->header.type != wire::Type::kRefusal) return false;
    wire::Refusal refusal;
    if (!wire::decode_refusal(frame->payload, refusal).ok()) return false;
    CHECK(refusal.code == code);
    CHECK_FALSE(refusal.reason.empty());
    return refusal.code == code;
}

bool RawPeer::hello(const wire::Hello& hello) {
    std::array<std::byte, wire::kHelloBytes> bytes;
    wire::encode_hello(hello, bytes);
    return send_frame(wire::Type::kHello, bytes);
}

bool RawPeer::open(const std::function<void(wire::Open&)>& change) {
    if (!hello()) return false;
    const auto ack = receive_frame();
    if (!ack || ack->header.type != wire::Type::kHelloAck) return false;
    wire::Open open{.layer = kLayer, .end = kTableRows, .identity = identity(), .max_rows = 4096};
    if (change) change(open);
    std::array<std::byte, wire::kOpenBytes> bytes;
    wire::encode_open(open, bytes);
    return send_frame(wire::Type::kOpen, bytes);
}

bool RawPeer::opened() {
    if (!open()) return false;
    const auto ack = receive_frame();
    return ack && ack->header.type == wire::Type::kOpenAck;
}

void RawPeer::end_sending() {
    (void)::shutdown(fd_.get(), SHUT_WR);
}

void RawPeer::reset_on_close() {
    const linger none{1, 0};
    (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

}  // namespace transport_test
