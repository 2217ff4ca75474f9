// The header of a safetensors file: which tensor lies where. Only the header is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace engram {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorInfo {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::uint64_t offset = 0;  // absolute, in the file
    std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
    std::string path;  // as opened, for messages
    std::map<std::string, TensorInfo, std::less<>> tensors;

    // The tensor, checked against what is wanted; a VerifyError names file, tensor, expected and found.
    [[nodiscard]] const TensorInfo& require(std::string_view name, std::string_view dtype,
                                            const std::vector<std::uint64_t>& shape) const;
};

// `header` is the JSON after the 8-byte length; `file_bytes` the size of the whole file.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::string_view header, std::uint64_t file_bytes, std::string path);
[[nodiscard]] SafetensorsHeader read_safetensors(const std::filesystem::path& path);

}  // namespace engram
