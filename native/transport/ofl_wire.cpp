#include "transport/ofl_wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace ofl::wire {
namespace {

// Callers have checked that the field lies inside the span.
template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) noexcept {
    static_assert(std::is_unsigned_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
}

template <typename T>
T get(Bytes in, std::size_t at) noexcept {
    static_assert(std::is_unsigned_v<T>);
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
        value = static_cast<T>(value | static_cast<T>(static_cast<T>(std::to_integer<T>(in[at + i])) << (8 * i)));
    }
    return value;
}

void put_array(std::span<std::byte> out, std::size_t at, const std::array<std::uint8_t, 32>& value) noexcept {
    std::memcpy(out.subspan(at, value.size()).data(), value.data(), value.size());
}

void get_array(Bytes in, std::size_t at, std::array<std::uint8_t, 32>& value) noexcept {
    std::memcpy(value.data(), in.subspan(at, value.size()).data(), value.size());
}

constexpr Verdict malformed(const char* why) noexcept {
    return {Code::kRefusalMalformed, why};
}

// The longest prefix of `text` that fits and does not end inside a UTF-8 sequence.
std::string_view cut(std::string_view text, std::size_t limit) noexcept {
    if (text.size() <= limit) return text;
    std::size_t end = limit;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    return text.substr(0, end);
}

}  // namespace

const char* type_name(Type type) noexcept {
    switch (type) {
        case Type::kHello:
            return "HELLO";
        case Type::kHelloAck:
            return "HELLO_ACK";
        case Type::kOpen:
            return "OPEN";
        case Type::kOpenAck:
            return "OPEN_ACK";
        case Type::kRefusal:
            return "REFUSAL";
        case Type::kLookup:
            return "LOOKUP";
        case Type::kRows:
            return "ROWS";
        case Type::kStats:
            return "STATS";
        case Type::kStatsAck:
            return "STATS_ACK";
        case Type::kClose:
            return "CLOSE";
    }
    return "an unknown type";
}

void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept {
    put(out, 0, kMagic);
    put(out, 4, header.version);
    put(out, 6, static_cast<std::uint16_t>(header.type));
    put(out, 8, header.length);
    put(out, 12, header.flags);
    put(out, 16, header.seq);
}

void encode_hello(const Hello& hello, std::span<std::byte, kHelloBytes> out) noexcept {
    put(out, 0, hello.min_version);
    put(out, 2, hello.max_version);
    put(out, 4, std::uint32_t{0});
    put_array(out, 8, hello.nonce);
}

void encode_hello_ack(const HelloAck& ack, std::span<std::byte, kHelloAckBytes> out) noexcept {
    put(out, 0, ack.version);
    put(out, 2, static_cast<std::uint8_t>(ack.auth_required ? 1 : 0));
    put(out, 3, std::uint8_t{0});
    put(out, 4, ack.max_rows);
    put_array(out, 8, ack.nonce);
}

void encode_open(const Open& open, std::span<std::byte, kOpenBytes> out) noexcept {
    put(out, 0, open.layer);
    put(out, 4, open.row_bytes);
    put(out, 8, open.format);
    put(out, 12, open.transport);
    put(out, 16, open.start);
    put(out, 24, open.end);
    put_array(out, 32, open.identity);
    put(out, 64, open.max_rows);
    put(out, 68, std::uint32_t{0});
    put(out, 72, open.generation);
    put_array(out, 80, open.mac);
}

void encode_open_ack(const OpenAck& ack, std::span<std::byte, kOpenAckBytes> out) noexcept {
    put(out, 0, ack.table_rows);
    put(out, 8, ack.max_rows);
    put(out, 12, ack.chunk_rows);
    put(out, 16, ack.session);
    put_array(out, 24, ack.identity);
    put_array(out, 56, ack.mac);
}

void encode_lookup_prefix(std::uint32_t count, std::span<std::byte, kLookupPrefixBytes> out) noexcept {
    put(out, 0, count);
    put(out, 4, std::uint32_t{0});
}

void encode_rows_prefix(const RowsPrefix& prefix, std::span<std::byte, kRowsPrefixBytes> out) noexcept {
    put(out, 0, prefix.first);
    put(out, 4, prefix.count);
}

