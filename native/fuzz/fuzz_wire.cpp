// The offload link's parsers against arbitrary bytes, on both sides.
//
// The first byte of an input chooses: every decoder on its own, with the property encode(decode(x)) == x; a server's
// session fed with the rest; or a reader's channel fed with it. The mutator works on whole frames, so that inputs get
// past the header. Everything runs on one thread: what is fed lies in a socket pair before the parser looks at it.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "transport/ofl_server_session.h"
#include "transport/ofl_tcp.h"
#include "transport/ofl_wire.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

namespace wire = ofl::wire;
using Buffer = std::vector<std::byte>;
using wire::Type;

constexpr std::uint32_t kMaxRows = 24;
constexpr std::uint32_t kLayer = 14;
constexpr std::uint64_t kTableRows = 1000;
constexpr std::uint64_t kEpoch = 7;
constexpr std::size_t kMostFed = 32768;  // fits a socket pair's buffer, so that feeding never waits
constexpr std::byte kPattern{0xA5};

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "property broken: %s\n", what);
    std::abort();
}

// ---- decoders on their own

template <std::size_t N, typename Message, typename Encode, typename Decode>
void canonical(wire::Bytes payload, Encode encode, Decode decode) {
    Message message;
    if (!decode(payload, message).ok()) return;
    std::array<std::byte, N> again;
    encode(message, again);
    require(payload.size() == N && std::equal(again.begin(), again.end(), payload.begin()), "encode(decode(x)) == x");
}

void decode_payload(const wire::Header& header, wire::Bytes payload) {
    canonical<wire::kHelloBytes, wire::Hello>(payload, wire::encode_hello, wire::decode_hello);
    canonical<wire::kHelloAckBytes, wire::HelloAck>(payload, wire::encode_hello_ack, wire::decode_hello_ack);
    canonical<wire::kOpenBytes, wire::Open>(payload, wire::encode_open, wire::decode_open);
    canonical<wire::kOpenAckBytes, wire::OpenAck>(payload, wire::encode_open_ack, wire::decode_open_ack);

    wire::Refusal refusal;
    if (wire::decode_refusal(payload, refusal).ok()) {
        std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> again;
        const std::size_t size = wire::encode_refusal(refusal, again);
        require(size == payload.size() && std::equal(payload.begin(), payload.end(), again.begin()), "REFUSAL");
        require(static_cast<std::int32_t>(refusal.code) <= -101, "a refusal has a refusal's code");
    }
    const auto length = static_cast<std::uint32_t>(payload.size());
    std::uint32_t count = 0;
    if (wire::decode_lookup_prefix(payload, length, count).ok()) {
        std::array<std::byte, wire::kLookupPrefixBytes> again;
        wire::encode_lookup_prefix(count, again);
        require(std::equal(again.begin(), again.end(), payload.begin()), "LOOKUP");
        require(wire::lookup_bytes(count) == length, "a LOOKUP's count fits its bytes");
    }
    for (const std::uint32_t due : {0U, 3U}) {
        wire::RowsPrefix rows;
        wire::Header whole = header;
        whole.length = length;
        if (!wire::decode_rows_prefix(payload, whole, due, kMaxRows, rows).ok()) continue;
        std::array<std::byte, wire::kRowsPrefixBytes> again;
        wire::encode_rows_prefix(rows, again);
        require(std::equal(again.begin(), again.end(), payload.begin()), "ROWS");
        require(rows.first == due && rows.count >= 1 && rows.count <= kMaxRows - due, "ROWS stays in the lookup");
        require(wire::rows_bytes(rows.count) == length, "a ROWS' count fits its bytes");
    }
}

