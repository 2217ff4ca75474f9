#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "transport/ofl_wire.h"

namespace wire = ofl::wire;
using ofl::Code;

namespace {

constexpr int kRounds = 3000;
constexpr std::uint32_t kMaxRows = 1000;

class Random {
  public:
    template <typename T>
    T value() {
        // Small and extreme values find more borders than uniform ones.
        switch (engine_() % 4) {
            case 0:
                return static_cast<T>(engine_() % 4);
            case 1:
                return static_cast<T>(~T{0} - static_cast<T>(engine_() % 4));
            default:
                return static_cast<T>(engine_());
        }
    }
    std::array<std::uint8_t, 32> bytes() {
        std::array<std::uint8_t, 32> out;
        std::generate(out.begin(), out.end(), [&] { return static_cast<std::uint8_t>(engine_()); });
        return out;
    }
    std::size_t below(std::size_t limit) { return engine_() % limit; }
    void mutate(std::span<std::byte> bytes) {
        for (std::size_t i = 0; i <= below(4); ++i) bytes[below(bytes.size())] = static_cast<std::byte>(engine_());
    }

  private:
    std::mt19937_64 engine_{20260101};
};

wire::Hello some_hello(Random& random) {
    wire::Hello hello{random.value<std::uint16_t>(), random.value<std::uint16_t>(), random.bytes()};
    if (hello.min_version > hello.max_version) std::swap(hello.min_version, hello.max_version);
    return hello;
}

wire::Open some_open(Random& random) {
    return {.layer = random.value<std::uint32_t>(),
            .row_bytes = random.value<std::uint32_t>(),
            .format = random.value<std::uint32_t>(),
            .transport = random.value<std::uint32_t>(),
            .start = random.value<std::uint64_t>(),
            .end = random.value<std::uint64_t>(),
            .identity = random.bytes(),
            .max_rows = std::max(1U, random.value<std::uint32_t>()),
            .generation = random.value<std::uint64_t>(),
            .mac = random.bytes()};
}

wire::OpenAck some_open_ack(Random& random) {
    const auto max_rows = 1 + random.value<std::uint32_t>() % wire::kMaxRowsCeiling;
    return {.table_rows = random.value<std::uint64_t>(),
            .max_rows = max_rows,
            .chunk_rows = 1 + random.value<std::uint32_t>() % max_rows,
            .session = random.value<std::uint64_t>(),
            .identity = random.bytes(),
            .mac = random.bytes()};
}

// Whatever bytes a decoder accepts, the encoder gives back: nothing is ignored, nothing is lost.
template <std::size_t N, typename Message, typename Encode, typename Decode>
void check_canonical(Random& random, const Message& message, Encode encode, Decode decode) {
    std::array<std::byte, N> bytes;
    encode(message, bytes);
    Message back;
    REQUIRE(decode(wire::Bytes(bytes), back).ok());
    std::array<std::byte, N> again;
    encode(back, again);
    REQUIRE(again == bytes);

    random.mutate(bytes);
    Message mutated;
    if (const auto verdict = decode(wire::Bytes(bytes), mutated); verdict.ok()) {
        encode(mutated, again);
        REQUIRE(again == bytes);
    } else {
        REQUIRE(verdict.code == Code::kRefusalMalformed);
        REQUIRE(std::string(verdict.why).size() > 0);
    }
    for (const std::size_t size : {std::size_t{0}, random.below(N), N - 1}) {
        REQUIRE_FALSE(decode(wire::Bytes(bytes).first(size), mutated).ok());
    }
}

wire::Header header_of(wire::Type type, std::uint32_t length, std::uint32_t flags = 0) {
    return {.type = type, .length = length, .flags = flags};
}

}  // namespace

TEST_CASE("wire: a header survives the round trip, and its bytes are little-endian") {
    std::array<std::byte, wire::kHeaderBytes> bytes;
    wire::encode_header({.type = wire::Type::kLookup, .length = 0x01020304, .flags = 5, .seq = 0x1122334455667788},
                        bytes);
    const std::array<unsigned, 24> expected{'O',  'F',  'L',  '1',  1,    0,    6,    0,    0x04, 0x03, 0x02, 0x01,
                                            0x05, 0x00, 0x00, 0x00, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(std::to_integer<unsigned>(bytes[i]) == expected[i]);
    wire::Header header;
    REQUIRE(wire::decode_header(bytes, header).ok());
    CHECK(header.type == wire::Type::kLookup);
    CHECK(header.length == 0x01020304);
    CHECK(header.flags == 5);
    CHECK(header.seq == 0x1122334455667788);
}

TEST_CASE("wire: a header is refused when it is short, of another magic or another version") {
    std::array<std::byte, wire::kHeaderBytes> bytes;
    wire::encode_header({}, bytes);
    wire::Header header;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        CHECK(wire::decode_header(wire::Bytes(bytes).first(size), header).code == Code::kRefusalMalformed);
    }
    for (std::size_t i = 0; i < 4; ++i) {
        auto wrong = bytes;
        wrong[i] ^= std::byte{1};
        CHECK(wire::decode_header(wrong, header).code == Code::kRefusalMalformed);
    }
    auto newer = bytes;
    newer[4] = std::byte{2};
    CHECK(wire::decode_header(newer, header).code == Code::kRefusalVersion);
}