std::size_t encode_refusal(const Refusal& refusal,
                           std::span<std::byte, kRefusalPrefixBytes + kMaxReasonBytes> out) noexcept {
    const std::string_view reason = cut(refusal.reason, kMaxReasonBytes);
    put(out, 0, static_cast<std::uint32_t>(refusal.code));
    put(out, 4, static_cast<std::uint32_t>(reason.size()));
    std::copy_n(reinterpret_cast<const std::byte*>(reason.data()), reason.size(), out.data() + kRefusalPrefixBytes);
    return kRefusalPrefixBytes + reason.size();
}

Verdict decode_header(Bytes in, Header& out) noexcept {
    if (in.size() < kHeaderBytes) return malformed("a frame header is cut short");
    if (get<std::uint32_t>(in, 0) != kMagic) return malformed("a frame does not begin with OFL1");
    out.version = get<std::uint16_t>(in, 4);
    out.type = static_cast<Type>(get<std::uint16_t>(in, 6));
    out.length = get<std::uint32_t>(in, 8);
    out.flags = get<std::uint32_t>(in, 12);
    out.seq = get<std::uint64_t>(in, 16);
    if (out.version != kVersion) return {Code::kRefusalVersion, "a frame of another protocol version"};
    return {};
}

Verdict check_request(const Header& header, std::uint32_t max_rows) noexcept {
    if (header.flags != 0) return malformed("a request has flags set");
    switch (header.type) {
        case Type::kHello:
            return header.length == kHelloBytes ? Verdict{} : malformed("HELLO has the wrong length");
        case Type::kOpen:
            return header.length == kOpenBytes ? Verdict{} : malformed("OPEN has the wrong length");
        case Type::kLookup:
            if (header.length < kLookupPrefixBytes || header.length % 4 != 0) {
                return malformed("LOOKUP has a length that fits no count");
            }
            if (header.length > lookup_bytes(max_rows)) return malformed("LOOKUP is longer than the server takes");
            return {};
        case Type::kStats:
        case Type::kClose:
            return header.length == 0 ? Verdict{} : malformed("STATS and CLOSE have no payload");
        case Type::kHelloAck:
        case Type::kOpenAck:
        case Type::kRefusal:
        case Type::kRows:
        case Type::kStatsAck:
            return malformed("a frame that only a server sends");
    }
    return malformed("a frame of unknown type");
}

Verdict check_reply(const Header& header, std::uint32_t max_chunk_rows) noexcept {
    if (header.type != Type::kRows && header.flags != 0) return malformed("a reply has flags set");
    switch (header.type) {
        case Type::kHelloAck:
            return header.length == kHelloAckBytes ? Verdict{} : malformed("HELLO_ACK has the wrong length");
        case Type::kOpenAck:
            return header.length == kOpenAckBytes ? Verdict{} : malformed("OPEN_ACK has the wrong length");
        case Type::kRefusal:
            if (header.length < kRefusalPrefixBytes || header.length > kRefusalPrefixBytes + kMaxReasonBytes) {
                return malformed("REFUSAL has the wrong length");
            }
            return {};
        case Type::kRows:
            if ((header.flags & ~kFlagLast) != 0) return malformed("ROWS has unknown flags");
            if (header.length < rows_bytes(1) || header.length > rows_bytes(max_chunk_rows)) {
                return malformed("ROWS has a length outside the agreed chunk");
            }
            return {};
        case Type::kStatsAck:
            return header.length <= kMaxStatsBytes ? Verdict{} : malformed("STATS_ACK is too long");
        case Type::kClose:
            return header.length == 0 ? Verdict{} : malformed("CLOSE has no payload");
        case Type::kHello:
        case Type::kOpen:
        case Type::kLookup:
        case Type::kStats:
            return malformed("a frame that only a client sends");
    }
    return malformed("a frame of unknown type");
}

Verdict decode_hello(Bytes payload, Hello& out) noexcept {
    if (payload.size() != kHelloBytes) return malformed("HELLO has the wrong length");
    if (get<std::uint32_t>(payload, 4) != 0) return malformed("HELLO has reserved bits set");
    out.min_version = get<std::uint16_t>(payload, 0);
    out.max_version = get<std::uint16_t>(payload, 2);
    get_array(payload, 8, out.nonce);
    if (out.min_version > out.max_version) return malformed("HELLO has its versions reversed");
    return {};
}

