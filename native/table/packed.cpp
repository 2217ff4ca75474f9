#include "table/packed.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "table/file.h"
#include "table/json_reader.h"
#include "table/layout.h"

namespace engram {
namespace {

void check_plane(const std::string& path, const char* key, std::uint64_t offset, std::uint64_t bytes,
                 std::uint64_t file_bytes) {
    if (offset < kPackedHeaderBytes || offset % kPackedHeaderBytes != 0) {
        throw VerifyError(fmt::format("{}: {}: expected a multiple of {} past the header, found {}", path, key,
                                      kPackedHeaderBytes, offset));
    }
    if (offset > file_bytes || bytes > file_bytes - offset) {
        throw VerifyError(fmt::format("{}: truncated: {} {} with {} bytes does not fit into {}", path, key, offset,
                                      bytes, file_bytes));
    }
}

}  // namespace

PackedHeader parse_packed(std::span<const std::byte> header, std::uint64_t file_bytes, const std::string& path) {
    const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
    const std::string_view magic(kPackedMagic);
    if (text.size() != kPackedHeaderBytes || !text.starts_with(magic)) {
        throw VerifyError(fmt::format("{}: no packed file: expected the magic {}", path, magic));
    }
    std::string_view json = text.substr(magic.size());
    json = json.substr(0, json.find('\0'));
    PackedHeader result;
    try {
        const nlohmann::json document = nlohmann::json::parse(json);
        const JsonReader root(document, path);
        result.layer = root.at("layer").number32();
        result.rows = root.at("rows").number(std::uint64_t{1} << 32);
        result.weight_offset = root.at("weight_offset").number();
        result.scale_offset = root.at("scale_offset").number();
        const JsonReader identity = root.at("identity");
        const auto digest = from_hex(identity.text());
        if (!digest) identity.fail("expected 64 lower-case hex digits, found " + identity.found());
        result.identity = *digest;
    } catch (const nlohmann::json::exception& error) {
        throw VerifyError(fmt::format("{}: its header is not valid JSON: {}", path, error.what()));
    } catch (const ManifestError& error) {
        throw VerifyError(error.what());
    }
    check_plane(path, "weight_offset", result.weight_offset, result.rows * kWeightBytes, file_bytes);
    check_plane(path, "scale_offset", result.scale_offset, result.rows * kScaleBytes, file_bytes);
    return result;
}

PackedHeader read_packed(const std::filesystem::path& path) {
    const File file = File::open(path);
    const std::uint64_t size = file.size();
    if (size < kPackedHeaderBytes) {
        throw VerifyError(fmt::format("{}: truncated: {} bytes, a packed file has at least {}", path.string(), size,
                                      kPackedHeaderBytes));
    }
    std::array<std::byte, kPackedHeaderBytes> header{};
    file.read(0, header);
    return parse_packed(header, size, path.string());
}

}  // namespace engram
