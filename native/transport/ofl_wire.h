// The offload link's frames as bytes: encoders and decoders without I/O, state or allocation. API.md is the reference.
//
// Every decoder takes bytes that a stranger may have written: it checks all bounds and reserved fields, and says what
// is wrong as a Verdict. A decoded length or count is within the limits that the caller passed in.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/ofl.h"

namespace ofl::wire {

// Ids go from the caller's memory to the socket as they lie there.
static_assert(std::endian::native == std::endian::little, "the offload link is little-endian on the wire");

inline constexpr std::uint32_t kMagic = 0x314C464F;  // "OFL1"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr std::uint32_t kFormatTwoPlanes = 1;  // fp8 e4m3 x 256 | ue8m0 x 8
inline constexpr std::uint32_t kTransportTcp = 0;
inline constexpr std::uint32_t kTransportRdma = 1;
inline constexpr std::uint32_t kFlagLast = 1;  // ROWS: the lookup's last chunk

inline constexpr std::size_t kHeaderBytes = 24;
inline constexpr std::size_t kHelloBytes = 40;
inline constexpr std::size_t kHelloAckBytes = 40;
inline constexpr std::size_t kOpenBytes = 112;
inline constexpr std::size_t kOpenAckBytes = 88;
inline constexpr std::size_t kMacBytes = 32;           // the tail of OPEN and OPEN_ACK
inline constexpr std::size_t kLookupPrefixBytes = 8;   // before the ids
inline constexpr std::size_t kRowsPrefixBytes = 8;     // before the two planes
inline constexpr std::size_t kRefusalPrefixBytes = 8;  // before the reason
inline constexpr std::size_t kMaxReasonBytes = 512;
inline constexpr std::size_t kMaxStatsBytes = 1U << 20;
inline constexpr std::uint32_t kMaxRowsCeiling = 1U << 22;  // keeps every payload length far inside 32 bits
static_assert(std::uint64_t{kMaxRowsCeiling} * kRowBytes + kRowsPrefixBytes < (std::uint64_t{1} << 31));

enum class Type : std::uint16_t {
    kHello = 1,
    kHelloAck = 2,
    kOpen = 3,
    kOpenAck = 4,
    kRefusal = 5,
    kLookup = 6,
    kRows = 7,
    kStats = 8,
    kStatsAck = 9,
    kClose = 10,
};

using Bytes = std::span<const std::byte>;
using Nonce = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, kMacBytes>;

// What a decoder thinks of its input. `why` is a literal.
struct [[nodiscard]] Verdict {
    Code code = Code::kOk;
    const char* why = "";

    [[nodiscard]] bool ok() const noexcept { return code == Code::kOk; }
};

struct Header {
    std::uint16_t version = kVersion;
    Type type = Type::kClose;
    std::uint32_t length = 0;  // payload bytes
    std::uint32_t flags = 0;
    std::uint64_t seq = 0;  // LOOKUP and ROWS: the epoch; a reply repeats its request's
};

struct Hello {
    std::uint16_t min_version = kVersion;
    std::uint16_t max_version = kVersion;
    Nonce nonce{};
};

struct HelloAck {
    std::uint16_t version = kVersion;
    bool auth_required = false;
    std::uint32_t max_rows = 0;
    Nonce nonce{};
};

struct Open {
    std::uint32_t layer = 0;
    std::uint32_t row_bytes = kRowBytes;
    std::uint32_t format = kFormatTwoPlanes;
    std::uint32_t transport = kTransportTcp;
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    Identity identity{};
    std::uint32_t max_rows = 0;
    std::uint64_t generation = 0;
    Mac mac{};
};

struct OpenAck {
    std::uint64_t table_rows = 0;
    std::uint32_t max_rows = 0;
    std::uint32_t chunk_rows = 0;
    std::uint64_t session = 0;
    Identity identity{};
    Mac mac{};
};

struct Refusal {
    Code code = Code::kRefusalMalformed;
    std::string_view reason;  // decoded: a view of the payload
};

struct RowsPrefix {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
};

[[nodiscard]] const char* type_name(Type type) noexcept;
[[nodiscard]] constexpr std::uint32_t lookup_bytes(std::uint32_t count) noexcept {
    return static_cast<std::uint32_t>(kLookupPrefixBytes) + 4 * count;
}
[[nodiscard]] constexpr std::uint32_t rows_bytes(std::uint32_t count) noexcept {
    return static_cast<std::uint32_t>(kRowsPrefixBytes) + kRowBytes * count;
}

void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept;
void encode_hello(const Hello& hello, std::span<std::byte, kHelloBytes> out) noexcept;
void encode_hello_ack(const HelloAck& ack, std::span<std::byte, kHelloAckBytes> out) noexcept;
void encode_open(const Open& open, std::span<std::byte, kOpenBytes> out) noexcept;
void encode_open_ack(const OpenAck& ack, std::span<std::byte, kOpenAckBytes> out) noexcept;
void encode_lookup_prefix(std::uint32_t count, std::span<std::byte, kLookupPrefixBytes> out) noexcept;
void encode_rows_prefix(const RowsPrefix& prefix, std::span<std::byte, kRowsPrefixBytes> out) noexcept;
// The payload's size. A reason longer than kMaxReasonBytes is cut at a character's border.
std::size_t encode_refusal(const Refusal& refusal,
                           std::span<std::byte, kRefusalPrefixBytes + kMaxReasonBytes> out) noexcept;

// Magic and version; `out.type` may be any value afterwards, see check_request() and check_reply().
Verdict decode_header(Bytes in, Header& out) noexcept;
// Whether a client may send such a frame at all: type, flags, and length within what the type allows.
Verdict check_request(const Header& header, std::uint32_t max_rows) noexcept;
// The same for what a server may send; `max_chunk_rows` bounds ROWS.
Verdict check_reply(const Header& header, std::uint32_t max_chunk_rows) noexcept;

Verdict decode_hello(Bytes payload, Hello& out) noexcept;
Verdict decode_hello_ack(Bytes payload, HelloAck& out) noexcept;
Verdict decode_open(Bytes payload, Open& out) noexcept;
Verdict decode_open_ack(Bytes payload, OpenAck& out) noexcept;
Verdict decode_refusal(Bytes payload, Refusal& out) noexcept;
// `payload` holds at least the prefix; `length` is the whole payload's, which must fit the count.
Verdict decode_lookup_prefix(Bytes payload, std::uint32_t length, std::uint32_t& count) noexcept;
// As above, and the chunk must be the one that is due: `due` rows came before, `wanted` are asked for in all.
Verdict decode_rows_prefix(Bytes payload, const Header& header, std::uint32_t due, std::uint32_t wanted,
                           RowsPrefix& out) noexcept;

}  // namespace ofl::wire