TEST_CASE("wire: every message is canonical under round trips and mutations") {
    Random random;
    for (int round = 0; round < kRounds; ++round) {
        check_canonical<wire::kHelloBytes>(random, some_hello(random), wire::encode_hello, wire::decode_hello);
        check_canonical<wire::kHelloAckBytes>(
            random,
            wire::HelloAck{random.value<std::uint16_t>(), random.below(2) == 1,
                           1 + random.value<std::uint32_t>() % wire::kMaxRowsCeiling, random.bytes()},
            wire::encode_hello_ack, wire::decode_hello_ack);
        check_canonical<wire::kOpenBytes>(random, some_open(random), wire::encode_open, wire::decode_open);
        check_canonical<wire::kOpenAckBytes>(random, some_open_ack(random), wire::encode_open_ack,
                                             wire::decode_open_ack);
    }
}

TEST_CASE("wire: reserved fields and impossible limits are malformed") {
    std::array<std::byte, wire::kHelloBytes> hello;
    wire::encode_hello({}, hello);
    hello[5] = std::byte{1};
    wire::Hello hello_out;
    CHECK(wire::decode_hello(hello, hello_out).code == Code::kRefusalMalformed);
    wire::encode_hello({.min_version = 2, .max_version = 1}, hello);
    CHECK(wire::decode_hello(hello, hello_out).code == Code::kRefusalMalformed);

    std::array<std::byte, wire::kOpenBytes> open;
    wire::Open open_out;
    wire::encode_open({.max_rows = 0}, open);
    CHECK(wire::decode_open(open, open_out).code == Code::kRefusalMalformed);
    wire::encode_open({.max_rows = 1}, open);
    open[70] = std::byte{1};
    CHECK(wire::decode_open(open, open_out).code == Code::kRefusalMalformed);

    std::array<std::byte, wire::kOpenAckBytes> ack;
    wire::OpenAck ack_out;
    for (const auto& [max_rows, chunk_rows] :
         {std::pair{0U, 1U}, {1U, 0U}, {4U, 5U}, {wire::kMaxRowsCeiling + 1, 1U}}) {
        wire::encode_open_ack({.max_rows = max_rows, .chunk_rows = chunk_rows}, ack);
        CHECK(wire::decode_open_ack(ack, ack_out).code == Code::kRefusalMalformed);
    }
}

TEST_CASE("wire: a refusal keeps code and reason, cut at a character's border") {
    std::array<std::byte, wire::kRefusalPrefixBytes + wire::kMaxReasonBytes> bytes;
    wire::Refusal out;
    for (const std::string& reason : {std::string(), std::string("identity differs"), std::string(512, 'x')}) {
        const std::size_t size = wire::encode_refusal({Code::kRefusalIdentity, reason}, bytes);
        REQUIRE(wire::decode_refusal(wire::Bytes(bytes).first(size), out).ok());
        CHECK(out.code == Code::kRefusalIdentity);
        CHECK(out.reason == reason);
        CHECK_FALSE(wire::decode_refusal(wire::Bytes(bytes).first(size - 1), out).ok());
    }
    const std::string wide = std::string(511, 'x') + "\xC3\xA9";  // the last character needs bytes 511 and 512
    const std::size_t size = wire::encode_refusal({Code::kRefusalBusy, wide}, bytes);
    REQUIRE(wire::decode_refusal(wire::Bytes(bytes).first(size), out).ok());
    CHECK(out.reason == std::string(511, 'x'));
    for (const Code code : {Code::kOk, Code::kTimeout, static_cast<Code>(-100), static_cast<Code>(7)}) {
        const std::size_t bytes_used = wire::encode_refusal({code, "no"}, bytes);
        CHECK_FALSE(wire::decode_refusal(wire::Bytes(bytes).first(bytes_used), out).ok());
    }
    const std::size_t used = wire::encode_refusal({static_cast<Code>(-150), "from a newer server"}, bytes);
    CHECK(wire::decode_refusal(wire::Bytes(bytes).first(used), out).ok());
}

