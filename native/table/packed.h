// The header of a packed file (.dsv41pack): one layer's two planes, each starting on a 4096 boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "table/digest.h"

namespace engram {

inline constexpr std::size_t kPackedHeaderBytes = 4096;
inline constexpr const char* kPackedMagic = "DSV41PK1";

struct PackedHeader {
    std::uint32_t layer = 0;
    std::uint64_t rows = 0;
    std::uint64_t weight_offset = 0;
    std::uint64_t scale_offset = 0;
    Digest identity{};
};

// `header` is the first kPackedHeaderBytes of the file. A VerifyError names the file and the key.
[[nodiscard]] PackedHeader parse_packed(std::span<const std::byte> header, std::uint64_t file_bytes,
                                        const std::string& path);
[[nodiscard]] PackedHeader read_packed(const std::filesystem::path& path);

}  // namespace engram
