// manifest.json: what the tables are, where their planes lie, and the digests that make up their identity.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "table/digest.h"
#include "table/layout.h"

namespace engram {

inline constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{1} << 30;
inline constexpr const char* kWeightDtype = "F8_E4M3";
inline constexpr const char* kScaleDtype = "F8_E8M0";

enum class PlaneKind : std::uint8_t { kWeight, kScale };

[[nodiscard]] constexpr const char* plane_name(PlaneKind kind) noexcept {
    return kind == PlaneKind::kWeight ? "weight" : "scale";
}
[[nodiscard]] constexpr std::uint32_t plane_width(PlaneKind kind) noexcept {
    return kind == PlaneKind::kWeight ? kWeightBytes : kScaleBytes;
}
[[nodiscard]] constexpr const char* plane_dtype(PlaneKind kind) noexcept {
    return kind == PlaneKind::kWeight ? kWeightDtype : kScaleDtype;
}

struct PlaneEntry {
    PlaneKind kind = PlaneKind::kWeight;
    std::string file;                   // relative to the model directory
    std::optional<std::string> tensor;  // nothing: a packed file
    std::uint64_t offset = 0;           // of the plane's first byte in the file
    std::uint64_t bytes = 0;
    Digest digest{};
    std::vector<Digest> segments;
};

struct LayerEntry {
    std::uint32_t layer = 0;
    std::uint64_t rows = 0;
    std::vector<std::uint64_t> head_sizes;
    PlaneEntry weight;
    PlaneEntry scale;
    Digest identity{};

    [[nodiscard]] std::uint64_t bytes() const noexcept { return weight.bytes + scale.bytes; }
};

struct Manifest {
    std::string path;  // as given, for messages
    std::string checkpoint;
    Geometry geometry;
    std::uint64_t segment_bytes = 0;
    std::vector<LayerEntry> layers;

    [[nodiscard]] const LayerEntry* find(std::uint32_t layer) const noexcept;
};

// sha256 over the raw digests of the segments, in order.
[[nodiscard]] Digest plane_digest(const std::vector<Digest>& segments);
// The text whose sha256 is the identity of a layer's table.
[[nodiscard]] std::string identity_text(const LayerEntry& layer, std::uint64_t segment_bytes);

// Both throw ManifestError when the text is malformed, VerifyError when its digests do not agree with each other.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string path);
[[nodiscard]] Manifest load_manifest(const std::filesystem::path& path);

}  // namespace engram
