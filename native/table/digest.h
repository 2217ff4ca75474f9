// sha256, by OpenSSL's EVP, and its hex form.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace engram {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
  public:
    Sha256();
    void update(std::span<const std::byte> bytes);
    void update(std::string_view text);
    [[nodiscard]] Digest finish();  // and starts anew

  private:
    struct Free {
        void operator()(void* context) const noexcept;
    };
    std::unique_ptr<void, Free> context_;
};

[[nodiscard]] Digest sha256(std::string_view text);
[[nodiscard]] std::string to_hex(const Digest& digest);
// Exactly 64 lower-case hex digits, or nothing.
[[nodiscard]] std::optional<Digest> from_hex(std::string_view text);
// The first 16 hex digits: enough to tell two identities apart in a message.
[[nodiscard]] std::string short_hex(const Digest& digest);

}  // namespace engram