void decode_all(wire::Bytes in) {
    wire::Header header;
    const bool framed = wire::decode_header(in, header).ok();
    if (framed) {
        std::array<std::byte, wire::kHeaderBytes> again;
        wire::encode_header(header, again);
        require(std::equal(again.begin(), again.end(), in.begin()), "header");
        (void)wire::type_name(header.type);
        if (wire::check_request(header, kMaxRows).ok()) {
            require(header.length <= std::max<std::size_t>(wire::kOpenBytes, wire::lookup_bytes(kMaxRows)), "request");
        }
        if (wire::check_reply(header, kMaxRows).ok()) {
            require(header.length <= std::max<std::size_t>(wire::kMaxStatsBytes, wire::rows_bytes(kMaxRows)), "reply");
        }
        in = in.subspan(wire::kHeaderBytes);
    }
    decode_payload(header, in);
}

// ---- both ends of a connection

class Rows final : public ofl::RowSource {
  public:
    ofl::Status admit(const ofl::OpenRequest& request, std::uint64_t& table_rows) override {
        if (request.layer != kLayer) return {ofl::Code::kRefusalLayer, "no such layer"};
        table_rows = kTableRows;
        return {};
    }
    void gather(std::uint32_t layer, std::span<const std::uint32_t> ids, std::byte* weights,
                std::byte* scales) override {
        require(layer == kLayer && !ids.empty() && ids.size() <= kMaxRows, "gather");
        for (const std::uint32_t id : ids) require(id < kTableRows, "ids were checked");
        std::memset(weights, 0x11, ids.size() * ofl::kWeightBytes);
        std::memset(scales, 0x22, ids.size() * ofl::kScaleBytes);
    }
};

struct Pair {
    Pair() {
        std::array<int, 2> fds{};
        require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0, "socketpair");
        parser = ofl::net::Fd(fds[0]);
        feeder = ofl::net::Fd(fds[1]);
    }
    // All of it lies there at once, then the stream ends: no parser can wait for long.
    void feed(wire::Bytes bytes) {
        bytes = bytes.first(std::min(bytes.size(), kMostFed));
        require(bytes.empty() || ::send(feeder.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                                     static_cast<ssize_t>(bytes.size()),
                "feeding");
        (void)::shutdown(feeder.get(), SHUT_WR);
    }
    ofl::net::Fd parser;
    ofl::net::Fd feeder;
};

void run_session(wire::Bytes in) {
    Rows rows;
    ofl::Counters counters;
    const ofl::ServerOptions options{.max_rows = kMaxRows,
                                     .chunk_rows = 5,
                                     .handshake_timeout = std::chrono::milliseconds(100),
                                     .frame_timeout = std::chrono::milliseconds(100),
                                     .send_timeout = std::chrono::milliseconds(0)};
    ofl::SessionHost host{.options = options, .source = rows, .counters = counters};
    Pair pair;
    pair.feed(in);
    ofl::Session session(std::move(pair.parser), host, 1, "fuzz");
    session.run();
    require(counters.opens_current.load() == 0 && counters.opens_total.load() <= 1, "a session opens once, and ends");
}

void run_channel(wire::Bytes in) {
    Pair pair;
    pair.feed(in);
    // Heap blocks of the exact size: a byte beyond them is found.
    Buffer weights(kMaxRows * ofl::kWeightBytes, kPattern);
    Buffer scales(kMaxRows * ofl::kScaleBytes, kPattern);
    ofl::OpenRequest request;
    request.layer = kLayer;
    request.end = kTableRows;
    request.max_rows = kMaxRows;
    const auto deadline = ofl::Clock::now() + std::chrono::milliseconds(100);
    std::unique_ptr<ofl::Channel> channel;
    const ofl::Status opened = ofl::open_tcp(std::move(pair.parser), {}, request,
                                             {weights.data(), scales.data(), kMaxRows}, deadline, channel);
    require(opened.ok() == (channel != nullptr), "a channel exists if the handshake passed");
    if (!channel) return;
    const std::uint32_t count = std::min(channel->info().max_rows, 20U);
    const std::vector<std::uint32_t> ids(count, 5);
    for (std::uint64_t epoch = kEpoch; epoch < kEpoch + 3; ++epoch) {
        const ofl::Status status = channel->lookup(epoch, ids, deadline);
        const bool goes_on = status.ok() || status.code == ofl::Code::kRefusalRowId ||
                             status.code == ofl::Code::kRefusalCount || status.code == ofl::Code::kInvalid;
        require(goes_on == (channel->liveness_fd() >= 0), "a channel that failed is closed");
        for (const char c : status.reason) require(static_cast<unsigned char>(c) >= ' ', "a reason is one line");
        if (!goes_on) break;
    }
    channel->retire();
    const auto clean = [](std::byte byte) { return byte == kPattern; };
    require(std::all_of(weights.begin() + count * ofl::kWeightBytes, weights.end(), clean) &&
                std::all_of(scales.begin() + count * ofl::kScaleBytes, scales.end(), clean),
            "nothing lies past the rows that were asked for");
}

