// From a manifest's entry to the bytes on disk: the file's own header must say what the manifest says.
#pragma once

#include <filesystem>

#include "table/manifest.h"

namespace engram {

struct PlaneSource {
    const PlaneEntry* entry = nullptr;  // owned by the manifest, which outlives this
    std::filesystem::path path;
};

struct LayerSource {
    const LayerEntry* entry = nullptr;
    PlaneSource weight;
    PlaneSource scale;
};

// Reads headers only. Throws VerifyError when dtype, shape, offset, bytes or a packed file's identity differ.
[[nodiscard]] LayerSource resolve_layer(const LayerEntry& layer, const std::filesystem::path& model_dir);

}  // namespace engram
