#include "table/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "table/file.h"
#include "table/json_reader.h"

namespace engram {
namespace {

// Bits of one element; nothing for a dtype that this code does not know (and has no need to).
std::optional<std::uint64_t> dtype_bits(std::string_view dtype) {
    struct Known {
        std::string_view name;
        std::uint64_t bits;
    };
    static constexpr std::array kKnown = {
        Known{"BOOL", 8}, Known{"U8", 8},      Known{"I8", 8},   Known{"F8_E4M3", 8}, Known{"F8_E5M2", 8},
        Known{"I16", 16}, Known{"U16", 16},    Known{"F16", 16}, Known{"BF16", 16},   Known{"I32", 32},
        Known{"U32", 32}, Known{"F32", 32},    Known{"I64", 64}, Known{"U64", 64},    Known{"F64", 64},
        Known{"F4", 4},   Known{"F8_E8M0", 8},
    };
    const auto it = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) { return known.name == dtype; });
    if (it == kKnown.end()) return std::nullopt;
    return it->bits;
}

std::optional<std::uint64_t> shape_bytes(const std::vector<std::uint64_t>& shape, std::uint64_t bits) {
    std::uint64_t total = bits;
    for (const std::uint64_t dim : shape) {
        if (__builtin_mul_overflow(total, dim, &total)) return std::nullopt;
    }
    if (total % 8 != 0) return std::nullopt;
    return total / 8;
}

TensorInfo read_tensor(const JsonReader& node, std::uint64_t data_start, std::uint64_t file_bytes) {
    TensorInfo tensor;
    tensor.dtype = node.at("dtype").text();
    const JsonReader shape = node.at("shape");
    for (std::size_t i = 0; i < shape.size(); ++i) tensor.shape.push_back(shape.at(i).number());
    const JsonReader offsets = node.at("data_offsets");
    if (offsets.size() != 2) offsets.fail(fmt::format("expected two offsets, found {}", offsets.found()));
    const std::uint64_t begin = offsets.at(std::size_t{0}).number();
    const std::uint64_t end = offsets.at(std::size_t{1}).number();
    const std::uint64_t data_bytes = file_bytes - data_start;
    if (begin > end) offsets.fail(fmt::format("reversed: {}", offsets.found()));
    if (end > data_bytes) {
        offsets.fail(fmt::format("truncated: the data should reach byte {}, the file ends after {}", end, data_bytes));
    }
    tensor.offset = data_start + begin;
    tensor.bytes = end - begin;
    if (const auto bits = dtype_bits(tensor.dtype)) {
        const auto wanted = shape_bytes(tensor.shape, *bits);
        if (!wanted || *wanted != tensor.bytes) {
            node.fail(fmt::format("{} [{}] needs {} bytes, data_offsets give {}", tensor.dtype,
                                  fmt::join(tensor.shape, ", "), wanted ? std::to_string(*wanted) : "too many",
                                  tensor.bytes));
        }
    }
    return tensor;
}

}  // namespace

const TensorInfo& SafetensorsHeader::require(std::string_view name, std::string_view dtype,
                                             const std::vector<std::uint64_t>& shape) const {
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
        throw VerifyError(fmt::format("{}: tensor {}: missing ({} other tensors)", path, name, tensors.size()));
    }
    const TensorInfo& tensor = it->second;
    if (tensor.dtype != dtype) {
        throw VerifyError(fmt::format("{}: tensor {}: dtype: expected {}, found {}", path, name, dtype, tensor.dtype));
    }
    if (tensor.shape != shape) {
        throw VerifyError(fmt::format("{}: tensor {}: shape: expected [{}], found [{}]", path, name,
                                      fmt::join(shape, ", "), fmt::join(tensor.shape, ", ")));
    }
    return tensor;
}

SafetensorsHeader parse_safetensors(std::string_view header, std::uint64_t file_bytes, std::string path) {
    SafetensorsHeader result;
    result.path = std::move(path);
    const std::uint64_t data_start = 8 + header.size();
    try {
        if (data_start > file_bytes) throw VerifyError(fmt::format("{}: truncated inside its header", result.path));
        const nlohmann::json document = nlohmann::json::parse(header);
        if (!document.is_object()) throw VerifyError(fmt::format("{}: its header is no JSON object", result.path));
        for (const auto& [name, value] : document.items()) {
            if (name == "__metadata__") continue;
            const JsonReader node(value, result.path, "tensor " + name);
            result.tensors.emplace(name, read_tensor(node, data_start, file_bytes));
        }
    } catch (const nlohmann::json::exception& error) {
        throw VerifyError(fmt::format("{}: its header is not valid JSON: {}", result.path, error.what()));
    } catch (const ManifestError& error) {
        // The reader's complaint is about a shard here: a shard that is not what the manifest says.
        throw VerifyError(error.what());
    }
    return result;
}

SafetensorsHeader read_safetensors(const std::filesystem::path& path) {
    const File file = File::open(path);
    const std::uint64_t size = file.size();
    std::array<std::byte, 8> length{};
    if (size < length.size()) {
        throw VerifyError(
            fmt::format("{}: truncated: {} bytes, a safetensors file has at least 8", path.string(), size));
    }
    file.read(0, length);
    std::uint64_t header_bytes = 0;
    for (std::size_t i = length.size(); i-- > 0;)
        header_bytes = header_bytes << 8 | std::to_integer<std::uint64_t>(length[i]);
    if (header_bytes > kMaxSafetensorsHeader) {
        throw VerifyError(fmt::format("{}: no safetensors file: header length {}, expected at most {}", path.string(),
                                      header_bytes, kMaxSafetensorsHeader));
    }
    if (header_bytes > size - length.size()) {
        throw VerifyError(fmt::format("{}: truncated inside its header: expected {} bytes, found {}", path.string(),
                                      header_bytes, size - length.size()));
    }
    std::string header(header_bytes, '\0');
    file.read(length.size(), std::as_writable_bytes(std::span(header)));
    return parse_safetensors(header, size, path.string());
}

}  // namespace engram