// ---- seeds and the mutator

template <std::size_t N>
Buffer frame(Type type, std::uint64_t seq, const std::array<std::byte, N>& head, const Buffer& tail = {},
             std::uint32_t flags = 0) {
    Buffer out(wire::kHeaderBytes);
    wire::encode_header(
        {.type = type, .length = static_cast<std::uint32_t>(N + tail.size()), .flags = flags, .seq = seq},
        std::span(out).first<wire::kHeaderBytes>());
    out.insert(out.end(), head.begin(), head.end());
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
}

template <std::size_t N, typename Message, typename Encode>
Buffer frame_of(Type type, const Message& message, Encode encode) {
    std::array<std::byte, N> bytes;
    encode(message, bytes);
    return frame(type, 0, bytes);
}

Buffer rows_frame(std::uint64_t epoch, std::uint32_t first, std::uint32_t count, bool last) {
    std::array<std::byte, wire::kRowsPrefixBytes> prefix;
    wire::encode_rows_prefix({first, count}, prefix);
    return frame(Type::kRows, epoch, prefix, Buffer(std::size_t{count} * ofl::kRowBytes, std::byte{9}),
                 last ? wire::kFlagLast : 0);
}

Buffer any_frame(std::mt19937& random) {
    const std::uint64_t epoch = kEpoch + random() % 2;
    switch (static_cast<Type>(1 + random() % 10)) {
        case Type::kHello:
            return frame_of<wire::kHelloBytes>(Type::kHello, wire::Hello{}, wire::encode_hello);
        case Type::kHelloAck:
            return frame_of<wire::kHelloAckBytes>(Type::kHelloAck, wire::HelloAck{.max_rows = kMaxRows},
                                                  wire::encode_hello_ack);
        case Type::kOpen:
            return frame_of<wire::kOpenBytes>(
                Type::kOpen, wire::Open{.layer = kLayer, .end = kTableRows, .max_rows = kMaxRows}, wire::encode_open);
        case Type::kOpenAck:
            return frame_of<wire::kOpenAckBytes>(
                Type::kOpenAck,
                wire::OpenAck{.table_rows = kTableRows, .max_rows = kMaxRows, .chunk_rows = 10, .session = 1},
                wire::encode_open_ack);
        case Type::kRefusal: {
            std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> bytes;
            const auto code = static_cast<ofl::Code>(-101 - static_cast<std::int32_t>(random() % 16));
            const std::size_t size = wire::encode_refusal({code, "no\n"}, bytes);
            return frame(Type::kRefusal, epoch, std::array<std::byte, 0>{},
                         Buffer(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
        }
        case Type::kLookup: {
            const auto count = static_cast<std::uint32_t>(random() % (kMaxRows + 2));
            std::array<std::byte, wire::kLookupPrefixBytes> prefix;
            wire::encode_lookup_prefix(count, prefix);
            return frame(Type::kLookup, epoch, prefix, Buffer(std::size_t{count} * 4));
        }
        case Type::kRows:
            return random() % 2 == 0 ? rows_frame(epoch, 0, 10, false) : rows_frame(epoch, 10, 10, true);
        case Type::kStats:
            return frame(Type::kStats, 0, std::array<std::byte, 0>{});
        case Type::kStatsAck:
            return frame(Type::kStatsAck, 0, std::array<std::byte, 2>{std::byte{'{'}, std::byte{'}'}});
        case Type::kClose:
            break;
    }
    return frame(Type::kClose, 0, std::array<std::byte, 0>{});
}

Buffer of_type(Type type, std::mt19937& random) {
    for (;;) {
        Buffer bytes = any_frame(random);
        if (static_cast<Type>(std::to_integer<unsigned>(bytes[6])) == type) return bytes;
    }
}

// Frames as far as the lengths in their headers lead; what does not parse is a last piece of its own.
std::vector<Buffer> split(wire::Bytes in) {
    std::vector<Buffer> frames;
    while (!in.empty()) {
        wire::Header header;
        std::size_t size = in.size();
        if (wire::decode_header(in, header).ok()) size = std::min(size, wire::kHeaderBytes + header.length);
        frames.emplace_back(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(size));
        in = in.subspan(size);
    }
    return frames;
}

// Makes the header tell the payload's true length again.
void mend(Buffer& bytes) {
    const auto length = static_cast<std::uint32_t>(bytes.size() - wire::kHeaderBytes);
    for (std::size_t i = 0; i < 4; ++i) bytes[8 + i] = static_cast<std::byte>((length >> (8 * i)) & 0xFF);
}

std::vector<Buffer> conversation(unsigned side, std::mt19937& random) {
    switch (side) {
        case 1:
            return {of_type(Type::kHello, random), of_type(Type::kOpen, random), of_type(Type::kLookup, random)};
        case 2:
            return {of_type(Type::kHelloAck, random), of_type(Type::kOpenAck, random), rows_frame(kEpoch, 0, 10, false),
                    rows_frame(kEpoch, 10, 10, true)};
        default:
            return {any_frame(random)};
    }
}

void change(std::vector<Buffer>& frames, std::mt19937& random) {
    const std::size_t at = random() % frames.size();
    Buffer& chosen = frames[at];
    switch (random() % 6) {
        case 0:
            frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(at + random() % 2), any_frame(random));
            return;
        case 1:
            frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(at));
            return;
        case 2:
            frames.push_back(chosen);
            return;
        case 3:  // one field of the header: type, length, flags or seq
            if (chosen.size() >= wire::kHeaderBytes) {
                constexpr std::array<std::size_t, 4> kFields{6, 8, 12, 16};
                chosen[kFields[random() % kFields.size()]] = static_cast<std::byte>(random() % 32);
            }
            return;
        default: {
            if (chosen.size() < wire::kHeaderBytes) return;
            const std::size_t payload = chosen.size() - wire::kHeaderBytes;
            chosen.resize(chosen.size() + 16);
            const std::size_t size = LLVMFuzzerMutate(
                reinterpret_cast<std::uint8_t*>(chosen.data()) + wire::kHeaderBytes, payload, payload + 16);
            chosen.resize(wire::kHeaderBytes + size);
            mend(chosen);
        }
    }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
    std::mt19937 random(seed);
    if (size > 1 && random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
    const unsigned side = size == 0 || random() % 32 == 0 ? static_cast<unsigned>(random() % 3) : data[0] % 3U;
    std::vector<Buffer> frames;
    if (size > 1) frames = split(std::as_bytes(std::span(data, size)).subspan(1));
    if (frames.empty() || random() % 16 == 0) frames = conversation(side, random);
    change(frames, random);
    Buffer out{static_cast<std::byte>(side)};
    for (const Buffer& bytes : frames) out.insert(out.end(), bytes.begin(), bytes.end());
    const std::size_t used = std::min(out.size(), max_size);
    std::memcpy(data, out.data(), used);
    return used;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const wire::Bytes in = std::as_bytes(std::span(data, size)).subspan(1);
    switch (data[0] % 3) {
        case 0:
            decode_all(in);
            break;
        case 1:
            run_session(in);
            break;
        default:
            run_channel(in);
    }
    return 0;
}
