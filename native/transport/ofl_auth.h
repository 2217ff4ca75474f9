// SHA-256, HMAC-SHA256 and nonces. Our own, because a node builds this with nothing but a compiler: no OpenSSL headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace ofl::auth {

using Digest = std::array<std::uint8_t, 32>;
using Bytes = std::span<const std::byte>;

class Sha256 {
  public:
    void update(Bytes data) noexcept;
    [[nodiscard]] Digest finish() noexcept;  // once

  private:
    void block(const std::byte* data) noexcept;

    std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> pending_{};
    std::size_t pending_bytes_ = 0;
    std::uint64_t total_bytes_ = 0;
};

[[nodiscard]] Digest sha256(Bytes data) noexcept;
// Over the concatenation of `parts`.
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::initializer_list<Bytes> parts) noexcept;
// Takes the same time wherever the two differ.
[[nodiscard]] bool equal(const Digest& left, const Digest& right) noexcept;
// From the kernel; false if it gives none.
[[nodiscard]] bool random_bytes(std::span<std::uint8_t> out) noexcept;

// The macs of a handshake: OPEN's with label "open", OPEN_ACK's with label "ack". `message` is the payload before the
// mac.
[[nodiscard]] Digest handshake_mac(std::string_view key, const Digest& client_nonce, const Digest& server_nonce,
                                   std::string_view label, Bytes message) noexcept;

}  // namespace ofl::auth