Verdict decode_hello_ack(Bytes payload, HelloAck& out) noexcept {
    if (payload.size() != kHelloAckBytes) return malformed("HELLO_ACK has the wrong length");
    const auto auth = get<std::uint8_t>(payload, 2);
    if (auth > 1 || get<std::uint8_t>(payload, 3) != 0) return malformed("HELLO_ACK has reserved bits set");
    out.version = get<std::uint16_t>(payload, 0);
    out.auth_required = auth == 1;
    out.max_rows = get<std::uint32_t>(payload, 4);
    get_array(payload, 8, out.nonce);
    if (out.max_rows == 0 || out.max_rows > kMaxRowsCeiling) return malformed("HELLO_ACK has an absurd max_rows");
    return {};
}

Verdict decode_open(Bytes payload, Open& out) noexcept {
    if (payload.size() != kOpenBytes) return malformed("OPEN has the wrong length");
    if (get<std::uint32_t>(payload, 68) != 0) return malformed("OPEN has reserved bits set");
    out.layer = get<std::uint32_t>(payload, 0);
    out.row_bytes = get<std::uint32_t>(payload, 4);
    out.format = get<std::uint32_t>(payload, 8);
    out.transport = get<std::uint32_t>(payload, 12);
    out.start = get<std::uint64_t>(payload, 16);
    out.end = get<std::uint64_t>(payload, 24);
    get_array(payload, 32, out.identity);
    out.max_rows = get<std::uint32_t>(payload, 64);
    out.generation = get<std::uint64_t>(payload, 72);
    get_array(payload, 80, out.mac);
    if (out.max_rows == 0) return malformed("OPEN asks for lookups of 0 rows");
    return {};
}

Verdict decode_open_ack(Bytes payload, OpenAck& out) noexcept {
    if (payload.size() != kOpenAckBytes) return malformed("OPEN_ACK has the wrong length");
    out.table_rows = get<std::uint64_t>(payload, 0);
    out.max_rows = get<std::uint32_t>(payload, 8);
    out.chunk_rows = get<std::uint32_t>(payload, 12);
    out.session = get<std::uint64_t>(payload, 16);
    get_array(payload, 24, out.identity);
    get_array(payload, 56, out.mac);
    if (out.max_rows == 0 || out.max_rows > kMaxRowsCeiling) return malformed("OPEN_ACK has an absurd max_rows");
    if (out.chunk_rows == 0 || out.chunk_rows > out.max_rows) return malformed("OPEN_ACK has an absurd chunk_rows");
    return {};
}

Verdict decode_refusal(Bytes payload, Refusal& out) noexcept {
    if (payload.size() < kRefusalPrefixBytes) return malformed("REFUSAL is cut short");
    const auto code = static_cast<std::int32_t>(get<std::uint32_t>(payload, 0));
    const auto length = get<std::uint32_t>(payload, 4);
    if (length > kMaxReasonBytes || length != payload.size() - kRefusalPrefixBytes) {
        return malformed("REFUSAL has a reason of another length than it says");
    }
    if (code > static_cast<std::int32_t>(Code::kRefusalIdentity)) return malformed("REFUSAL has a code that is none");
    out.code = static_cast<Code>(code);
    out.reason = {reinterpret_cast<const char*>(payload.data()) + kRefusalPrefixBytes, length};
    return {};
}

Verdict decode_lookup_prefix(Bytes payload, std::uint32_t length, std::uint32_t& count) noexcept {
    if (payload.size() < kLookupPrefixBytes) return malformed("LOOKUP is cut short");
    if (get<std::uint32_t>(payload, 4) != 0) return malformed("LOOKUP has reserved bits set");
    count = get<std::uint32_t>(payload, 0);
    if (std::uint64_t{count} * 4 + kLookupPrefixBytes != length)
        return malformed("LOOKUP has another length than count");
    return {};
}

Verdict decode_rows_prefix(Bytes payload, const Header& header, std::uint32_t due, std::uint32_t wanted,
                           RowsPrefix& out) noexcept {
    if (payload.size() < kRowsPrefixBytes) return malformed("ROWS is cut short");
    out.first = get<std::uint32_t>(payload, 0);
    out.count = get<std::uint32_t>(payload, 4);
    if (std::uint64_t{out.count} * kRowBytes + kRowsPrefixBytes != header.length) {
        return malformed("ROWS has another length than count");
    }
    if (out.first != due) return malformed("ROWS is not the chunk that is due");
    if (out.count == 0 || out.count > wanted - due) return malformed("ROWS has more rows than were asked for");
    const bool last = (header.flags & kFlagLast) != 0;
    if (last != (out.count == wanted - due)) return malformed("ROWS is marked last where it is not, or the reverse");
    return {};
}

}  // namespace ofl::wire
