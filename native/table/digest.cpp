#include "table/digest.h"

#include <openssl/evp.h>

#include "table/error.h"

namespace engram {
namespace {

EVP_MD_CTX* as_context(void* context) {
    return static_cast<EVP_MD_CTX*>(context);
}

void require(int rc) {
    if (rc != 1) throw ResourceError("sha256 failed inside OpenSSL");
}

int nibble(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

}  // namespace

void Sha256::Free::operator()(void* context) const noexcept {
    EVP_MD_CTX_free(as_context(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
    if (!context_) throw ResourceError("sha256 failed inside OpenSSL: no memory");
    require(EVP_DigestInit_ex(as_context(context_.get()), EVP_sha256(), nullptr));
}

void Sha256::update(std::span<const std::byte> bytes) {
    require(EVP_DigestUpdate(as_context(context_.get()), bytes.data(), bytes.size()));
}

void Sha256::update(std::string_view text) {
    update(std::as_bytes(std::span(text)));
}

Digest Sha256::finish() {
    Digest digest{};
    require(EVP_DigestFinal_ex(as_context(context_.get()), digest.data(), nullptr));
    require(EVP_DigestInit_ex(as_context(context_.get()), EVP_sha256(), nullptr));
    return digest;
}

Digest sha256(std::string_view text) {
    Sha256 hash;
    hash.update(text);
    return hash.finish();
}

std::string to_hex(const Digest& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(digest.size() * 2);
    for (const std::uint8_t byte : digest) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::optional<Digest> from_hex(std::string_view text) {
    Digest digest{};
    if (text.size() != digest.size() * 2) return std::nullopt;
    for (std::size_t i = 0; i < digest.size(); ++i) {
        const int high = nibble(text[2 * i]);
        const int low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0) return std::nullopt;
        digest[i] = static_cast<std::uint8_t>(high * 16 + low);
    }
    return digest;
}

std::string short_hex(const Digest& digest) {
    return to_hex(digest).substr(0, 16);
}

}  // namespace engram
