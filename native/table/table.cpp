#include "table/table.h"

#include <fmt/format.h>

#include "table/error.h"
#include "table/planes.h"

namespace engram {

Residency Table::residency() const {
    const Residency weights = weights_.residency();
    const Residency scales = scales_.residency();
    return {weights.resident + scales.resident, weights.huge + scales.huge};
}

void Table::corrupt_row(std::uint64_t row) {
    if (row >= rows_) throw ResourceError(fmt::format("layer {} has no row {} to corrupt", layer_, row));
    weights_.seal(false);
    weights_.bytes()[row * kWeightBytes] ^= std::byte{1};
    weights_.seal(true);
}

Table load_table(const Manifest& manifest, std::uint32_t layer, const std::filesystem::path& model_dir,
                 const LoadOptions& options) {
    const LayerEntry* const entry = manifest.find(layer);
    if (entry == nullptr) throw ManifestError(fmt::format("{}: layer {} is not in it", manifest.path, layer));
    const LayerSource source = resolve_layer(*entry, model_dir);
    require_memory(entry->bytes(), available_memory());
    Table table;
    table.layer_ = layer;
    table.rows_ = entry->rows;
    table.identity_ = entry->identity;
    table.weights_ = Mapping(entry->weight.bytes, options.huge_pages);
    table.scales_ = Mapping(entry->scale.bytes, options.huge_pages);
    // Every segment agrees with the manifest, and parse_manifest() derived plane digests and identity from the
    // segments: so what was read has this identity.
    read_and_verify(source, manifest.segment_bytes, {table.weights_.data(), table.scales_.data()}, options.read);
    table.weights_.seal(true);
    table.scales_.seal(true);
    return table;
}

}  // namespace engram
