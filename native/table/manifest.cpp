#include "table/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>

#include "table/json_reader.h"

namespace engram {
namespace {

// A row id is a u32 on the wire.
constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 32;
constexpr std::size_t kMaxLayers = 64;
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;

Digest read_digest(const JsonReader& node) {
    const std::string text = node.text();
    const auto digest = from_hex(text);
    if (!digest) node.fail(fmt::format("expected 64 lower-case hex digits, found {}", node.found()));
    return *digest;
}

void expect_number(const JsonReader& node, std::uint64_t wanted) {
    if (node.number() != wanted) node.fail(fmt::format("expected {}, found {}", wanted, node.found()));
}

void expect_text(const JsonReader& node, std::string_view wanted) {
    if (node.text() != wanted) node.fail(fmt::format("expected \"{}\", found {}", wanted, node.found()));
}

Geometry read_geometry(const JsonReader& node) {
    Geometry geometry;
    const JsonReader ids = node.at("layer_ids");
    const JsonReader rows = node.at("num_embeddings");
    if (ids.size() == 0 || ids.size() > kMaxLayers) ids.fail("expected a list of 1 to 64 layers");
    if (rows.size() != ids.size()) {
        rows.fail(fmt::format("expected one number a layer ({}), found {}", ids.size(), rows.size()));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::uint32_t layer = ids.at(i).number32();
        if (std::find(geometry.layer_ids.begin(), geometry.layer_ids.end(), layer) != geometry.layer_ids.end()) {
            ids.at(i).fail(fmt::format("layer {} is named twice", layer));
        }
        geometry.layer_ids.push_back(layer);
        geometry.num_embeddings.push_back(rows.at(i).number(kMaxRows));
    }
    geometry.max_ngram_size = node.at("max_ngram_size").number32();
    geometry.n_heads = node.at("n_heads").number32();
    expect_number(node.at("head_dim"), kWeightBytes);
    geometry.vocab_size = node.at("vocab_size").number();
    geometry.pad_token_id = node.at("pad_token_id").number32();
    geometry.compressed_vocab_size = node.at("compressed_vocab_size").number();
    return geometry;
}

void check_row_format(const JsonReader& node) {
    expect_text(node.at("weight_dtype"), kWeightDtype);
    expect_number(node.at("weight_bytes"), kWeightBytes);
    expect_text(node.at("scale_dtype"), kScaleDtype);
    expect_number(node.at("scale_bytes"), kScaleBytes);
    expect_number(node.at("row_bytes"), kWeightBytes + kScaleBytes);
}

std::string read_file_name(const JsonReader& node) {
    const std::string text = node.text();
    const std::filesystem::path path(text);
    const bool climbs = std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
    // The model directory bounds what a manifest can make the server read.
    if (text.empty() || path.is_absolute() || climbs || text.find('\0') != std::string::npos) {
        node.fail(fmt::format("expected a path inside the model directory, found {}", node.found()));
    }
    return text;
}

PlaneEntry read_plane(const JsonReader& node, PlaneKind kind, std::uint64_t rows, std::uint64_t segment_bytes) {
    PlaneEntry plane;
    plane.kind = kind;
    plane.file = read_file_name(node.at("file"));
    const bool packed = node.has("packed") && node.at("packed").boolean();
    const JsonReader tensor = node.at("tensor");
    if (packed && !tensor.is_null())
        tensor.fail(fmt::format("expected null in a packed file, found {}", tensor.found()));
    if (!packed) plane.tensor = tensor.text();
    plane.offset = node.at("offset").number(std::uint64_t{1} << 62);
    plane.bytes = rows * plane_width(kind);
    expect_number(node.at("bytes"), plane.bytes);
    const JsonReader segments = node.at("segments");
    const std::uint64_t wanted = (plane.bytes + segment_bytes - 1) / segment_bytes;
    if (segments.size() != wanted) {
        segments.fail(
            fmt::format("expected {} segments of {} bytes, found {}", wanted, segment_bytes, segments.size()));
    }
    plane.segments.reserve(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) plane.segments.push_back(read_digest(segments.at(i)));
    const JsonReader digest = node.at("digest");
    plane.digest = read_digest(digest);
    return plane;
}

// A manifest that disagrees with itself was edited or cut; what it names cannot be verified.
void check_digest(const Manifest& manifest, const std::string& key, const Digest& written, const Digest& derived) {
    if (written == derived) return;
    throw VerifyError(fmt::format("{}: {}: expected {} (from the digests it covers), found {}", manifest.path, key,
                                  to_hex(derived), to_hex(written)));
}

LayerEntry read_layer(const JsonReader& node, const Manifest& manifest,
                      const std::vector<std::vector<std::uint64_t>>& sizes) {
    const Geometry& geometry = manifest.geometry;
    LayerEntry entry;
    entry.layer = node.at("layer").number32();
    const auto it = std::find(geometry.layer_ids.begin(), geometry.layer_ids.end(), entry.layer);
    if (it == geometry.layer_ids.end()) {
        node.at("layer").fail(fmt::format("layer {} is not in geometry.layer_ids", entry.layer));
    }
    if (manifest.find(entry.layer) != nullptr)
        node.at("layer").fail(fmt::format("layer {} is named twice", entry.layer));
    const auto index = static_cast<std::size_t>(it - geometry.layer_ids.begin());
    entry.rows = geometry.num_embeddings[index];
    expect_number(node.at("rows"), entry.rows);
    const JsonReader heads = node.at("head_sizes");
    entry.head_sizes = sizes[index];
    if (heads.size() != entry.head_sizes.size()) {
        heads.fail(fmt::format("expected {} heads, found {}", entry.head_sizes.size(), heads.size()));
    }
    for (std::size_t i = 0; i < heads.size(); ++i) expect_number(heads.at(i), entry.head_sizes[i]);
    const std::uint64_t sum = std::accumulate(entry.head_sizes.begin(), entry.head_sizes.end(), std::uint64_t{0});
    if (sum != entry.rows) {
        node.at("rows").fail(fmt::format("expected {} (the sum of head_sizes), found {}", sum, entry.rows));
    }
    entry.weight = read_plane(node.at("weight"), PlaneKind::kWeight, entry.rows, manifest.segment_bytes);
    entry.scale = read_plane(node.at("scale"), PlaneKind::kScale, entry.rows, manifest.segment_bytes);
    entry.identity = read_digest(node.at("identity"));
    for (const PlaneEntry* plane : {&entry.weight, &entry.scale}) {
        const std::string key = fmt::format("layer {} {}.digest", entry.layer, plane_name(plane->kind));
        check_digest(manifest, key, plane->digest, plane_digest(plane->segments));
    }
    check_digest(manifest, fmt::format("layer {} identity", entry.layer), entry.identity,
                 sha256(identity_text(entry, manifest.segment_bytes)));
    return entry;
}

}  // namespace

const LayerEntry* Manifest::find(std::uint32_t layer) const noexcept {
    const auto it =
        std::find_if(layers.begin(), layers.end(), [layer](const LayerEntry& entry) { return entry.layer == layer; });
    return it == layers.end() ? nullptr : &*it;
}

Digest plane_digest(const std::vector<Digest>& segments) {
    Sha256 hash;
    for (const Digest& segment : segments) hash.update(std::as_bytes(std::span(segment)));
    return hash.finish();
}

std::string identity_text(const LayerEntry& layer, std::uint64_t segment_bytes) {
    return fmt::format(
        "dsv41-engram-identity-v1\n"
        "layer={}\n"
        "rows={}\n"
        "head_sizes={}\n"
        "segment_bytes={}\n"
        "weight={}:{}:{}\n"
        "scale={}:{}:{}\n",
        layer.layer, layer.rows, fmt::join(layer.head_sizes, ","), segment_bytes, kWeightDtype, kWeightBytes,
        to_hex(layer.weight.digest), kScaleDtype, kScaleBytes, to_hex(layer.scale.digest));
}

Manifest parse_manifest(std::string_view text, std::string path) {
    nlohmann::json document;
    try {
        document = nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
        throw ManifestError(fmt::format("{}: not valid JSON: {}", path, error.what()));
    }
    Manifest manifest;
    manifest.path = std::move(path);
    const JsonReader root(document, manifest.path);
    expect_number(root.at("schema"), 1);
    manifest.checkpoint = root.at("checkpoint").at("name").text();
    manifest.geometry = read_geometry(root.at("geometry"));
    check_row_format(root.at("row_format"));
    manifest.segment_bytes = root.at("segment_bytes").number(kMaxSegmentBytes);
    if (manifest.segment_bytes == 0) root.at("segment_bytes").fail("expected at least 1, found 0");
    std::vector<std::vector<std::uint64_t>> sizes;
    try {
        sizes = head_sizes(manifest.geometry);
    } catch (const LayoutError& error) {
        root.at("geometry").fail(error.what());
    }
    const JsonReader layers = root.at("layers");
    if (layers.size() == 0) layers.fail("expected at least one layer");
    manifest.layers.reserve(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
        LayerEntry entry = read_layer(layers.at(i), manifest, sizes);
        manifest.layers.push_back(std::move(entry));
    }
    return manifest;
}

Manifest load_manifest(const std::filesystem::path& path) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error) throw ManifestError(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
    if (size > kMaxManifestBytes) {
        throw ManifestError(fmt::format("{}: {} bytes, expected at most {}", path.string(), size, kMaxManifestBytes));
    }
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file) throw ManifestError(fmt::format("{}: cannot be read", path.string()));
    return parse_manifest(text, path.string());
}

}  // namespace engram
