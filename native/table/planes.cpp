#include "table/planes.h"

#include <fmt/format.h>

#include "table/error.h"
#include "table/packed.h"
#include "table/safetensors.h"

namespace engram {
namespace {

void check_shard(const LayerEntry& layer, const PlaneEntry& plane, const std::filesystem::path& path) {
    const SafetensorsHeader header = read_safetensors(path);
    const TensorInfo& tensor =
        header.require(*plane.tensor, plane_dtype(plane.kind), {layer.rows, plane_width(plane.kind)});
    if (tensor.offset != plane.offset) {
        throw VerifyError(fmt::format("{}: tensor {}: offset: expected {} (manifest), found {}", path.string(),
                                      *plane.tensor, plane.offset, tensor.offset));
    }
}

void check_packed(const LayerEntry& layer, const PlaneEntry& plane, const std::filesystem::path& path) {
    const PackedHeader header = read_packed(path);
    const auto expect = [&](const char* key, const std::string& wanted, const std::string& found) {
        if (wanted == found) return;
        throw VerifyError(fmt::format("{}: {}: expected {} (manifest), found {}", path.string(), key, wanted, found));
    };
    expect("layer", std::to_string(layer.layer), std::to_string(header.layer));
    expect("rows", std::to_string(layer.rows), std::to_string(header.rows));
    expect("identity", to_hex(layer.identity), to_hex(header.identity));
    const bool weight = plane.kind == PlaneKind::kWeight;
    expect(weight ? "weight_offset" : "scale_offset", std::to_string(plane.offset),
           std::to_string(weight ? header.weight_offset : header.scale_offset));
}

PlaneSource resolve_plane(const LayerEntry& layer, const PlaneEntry& plane, const std::filesystem::path& model_dir) {
    PlaneSource source{&plane, model_dir / plane.file};
    if (plane.tensor) {
        check_shard(layer, plane, source.path);
    } else {
        check_packed(layer, plane, source.path);
    }
    return source;
}

}  // namespace

LayerSource resolve_layer(const LayerEntry& layer, const std::filesystem::path& model_dir) {
    return {&layer, resolve_plane(layer, layer.weight, model_dir), resolve_plane(layer, layer.scale, model_dir)};
}

}  // namespace engram