TEST_CASE("wire: only requests of a fitting length pass, and no length passes the limit") {
    const auto allowed = [](wire::Type type, std::uint32_t length) {
        return wire::check_request(header_of(type, length), kMaxRows).ok();
    };
    CHECK(allowed(wire::Type::kHello, wire::kHelloBytes));
    CHECK_FALSE(allowed(wire::Type::kHello, wire::kHelloBytes + 1));
    CHECK(allowed(wire::Type::kOpen, wire::kOpenBytes));
    CHECK_FALSE(allowed(wire::Type::kOpen, 0));
    CHECK(allowed(wire::Type::kLookup, 8));
    CHECK(allowed(wire::Type::kLookup, 8 + 4 * kMaxRows));
    CHECK_FALSE(allowed(wire::Type::kLookup, 8 + 4 * (kMaxRows + 1)));
    CHECK_FALSE(allowed(wire::Type::kLookup, 10));
    CHECK_FALSE(allowed(wire::Type::kLookup, 4));
    CHECK(allowed(wire::Type::kStats, 0));
    CHECK_FALSE(allowed(wire::Type::kStats, 4));
    CHECK(allowed(wire::Type::kClose, 0));
    for (unsigned type = 0; type < 0x10000; ++type) {
        const auto kind = static_cast<wire::Type>(type);
        const bool may = kind == wire::Type::kLookup;
        for (const std::uint32_t length : {16U, 0xFFFFFFFFU, 0xFFFFFFFCU}) {
            if (allowed(kind, length) != (may && length == 16)) FAIL("type " << type << " length " << length);
        }
    }
    CHECK_FALSE(wire::check_request(header_of(wire::Type::kLookup, 12, 1), kMaxRows).ok());
}

TEST_CASE("wire: replies are held to the chunk that was agreed") {
    const auto allowed = [](wire::Type type, std::uint32_t length, std::uint32_t flags = 0) {
        return wire::check_reply(header_of(type, length, flags), 10).ok();
    };
    CHECK(allowed(wire::Type::kRows, 8 + 264));
    CHECK(allowed(wire::Type::kRows, 8 + 2640, wire::kFlagLast));
    CHECK_FALSE(allowed(wire::Type::kRows, 8 + 2904));
    CHECK_FALSE(allowed(wire::Type::kRows, 8));
    CHECK_FALSE(allowed(wire::Type::kRows, 8 + 264, 2));
    CHECK_FALSE(allowed(wire::Type::kRefusal, 7));
    CHECK_FALSE(allowed(wire::Type::kRefusal, 8 + 513));
    CHECK_FALSE(allowed(wire::Type::kRefusal, 8, wire::kFlagLast));
    CHECK_FALSE(allowed(wire::Type::kLookup, 12));
    CHECK_FALSE(allowed(wire::Type::kStatsAck, (1U << 20) + 1));
    CHECK_FALSE(allowed(static_cast<wire::Type>(11), 0));
}

TEST_CASE("wire: a LOOKUP's count must be the one its length says") {
    Random random;
    std::array<std::byte, wire::kLookupPrefixBytes> bytes;
    std::uint32_t count = 0;
    for (int round = 0; round < kRounds; ++round) {
        const auto said = random.value<std::uint32_t>();
        const auto length = random.value<std::uint32_t>();
        wire::encode_lookup_prefix(said, bytes);
        CHECK(wire::decode_lookup_prefix(bytes, length, count).ok() == (std::uint64_t{said} * 4 + 8 == length));
    }
    wire::encode_lookup_prefix(3, bytes);
    CHECK(wire::decode_lookup_prefix(bytes, 20, count).ok());
    CHECK(count == 3);
    bytes[6] = std::byte{1};
    CHECK_FALSE(wire::decode_lookup_prefix(bytes, 20, count).ok());
}

TEST_CASE("wire: a chunk of ROWS passes only in order, in bounds and with the right mark") {
    std::array<std::byte, wire::kRowsPrefixBytes> bytes;
    const auto passes = [&](std::uint32_t first, std::uint32_t count, std::uint32_t flags, std::uint32_t due,
                            std::uint32_t wanted) {
        wire::encode_rows_prefix({first, count}, bytes);
        wire::RowsPrefix out;
        return wire::decode_rows_prefix(bytes, header_of(wire::Type::kRows, wire::rows_bytes(count), flags), due,
                                        wanted, out)
            .ok();
    };
    CHECK(passes(0, 10, wire::kFlagLast, 0, 10));
    CHECK(passes(0, 4, 0, 0, 10));
    CHECK(passes(4, 6, wire::kFlagLast, 4, 10));
    CHECK_FALSE(passes(0, 10, 0, 0, 10));
    CHECK_FALSE(passes(0, 4, wire::kFlagLast, 0, 10));
    CHECK_FALSE(passes(4, 6, wire::kFlagLast, 0, 10));
    CHECK_FALSE(passes(0, 6, 0, 4, 10));
    CHECK_FALSE(passes(4, 7, wire::kFlagLast, 4, 10));
    CHECK_FALSE(passes(4, 0, 0, 4, 10));
    wire::encode_rows_prefix({0, 10}, bytes);
    wire::RowsPrefix out;
    CHECK_FALSE(wire::decode_rows_prefix(bytes, header_of(wire::Type::kRows, wire::rows_bytes(9), 1), 0, 10, out).ok());
    CHECK_FALSE(wire::decode_rows_prefix(wire::Bytes(bytes).first(7), header_of(wire::Type::kRows, 8), 0, 1, out).ok());
}
