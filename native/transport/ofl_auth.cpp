#include "transport/ofl_auth.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace ofl::auth {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* at) noexcept {
    return (std::to_integer<std::uint32_t>(at[0]) << 24) | (std::to_integer<std::uint32_t>(at[1]) << 16) |
           (std::to_integer<std::uint32_t>(at[2]) << 8) | std::to_integer<std::uint32_t>(at[3]);
}

Bytes text_bytes(std::string_view text) noexcept {
    return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

void Sha256::block(const std::byte* data) noexcept {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
        const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
        const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
        const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> round{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += round[i];
}

void Sha256::update(Bytes data) noexcept {
    total_bytes_ += data.size();
    if (pending_bytes_ > 0) {
        const std::size_t take = std::min(data.size(), kBlockBytes - pending_bytes_);
        std::copy_n(data.data(), take, pending_.data() + pending_bytes_);
        pending_bytes_ += take;
        data = data.subspan(take);
        if (pending_bytes_ < kBlockBytes) return;
        block(pending_.data());
        pending_bytes_ = 0;
    }
    for (; data.size() >= kBlockBytes; data = data.subspan(kBlockBytes)) block(data.data());
    std::copy(data.begin(), data.end(), pending_.begin());
    pending_bytes_ = data.size();
}

Digest Sha256::finish() noexcept {
    const std::uint64_t bits = total_bytes_ * 8;
    std::array<std::byte, 2 * kBlockBytes> tail{};
    const std::size_t zeros = (pending_bytes_ < 56 ? 56 : 120) - pending_bytes_;  // 0x80 and zeros, up to the length
    tail[0] = std::byte{0x80};
    for (std::size_t i = 0; i < 8; ++i) tail[zeros + i] = static_cast<std::byte>((bits >> (56 - 8 * i)) & 0xFF);
    update(Bytes(tail).first(zeros + 8));
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i) {
        digest[i] = static_cast<std::uint8_t>((state_[i / 4] >> (24 - 8 * (i % 4))) & 0xFF);
    }
    return digest;
}

Digest sha256(Bytes data) noexcept {
    Sha256 hash;
    hash.update(data);
    return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::initializer_list<Bytes> parts) noexcept {
    std::array<std::byte, kBlockBytes> padded{};
    if (key.size() > kBlockBytes) {
        const Digest shortened = sha256(text_bytes(key));
        std::copy_n(std::as_bytes(std::span(shortened)).data(), shortened.size(), padded.data());
    } else {
        std::copy_n(text_bytes(key).data(), key.size(), padded.data());
    }
    std::array<std::byte, kBlockBytes> pad;
    std::transform(padded.begin(), padded.end(), pad.begin(), [](std::byte b) { return b ^ std::byte{0x36}; });
    Sha256 inner;
    inner.update(pad);
    for (const Bytes part : parts) inner.update(part);
    const Digest inner_digest = inner.finish();
    std::transform(padded.begin(), padded.end(), pad.begin(), [](std::byte b) { return b ^ std::byte{0x5C}; });
    Sha256 outer;
    outer.update(pad);
    outer.update(std::as_bytes(std::span(inner_digest)));
    return outer.finish();
}

bool equal(const Digest& left, const Digest& right) noexcept {
    std::uint8_t difference = 0;
    for (std::size_t i = 0; i < left.size(); ++i) difference |= static_cast<std::uint8_t>(left[i] ^ right[i]);
    // A volatile read keeps the compiler from leaving the loop early.
    const volatile std::uint8_t result = difference;
    return result == 0;
}

bool random_bytes(std::span<std::uint8_t> out) noexcept {
    while (!out.empty()) {
        const ssize_t got = ::getrandom(out.data(), out.size(), 0);
        if (got < 0) {
            if (errno == EINTR) continue;
            return false;
        }
        out = out.subspan(static_cast<std::size_t>(got));
    }
    return true;
}

Digest handshake_mac(std::string_view key, const Digest& client_nonce, const Digest& server_nonce,
                     std::string_view label, Bytes message) noexcept {
    return hmac_sha256(key, {std::as_bytes(std::span(client_nonce)), std::as_bytes(std::span(server_nonce)),
                             text_bytes(label), message});
}

}  // namespace ofl::auth
