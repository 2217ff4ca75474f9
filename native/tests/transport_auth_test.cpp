#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "transport/ofl_auth.h"

namespace auth = ofl::auth;

namespace {

auth::Bytes bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

std::string hex(const auth::Digest& digest) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string out;
    for (const std::uint8_t byte : digest) {
        out += kDigits[byte >> 4];
        out += kDigits[byte & 15];
    }
    return out;
}

}  // namespace

TEST_CASE("auth: SHA-256 gives the answers of FIPS 180") {
    CHECK(hex(auth::sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(auth::sha256(bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(auth::sha256(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(auth::sha256(bytes(std::string(1'000'000, 'a')))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("auth: SHA-256 does not depend on how the input is cut") {
    std::string text;
    for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
    for (std::size_t size = 0; size <= 200; ++size) {
        const std::string_view head = std::string_view(text).substr(0, size);
        const auth::Digest whole = auth::sha256(bytes(head));
        for (const std::size_t step : {1U, 3U, 63U, 64U, 65U}) {
            auth::Sha256 hash;
            for (std::size_t at = 0; at < size; at += step) hash.update(bytes(head.substr(at, step)));
            REQUIRE(hash.finish() == whole);
        }
    }
}

TEST_CASE("auth: HMAC-SHA256 gives the answers of RFC 4231") {
    struct Vector {
        std::string key, data, digest;
    };
    std::string counting;
    for (int i = 1; i <= 25; ++i) counting += static_cast<char>(i);
    const std::vector<Vector> vectors{
        {std::string(20, '\x0b'), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {std::string(20, '\xaa'), std::string(50, '\xdd'),
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {counting, std::string(50, '\xcd'), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {std::string(131, '\xaa'),
         "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
         "hashed before being used by the HMAC algorithm.",
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"}};
    for (const Vector& vector : vectors) {
        CHECK(hex(auth::hmac_sha256(vector.key, {bytes(vector.data)})) == vector.digest);
        const std::string_view data = vector.data;
        CHECK(hex(auth::hmac_sha256(vector.key, {bytes(data.substr(0, 3)), {}, bytes(data.substr(3))})) ==
              vector.digest);
    }
}

TEST_CASE("auth: digests are equal only when every bit is") {
    const auth::Digest digest = auth::sha256(bytes("row"));
    CHECK(auth::equal(digest, digest));
    for (std::size_t bit = 0; bit < 256; ++bit) {
        auth::Digest other = digest;
        other[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        CHECK_FALSE(auth::equal(digest, other));
    }
}

TEST_CASE("auth: a handshake mac depends on the key, both nonces in order, the label and the message") {
    const auth::Digest one = auth::sha256(bytes("1"));
    const auth::Digest two = auth::sha256(bytes("2"));
    const auth::Digest mac = auth::handshake_mac("key", one, two, "open", bytes("message"));
    std::string joined;
    for (const auth::Digest& nonce : {one, two})
        joined.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
    CHECK(auth::equal(mac, auth::hmac_sha256("key", {bytes(joined + "openmessage")})));
    CHECK_FALSE(auth::equal(mac, auth::handshake_mac("yek", one, two, "open", bytes("message"))));
    CHECK_FALSE(auth::equal(mac, auth::handshake_mac("key", two, one, "open", bytes("message"))));
    CHECK_FALSE(auth::equal(mac, auth::handshake_mac("key", one, two, "ack", bytes("message"))));
    CHECK_FALSE(auth::equal(mac, auth::handshake_mac("key", one, two, "open", bytes("massage"))));
}

TEST_CASE("auth: nonces differ") {
    auth::Digest one{};
    auth::Digest two{};
    REQUIRE(auth::random_bytes(one));
    REQUIRE(auth::random_bytes(two));
    CHECK(one != two);
    CHECK(one != auth::Digest{});
}
